"""Owns the stream of an AnnotatedData layer: images with boxes, varied and resized as SSD does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...backends.records import transform_record
from ...backends.tensor import Shape
from ...errors import UserError
from ...proto import caffe_pb2
from ..ahead.parallel_map import BadRecords
from ..databases.datum import Datum, pixels
from ..databases.record_database import Database
from ..databases.records import record_name
from ..pictures.augment import Window, expand, sample, show
from ..pictures.boxes import Annotations, cut, mirror
from ..pictures.resizing import Resizing
from ..pictures.transform import Fail, Transform, record_draws, shape_text
from .order import first_record, runs

ROOM = 2048
"""The most objects of an image."""
COLUMNS = 8


class Varied(NamedTuple):
    """An image (channels, height, width) that is ready to be cut, and its objects."""

    image: np.ndarray
    annotations: Annotations
    extents: tuple[int, int]
    """Its height and width before it was resized."""


def is_annotated(value: bytes | memoryview) -> bool:
    """Whether a record is an AnnotatedDatum: it begins with a message, which no Datum does."""
    return bytes(value[:1]) == b"\x0a"


def parse_annotated(value: bytes | memoryview) -> tuple[Datum, Annotations]:
    """The image (as a Datum) and objects of a serialized AnnotatedDatum. ValueError: it is none."""
    message = caffe_pb2.AnnotatedDatum()
    try:
        message.ParseFromString(bytes(value))
    except Exception as error:  # google.protobuf.message.DecodeError
        raise ValueError("it is not an AnnotatedDatum") from error
    inner = message.datum
    if not inner.data and not inner.float_data:
        raise ValueError("it is not an AnnotatedDatum, or it has no image")
    values = np.array(inner.float_data, np.float32) if inner.float_data else None
    shape = (inner.channels, inner.height, inner.width)
    datum = Datum(shape, inner.label, memoryview(inner.data), 0, inner.encoded, values)
    found = [
        (group.group_label, each.instance_id, each.bbox)
        for group in message.annotation_group for each in group.annotation
    ]  # fmt: skip
    boxes = [(box.xmin, box.ymin, box.xmax, box.ymax) for *_, box in found]
    return datum, Annotations(
        np.array([each[:2] for each in found], np.float64).reshape(-1, 2),
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array([box.difficult for *_, box in found], bool),
    )


class AnnotatedSource:
    """The records of a database of AnnotatedDatum, over and over, varied anew in each epoch.

    `shape` is that of every image; where the images' sizes differ (`varies`) it is the first one's.
    What is drawn for a record depends on seed, epoch and record only. block: as for order.runs.
    bad: what becomes of a record that cannot be used. fail(field, text): the layer's.
    """

    def __init__(
        self,
        database: Database,
        parameter: caffe_pb2.LayerParameter,
        phase: str,
        fail: Fail,
        *,
        seed: int = 0,
        block: int = 0,
        bad: BadRecords | None = None,
    ) -> None:
        self._database, self._seed, self._block = database, seed, block
        self.bad = bad or BadRecords()
        self.shared = database.shared
        self._param = parameter.transform_param
        self._samplers = list(parameter.annotated_data_param.batch_sampler)
        has = self._param.HasField
        self._constraint = self._param.emit_constraint if has("emit_constraint") else None
        self._resizing = Resizing(self._param.resize_param, fail) if has("resize_param") else None
        self._transform = Transform(self._param, phase, fail)
        self._is_train = phase == "TRAIN"
        self.varies = self._resizing is not None and self._resizing.varies
        self._start = first_record(seed, parameter.data_param.rand_skip)
        self._crop = self._read_crop(fail)
        self._none = f"{database.path} has no record that can be used"
        generator = np.random.default_rng(0)
        varied, _ = self.bad.usable(
            0, len(self), lambda record: self.varied(record, generator), self._none
        )
        image = varied.image
        self.shape: Shape = self._transform.prepare(image.shape)
        if self._crop:
            self.shape = (image.shape[0], *self._crop)
            if any(side > extent for side, extent in zip(self._crop, image.shape[1:], strict=True)):
                fail("transform_param.crop_h", f"is larger than the image, {image.shape}")

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._database)

    def _read_crop(self, fail: Fail) -> tuple[int, int] | None:
        param = self._param
        if bool(param.crop_h) != bool(param.crop_w):
            fail("transform_param.crop_h", "give both crop_h and crop_w")
        if param.crop_h:
            return param.crop_h, param.crop_w
        return (param.crop_size, param.crop_size) if param.crop_size else None

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the images of the stream from `position` on, and the rows of their objects.

        arrays: (N, *shape) and, if they are wanted, (N, ROOM, 8): of label -1 where there is none.
        Raises UserError that names the key of a record that is damaged or of another size.
        """
        self._database.check()
        at, count = 0, len(arrays[0])
        for epoch, start, stop in runs(
            self._start + position, count, len(self._database), block=self._block, seed=self._seed
        ):
            records = np.arange(start, stop)
            draws = record_draws(self._seed, np.full_like(records, epoch), records)
            for record, draw in zip(records.tolist(), draws.tolist(), strict=True):
                rows = self._usable(record, draw, arrays[0][at])
                if len(arrays) > 1:
                    arrays[1][at] = -1
                    arrays[1][at, : len(rows)] = rows
                at += 1

    def one(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """The image and the rows of the record at a position, whatever its size."""
        epoch, record, _ = next(
            runs(self._start + position, 1, len(self._database), block=self._block, seed=self._seed)
        )
        draw = int(record_draws(self._seed, np.array([epoch]), np.array([record]))[0])
        generator = np.random.default_rng(draw)
        varied = self.varied(record, generator)
        out = np.empty((varied.image.shape[0], *(self._crop or varied.image.shape[1:])), np.float32)
        return out, self._cut(varied, generator, out)

    def _usable(self, record: int, draw: int, out: np.ndarray) -> np.ndarray:
        """`_one` of a record, or of the next that can be used."""
        count = len(self._database)
        for place in range(record, record + count):
            try:
                return self._one(place % count, np.random.default_rng(draw), out)
            except UserError as error:
                self.bad.found(error, place % count)
        raise UserError(self._none)

    def _one(self, record: int, generator: np.random.Generator, out: np.ndarray) -> np.ndarray:
        varied = self.varied(record, generator)
        wanted = out.shape if self._crop is None else (out.shape[0], *varied.image.shape[1:])
        room = varied.image.shape[1:]
        if varied.image.shape != wanted or any(
            side < wide for side, wide in zip(room, out.shape[1:], strict=True)
        ):
            [(key, _)] = self._database.read(record, record + 1)
            raise UserError(
                f"{record_name(self._database, key)} is {shape_text(varied.image.shape)}, but "
                f"the first one gives {shape_text(self.shape)}: set resize_param"
            )
        return self._cut(varied, generator, out)

    def varied(self, record: int, generator: np.random.Generator) -> Varied:
        """A record, varied and resized, before it is cut to its final size."""
        [(key, value)] = self._database.read(record, record + 1)
        try:
            datum, annotations = parse_annotated(value)
            image = pixels(datum, self._transform.colour).transpose(1, 2, 0)
        except ValueError as error:
            name = record_name(self._database, key)
            raise UserError(f"{name} cannot be read: {error}") from error
        image = np.array(image)
        param, constraint = self._param, self._constraint
        window = Window(0, 0, *image.shape[:2])
        if param.HasField("expand_param"):
            window, annotations = expand(
                window, annotations, param.expand_param, constraint, generator
            )
        if self._samplers:
            window, annotations = sample(window, annotations, self._samplers, constraint, generator)
        distortion = param.distort_param if param.HasField("distort_param") else None
        image = show(image, window, np.array(param.mean_value), distortion, generator)
        height, width = image.shape[:2]
        if self._resizing is not None:
            image = self._resizing.image(np.ascontiguousarray(image), generator)
            annotations = self._resizing.annotations(annotations, height, width)
        return Varied(image.transpose(2, 0, 1), annotations, (height, width))

    def _cut(self, varied: Varied, generator: np.random.Generator, out: np.ndarray) -> np.ndarray:
        """Write the image, cut and perhaps mirrored, to out; the rows (B, 8) of its objects, whose
        first column is not the image's number yet but 0."""
        extents, sides = varied.image.shape[1:], out.shape[1:]
        lacking = [extent - side for extent, side in zip(extents, sides, strict=True)]
        top, left = (each // 2 for each in lacking)
        if self._crop and self._is_train:
            top, left = (int(generator.integers(each + 1)) for each in lacking)
        mirrored = int(self._transform.mirror and generator.random() < 0.5)
        choice = (top, left, mirrored)
        mean, scale = self._transform.mean, self._transform.scale
        transform_record(varied.image, out, choice, mean=mean, scale=scale)
        part = np.array([left, top, left + sides[1], top + sides[0]]) / np.tile(extents[::-1], 2)
        annotations = cut(varied.annotations, part, self._constraint)
        if mirrored:
            annotations = mirror(annotations)
        rows = np.zeros((len(annotations.labels), COLUMNS))
        rows[:, 1:3], rows[:, 3:7] = annotations.labels, annotations.boxes
        rows[:, 7] = annotations.difficult
        if len(rows) > ROOM:
            raise UserError(f"an image has {len(rows)} objects, more than {ROOM}")
        return rows


def join_rows(rows: np.ndarray, out: np.ndarray) -> int:
    """Put the rows (N, ROOM, 8) of a batch's images behind one another into out (R, 8), with their
    images' numbers; the rows behind are -1. Returns how many there are, at least 1 of -1."""
    out.fill(-1)
    image, place = np.nonzero(rows[:, :, 1] >= 0)
    if len(image) > len(out):
        raise UserError(
            f"a batch has {len(image)} objects, more than {len(out)}: remove images with that many"
        )
    out[: len(image)] = rows[image, place]
    out[: len(image), 0] = image
    return max(1, len(image))
