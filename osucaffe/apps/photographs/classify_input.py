"""The input of `osucaffe classify`: images are preprocessed by its options, or else
as in training, by workers that decode and scale them some batches ahead."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...api.entry import Entry, FileInput, PhotoInput, make_entry
from ...backends.backend import Backend
from ...backends.records import PhotoScaler
from ...data.ahead.parallel_map import BadRecords
from ...data.ahead.pipeline import Buffer, Pipeline, Threads
from ...data.ahead.processes import Processes, can_be_processes
from ...data.pictures.preprocessing import Preprocessing, find_preprocessing
from ...data.sets.photo_set import find_settings
from ...errors import UserError, listed
from ...net import Net
from ...options.kinds import names
from ...proto import read_mean, read_net
from ...pycaffe.image_input import ImageInput
from ...pycaffe.packed import packed_bytes
from .options import Classify

logger = logging.getLogger("osucaffe")


def find_entry(net: Net, trained: Preprocessing | None, options: Classify) -> Entry:
    """The preprocessing of images by the options and the training, which is logged.

    trained: the preprocessing recorded in the file of weights.
    """
    given, entry = options.entry, ImageInput(net)
    folder = Path(options.data or Path(options.model).parent)
    if options.data and find_settings(folder) is None:
        raise UserError(
            f"--data {folder}: does not record how photographs were prepared: give the folder "
            "that osucaffe data folder has made"
        )
    if given.trained_with:
        trained = find_preprocessing(read_net(given.trained_with), given.trained_with, entry.name)
        if trained is None:
            raise UserError(
                f"--trained_with {given.trained_with}: has no layer that reads images, or several "
                "that differ: give the prototxt that the net was trained with"
            )
    if trained is None and all(
        value is None for value in (given.mean, given.input_scale, given.raw_scale)
    ):
        logger.warning(
            "How images were preprocessed in training is unknown (%s has no layer that "
            "reads images): give --trained_with train_val.prototxt, or --mean and --input_scale",
            options.weights,
        )
    if given.channel_swap and sorted(given.channel_swap) != list(range(entry.channels)):
        swap = ",".join(map(str, given.channel_swap))
        numbers = listed(range(entry.channels))
        raise UserError(f"--channel_swap {swap}: the net's channels are {numbers}, each once")
    try:
        made = make_entry(
            *(entry, trained, folder, given.image_dims),
            mean=_read_mean(given.mean) if given.mean else None,
            input_scale=given.input_scale,
            raw_scale=given.raw_scale,
            channel_swap=given.channel_swap,
        )
    except ValueError as error:
        raise UserError(f"--mean {given.mean}: {error}") from None
    inner = "x".join(map(str, entry.extents))
    if isinstance(made, PhotoInput):
        size = made.settings.size
        how = f"Photos are preprocessed like those of {folder} ({made.settings.fit}, {size}x{size})"
        crop = f", of which the middle of {inner}" if (entry.extents != size).any() else ""
        logger.info("%s%s; %s (trained: %s)", how, crop, trained, trained and trained.origin)
        return made
    scaled = "x".join(map(str, made.image_dims))
    part = "ten parts" if given.oversample else "the middle"
    crop = f", of which {part} of {inner}" if scaled != inner else ""
    origin = f" (trained: {trained.origin})" if trained else ""
    logger.info("Images are scaled to %s%s; %s%s", scaled, crop, entry, origin)
    return made


def _read_mean(given: str) -> np.ndarray:
    """The value of --mean: a value for each channel, or for all, or an image."""
    if not Path(given).exists():
        try:
            return np.array([float(part) for part in names(given)])
        except ValueError:
            raise UserError(f"--mean {given}: no such file, and not a list of numbers") from None
    if Path(given).suffix == ".npy":
        try:
            return np.load(given)
        except (OSError, ValueError):
            raise UserError(f"--mean {given}: not a whole .npy file") from None
    return read_mean(given)


_DEPTH = 4
_MANY = 256
"""The number of images from which on processes are worth their start-up time."""
_SAMPLED = 8
_BATCH_BYTES = 128 << 20
"""Of a batch of photos that a backend scales: a GPU has room for it thrice, the host five times."""


class ImageFiles:
    """A stream of image files; after the last one nothing is written, nor for those that `bad`
    skips."""

    def __init__(
        self, paths: Sequence[str], entry: Entry, bad: BadRecords, *, oversample: bool
    ) -> None:
        self._paths, self._entry, self._oversample = paths, entry, oversample
        self.bad = bad
        self._packer: FileInput | None = None
        """The entry, if a backend scales what it packs."""

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the input from the files from this position on to an array (N, crops, channels,
        height, width), or the photos for a backend that scales them. Raises UserError that names a
        file that cannot be read."""
        (data,) = arrays
        paths = self._paths[position : position + len(data)]
        for index, (target, path) in enumerate(zip(data, paths, strict=False), position):
            try:
                if self._packer:
                    self._packer.pack(path, target)
                else:
                    target[...] = self._entry.enter(path, self._oversample)
            except UserError as error:
                self.bad.report(error, index)  # its record stays as it is: zeros or another photo

    def stream(self, shape: tuple[int, ...], readers: int, backend: Backend) -> Pipeline:
        """Batches of this shape, (images, crops, channels, height, width), for a backend; made by
        that many."""
        depth = min(_DEPTH, -(-len(self._paths) // shape[0]))
        processes = len(self._paths) >= _MANY and can_be_processes()
        options: dict[str, Any] = {
            "depth": depth, "threads": readers, "workers": Processes if processes else Threads,
        }  # fmt: skip
        entry = self._entry
        if backend.raw_records and isinstance(entry, FileInput) and shape[2] in (1, 3):
            crops = entry.scaled_crops(self._oversample)
            packed = shape[0], self._record_bytes(crops.extents, shape[0])
            if scaler := backend.photo_scaler(crops, packed):
                self._packer = entry
                return _Scaled(scaler, self.fill, [packed], dtypes=["uint8"], **options)
        return Pipeline(self.fill, [shape], **options)

    def _record_bytes(self, extents: tuple[int, int], batch: int) -> int:
        """The bytes of a record: enough for photos that are half as large again as the largest of
        some, if a batch of these is no more than _BATCH_BYTES."""
        from PIL import Image

        least = packed_bytes(*extents, extents)
        wanted = least
        for path in self._paths[:: -(-len(self._paths) // _SAMPLED)]:
            # Only the head is read here; a bad file is named when its pixels are.
            with contextlib.suppress(Exception), Image.open(path) as image:
                wanted = max(wanted, packed_bytes(*image.size[::-1], extents) * 3 // 2)
        return -(-max(least, min(wanted, _BATCH_BYTES // batch)) // 16) * 16


class _Scaled(Pipeline):
    """Batches of photos that a backend scales when they are requested."""

    def __init__(self, scaler: PhotoScaler, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._scaler = scaler

    def next(self) -> list[Buffer]:
        (photos,) = super().next()
        scaled = self._scaler.scale(photos.array)
        return [Buffer(scaled, scaled, int(scaled.data.ptr))]
