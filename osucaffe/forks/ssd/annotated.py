"""The stream of an AnnotatedData layer: images with boxes, with SSD's augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...backends.records import Choice, transform_record
from ...backends.tensor import Shape
from ...data.databases.datum import Datum, pixels
from ...data.databases.record_database import Database
from ...data.pictures.transform import Fail, Transform, holds, shape_text
from ...data.streams.stream import RecordStream
from ...errors import UserError
from ...proto import caffe_pb2
from ..annotations import Annotations, cut, mirror
from ..augment import Window, expand, sample, show
from .resizing import Resizing

ROOM = 2048
"""The most objects of an image."""
COLUMNS = 8


class Planned(NamedTuple):
    """An image (channels, height, width), its crop, and the rows (B, 8) of the objects there, whose
    first column is still 0 instead of the image's number."""

    image: np.ndarray
    choice: Choice
    rows: np.ndarray


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
    objects = [
        (group.group_label, one.instance_id, one.bbox)
        for group in message.annotation_group for one in group.annotation
    ]  # fmt: skip
    boxes = [(box.xmin, box.ymin, box.xmax, box.ymax) for *_, box in objects]
    return datum, Annotations(
        np.array([box[:2] for box in objects], np.float64).reshape(-1, 2),
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array([box.difficult for *_, box in objects], bool),
    )


def survey(value: memoryview) -> tuple[Datum, list[int]] | None:
    """The image of a record and the labels of its objects, for the survey of a database; None of a
    record that is none of SSD's."""
    if not is_annotated(value):
        return None
    datum, annotations = parse_annotated(value)
    return datum, annotations.labels[:, 0].astype(int).tolist()


class AnnotatedSource(RecordStream[Planned]):
    """The records of a database of AnnotatedDatum, augmented differently in each epoch.

    `shape` is that of every image; where the images' sizes differ (`varies`) it is the first one's.
    What is drawn for a record depends on seed, epoch and record only. fail(field, text): the
    layer's. The rest is as in RecordStream. A batch is images (N, *shape) and, if requested,
    the rows of their objects (N, ROOM, 8): of label -1 where there is none.
    """

    def __init__(
        self,
        database: Database,
        parameter: caffe_pb2.LayerParameter,
        phase: str,
        fail: Fail,
        **options: Any,
    ) -> None:
        none = f"{database.path} has no record that can be used"
        rand_skip = parameter.data_param.rand_skip
        super().__init__(len(database), none, rand_skip=rand_skip, **options)
        self._database, self.shared = database, database.shared
        self._param = parameter.transform_param
        self._samplers = list(parameter.annotated_data_param.batch_sampler)
        for shape in (each.sampler for each in self._samplers):
            field = "annotated_data_param.batch_sampler.sampler"
            if not 0 < shape.min_scale <= shape.max_scale <= 1:
                fail(field, "needs 0 < min_scale <= max_scale <= 1")
            if not 0 < shape.min_aspect_ratio <= shape.max_aspect_ratio:
                fail(field, "needs 0 < min_aspect_ratio <= max_aspect_ratio")
        has = self._param.HasField
        self._constraint = self._param.emit_constraint if has("emit_constraint") else None
        self._resizings = [Resizing(each, fail) for each in self._param.resize_param]
        self._shares = [each.prob for each in self._param.resize_param]
        if self._shares and abs(sum(self._shares) - 1) > 1e-3:
            together = f"must sum up to 1, not {sum(self._shares):g}"
            fail(
                "transform_param.resize_param.prob", f"{together}: images of a batch have one size"
            )
        self.sizes = len(self._resizings)
        self._transform = Transform(self._param, phase, fail)
        self._is_train = phase == "TRAIN"
        self.varies = any(each.varies for each in self._resizings)
        self._crop = self._read_crop(fail)
        generator = np.random.default_rng(0)
        image, _ = self.bad.usable(
            0, len(self), lambda record: self._varied(record, generator)[0], none
        )
        self.shape: Shape = self._transform.prepare(image.shape)
        if self._crop:
            self.shape = (image.shape[0], *self._crop)
            if not holds(image.shape[1:], self._crop):
                fail("transform_param.crop_h", f"is larger than the image, {image.shape}")

    def _read_crop(self, fail: Fail) -> tuple[int, int] | None:
        param = self._param
        if bool(param.crop_h) != bool(param.crop_w):
            fail("transform_param.crop_h", "give both crop_h and crop_w")
        if param.crop_h:
            return param.crop_h, param.crop_w
        return (param.crop_size, param.crop_size) if param.crop_size else None

    def check(self) -> None:
        self._database.check()

    def read(self, record: int, draw: int) -> Planned:
        generator = np.random.default_rng(draw)
        image, annotations = self._varied(record, generator)
        if self._crop:
            fits = len(image) == self.shape[0] and holds(image.shape[1:], self._crop)
        else:
            fits = image.shape == self.shape
        if not fits:
            raise UserError(
                f"{self._database.name(self._database.key(record))} is "
                f"{shape_text(image.shape)}, but the first one gives {shape_text(self.shape)}: "
                "set resize_param"
            )
        return self._planned(image, annotations, generator)

    def write(self, item: Planned, draw: int, arrays: Sequence[np.ndarray]) -> None:
        mean, scale = self._transform.mean, self._transform.scale
        transform_record(item.image, arrays[0], item.choice, mean=mean, scale=scale)
        for rows in arrays[1:]:
            rows[: len(item.rows)], rows[len(item.rows) :] = item.rows, -1

    def drawn_size(self, draw: tuple[int, ...]) -> int:
        """Which of the sizes of resize_param is drawn, by its prob."""
        shares = np.divide(self._shares, sum(self._shares))
        return int(np.random.default_rng(draw).choice(self.sizes, p=shares))

    def one(self, position: int, size: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The image and the rows (ROOM, 8) of the record at a position, of any size, or of this
        one of resize_param."""
        [(record, draw)] = self.drawn(position, 1)
        generator = np.random.default_rng(draw)
        item = self._planned(*self._varied(record, generator, size), generator)
        image = np.empty((len(item.image), *(self._crop or item.image.shape[1:])), np.float32)
        rows = np.empty((ROOM, COLUMNS), np.float32)
        self.write(item, draw, [image, rows])
        return image, rows

    def _varied(
        self, record: int, generator: np.random.Generator, size: int = 0
    ) -> tuple[np.ndarray, Annotations]:
        """The image (channels, height, width) and the objects of a record, varied and resized,
        before they are cut to their final size."""
        [(key, value)] = self._database.read(record, record + 1)
        try:
            datum, annotations = parse_annotated(value)
            image = pixels(datum, self._transform.colour).transpose(1, 2, 0)
        except ValueError as error:
            name = self._database.name(key)
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
        if self._resizings:
            resizing = self._resizings[size]
            image = resizing.image(np.ascontiguousarray(image), generator)
            annotations = resizing.annotations(annotations, height, width)
        return image.transpose(2, 0, 1), annotations

    def _planned(
        self, image: np.ndarray, annotations: Annotations, generator: np.random.Generator
    ) -> Planned:
        """The crop of an image, possibly mirrored, and the objects there."""
        extents = image.shape[1:]
        sides = self._crop or extents
        lacking = [extent - side for extent, side in zip(extents, sides, strict=True)]
        top, left = (missing // 2 for missing in lacking)
        if self._crop and self._is_train:
            top, left = (int(generator.integers(missing + 1)) for missing in lacking)
        mirrored = int(self._transform.mirror and generator.random() < 0.5)
        part = np.array([left, top, left + sides[1], top + sides[0]]) / np.tile(extents[::-1], 2)
        annotations = cut(annotations, part, self._constraint)
        if mirrored:
            annotations = mirror(annotations)
        rows = np.zeros((len(annotations.labels), COLUMNS))
        rows[:, 1:3], rows[:, 3:7] = annotations.labels, annotations.boxes
        rows[:, 7] = annotations.difficult
        if len(rows) > ROOM:
            raise UserError(f"an image has {len(rows)} objects, more than {ROOM}")
        return Planned(image, (top, left, mirrored), rows)


def join_rows(rows: np.ndarray, out: np.ndarray) -> int:
    """Concatenate the rows (N, ROOM, 8) of a batch's images into out (R, 8), with their
    images' numbers; unused rows are -1. Returns how many there are, at least 1 of -1."""
    out.fill(-1)
    image, row = np.nonzero(rows[:, :, 1] >= 0)
    if len(image) > len(out):
        raise UserError(
            f"a batch has {len(image)} objects, more than {len(out)}: remove images with that many"
        )
    out[: len(image)] = rows[image, row]
    out[: len(image), 0] = image
    return max(1, len(image))
