"""Caffe's transform_param: mean, scale, crop, mirror and the colours of decoded images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import numpy as np

from ...backends.random import mix64
from ...backends.records import Choice, Part, transform_record
from ...backends.tensor import Shape
from ...errors import UserError
from ...proto import caffe_pb2, read_mean
from .variation import vary

Fail = Callable[[str, str], NoReturn]
_MAX = {"rotation": 180, "zoom": 10, "colour": 1, "erasing": 1}
"""The largest values of augmentation_param."""


class Transform:
    """y = (crop of x - mean) * scale, possibly mirrored.

    parameter: the layer's TransformationParameter. fail(field, text) raises the UserError that
    names the layer. Call `prepare` once before `apply`.
    """

    def __init__(
        self, parameter: caffe_pb2.TransformationParameter, phase: str, fail: Fail
    ) -> None:
        self.scale = np.float32(parameter.scale)
        self.crop = parameter.crop_size
        self.random_crop = phase == "TRAIN" and self.crop > 0
        self.mirror = parameter.mirror
        augmentation = parameter.augmentation_param if phase == "TRAIN" else None
        varies = augmentation and any(value for _, value in augmentation.ListFields())
        self.augmentation = augmentation if varies else None
        """What varies images before all else: only those that `apply` transforms."""
        self.random = self.random_crop or self.mirror or self.augmentation is not None
        self.colour: bool | None = None
        if parameter.force_color or parameter.force_gray:
            self.colour = parameter.force_color
        if parameter.force_color and parameter.force_gray:
            fail("transform_param", "force_color and force_gray exclude each other: set one")
        if self.augmentation is not None:
            for field, most in _MAX.items():
                if not 0 <= (value := getattr(self.augmentation, field)) <= most:
                    fail(f"transform_param.augmentation_param.{field}", f"{value:g}: 0 to {most}")
        if parameter.mean_file and parameter.mean_value:
            fail("transform_param", "mean_file and mean_value exclude each other: set one")
        self._values = np.array(parameter.mean_value, np.float32)
        self._file = parameter.mean_file
        self._full = None
        if self._file:
            try:
                self._full = read_mean(self._file)
            except UserError as error:
                fail("transform_param.mean_file", str(error))
        self.mean: np.ndarray | None = None
        self._fail = fail

    def __getstate__(self) -> dict[str, Any]:
        """The state needed by a process that only applies it."""
        return {name: value for name, value in self.__dict__.items() if name != "_fail"}

    @property
    def has_mean_image(self) -> bool:
        """Whether the mean is an image, so that every record must have its size."""
        return self._full is not None

    def prepare(self, shape: Shape) -> Shape:
        """Check the settings against a record's (channels, height, width); return the output shape.

        Raises the layer's UserError if they do not fit.
        """
        channels, height, width = shape
        text = shape_text(shape)
        if self._full is not None:
            if self._full.shape != shape:
                self._fail(
                    "transform_param.mean_file",
                    f"the mean in {self._file} is {shape_text(self._full.shape)}, but the records "
                    f"are {text} (channels x height x width): compute it from the same database",
                )
            self.mean = self._full
        elif self._values.size:
            if self._values.size not in (1, channels):
                self._fail(
                    "transform_param.mean_value",
                    f"{self._values.size} values for {channels} channels: give one or {channels}",
                )
            self.mean = np.broadcast_to(self._values[:, None, None], (channels, 1, 1))
        if self.augmentation is not None and channels not in (1, 3):
            self._fail("transform_param.augmentation_param", f"is for images, not {text}")
        if not self.crop:
            return shape
        if self.crop > min(height, width):
            self._fail(
                "transform_param.crop_size",
                f"{self.crop} is larger than the image of {text} (channels x height x width)",
            )
        return channels, self.crop, self.crop

    def centre_mean(self, channels: int) -> np.ndarray | None:
        """The mean of a crop at the centre, (channels, crop, crop), whatever the records' size."""
        if self._full is None and not self._values.size:
            return None
        shape = self._full.shape if self._full is not None else (channels, self.crop, self.crop)
        if shape[0] != channels:
            self._fail(
                "transform_param.mean_file",
                f"the mean in {self._file} has {shape[0]} channels, the images have {channels}",
            )
        self.prepare(shape)
        assert self.mean is not None
        return centre(np.broadcast_to(self.mean, shape), (self.crop, self.crop), axis=1)

    def apply(self, image: np.ndarray, out: np.ndarray, draw: int = 0) -> None:
        """Write the transformed image to out (float32), in one or two passes and without a copy.

        image: (..., channels, height, width) of any type; out: the same with the shape that
        `prepare` returned. draw: the record's 64 random bits (`record_draws`).
        """
        if self.augmentation is not None:
            image = vary(image, self.augmentation, mix64(draw))
        choice = self.choose(image.shape, draw)
        transform_record(image, out, choice, mean=self.mean, scale=self.scale)

    def choose(self, shape: Shape, draw: Any = 0) -> Choice:
        """The first row and column of the crop, and whether to mirror, for (..., height, width).

        draw: of one record, or an array of uint64, of many: then these are arrays too, or one
        number for all.
        """
        mirrored = draw & 1 if self.mirror else 0
        if not self.crop:
            return 0, 0, mirrored
        top, left = (extent - self.crop for extent in shape[-2:])
        if self.random_crop:
            top, left = random_corner(top, left, draw)
        else:
            top, left = top // 2, left // 2
        return top, left, mirrored

    def choose_all(self, shape: Shape, draws: np.ndarray, table: np.ndarray) -> None:
        """Write the result of `choose` for each draw to the rows of table."""
        for column, choice in zip(table.T, self.choose(shape, draws), strict=True):
            column[...] = choice

    def rows(self, shape: Shape, seed: int, epochs: np.ndarray, records: np.ndarray) -> np.ndarray:
        """For records of this shape, their numbers, the result of `choose` for each, and a 0: int32
        (*records.shape, 5)."""
        rows = np.zeros((*records.shape, 5), np.int32)
        rows[..., 0] = records
        draws = record_draws(seed, epochs, records) if self.random else np.uint64(0)
        for column, choice in enumerate(self.choose(shape, draws), 1):
            rows[..., column] = choice
        return rows

    def keep(self, image: np.ndarray, raw: np.ndarray, table: np.ndarray, draw: int = 0) -> None:
        """Write the unchanged image, or its `part`, to raw, and the crop's position there to table:
        the primitive `transform` then gives the result of `apply`.
        """
        part, table[...] = self.part(image.shape, raw.shape, draw)
        if not np.may_share_memory(raw, image):  # else it was decoded there
            height, width = part.size
            (top, left), (to_top, to_left) = part.source, part.target
            target = raw[..., to_top : to_top + height, to_left : to_left + width]
            np.copyto(target, image[..., top : top + height, left : left + width])

    def part(self, shape: Shape, full: Shape, draw: int = 0) -> tuple[Part, Choice]:
        """Which part of an image (..., height, width) goes where in a raw record of shape `full`,
        and the result of `choose` for the crop there.

        An image of that size is copied entirely, else its crop goes to the centre.
        """
        extents = shape[-2], shape[-1]
        top, left, mirrored = self.choose(shape, draw)
        if extents == full[-2:]:
            return Part(extents, (0, 0), (0, 0), extents), (top, left, mirrored)
        to_top, to_left, _ = self.choose(full)
        size = (self.crop, self.crop)
        return Part(extents, (top, left), (to_top, to_left), size), (to_top, to_left, mirrored)


def centre(image: np.ndarray, extents: Sequence[int] | np.ndarray, axis: int = 0) -> np.ndarray:
    """The middle (height, width) of an image. axis: that of its height; the width's is the next."""
    parts = [slice(None)] * axis
    for extent, size in zip(image.shape[axis:], map(int, extents), strict=False):
        first = (extent - size) // 2
        parts.append(slice(first, first + size))
    return image[tuple(parts)]


def random_corner(top: int, left: int, draw: Any) -> tuple[Any, Any]:
    """The first row and column of a crop, from 0 to top and to left, by a record's draw."""
    return (top + 1) * (draw >> 1 & 0x7FFFFFFF) >> 31, (left + 1) * (draw >> 32) >> 32


def holds(extents: Shape, crop: Shape) -> bool:
    """Whether an image of this height and width is at least as large as a crop."""
    return all(extent >= side for extent, side in zip(extents, crop, strict=True))


def check_size(transform: Transform, shape: Shape, first: Shape, name: str) -> None:
    """Reject the record `name` if its (channels, height, width) do not match the first record's.

    Records may differ in size when all of them hold the crop, and no mean image is given.
    """
    fits = transform.crop and not transform.has_mean_image
    if fits and shape[0] == first[0] and min(shape[1:]) >= transform.crop:
        return
    least = f", at least crop_size {transform.crop}" if transform.crop else ""
    raise unlike_first(name, shape, first, f"give all images one size{least}")


def unlike_first(name: str, shape: Shape, first: Shape, remedy: str) -> UserError:
    """The error for an image whose shape, with channels or without, is not the first one's."""
    axes = "channels x height x width" if len(shape) == 3 else "height x width"
    sizes = f"is {shape_text(shape)}, but the first one is {shape_text(first)} ({axes})"
    return UserError(f"{name} {sizes}: {remedy}")


def record_draws(seed: int, epochs: np.ndarray, records: np.ndarray) -> np.ndarray:
    """64 random bits (uint64) for each record, by (seed, epoch, record number) only."""
    # On uint64 arrays mix64 wraps around as it does on numbers that it masks.
    mix = cast(Callable[[np.ndarray], np.ndarray], mix64)
    mixed = mix(epochs.astype(np.uint64)) ^ np.uint64(mix64(seed & 0xFFFFFFFFFFFFFFFF))
    return mix(mix(mixed) ^ records.astype(np.uint64))


def shape_text(shape: Shape) -> str:
    """A shape for messages: 3x32x32."""
    return "x".join(map(str, shape))
