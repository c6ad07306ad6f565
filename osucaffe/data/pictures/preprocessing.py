"""Owns what a model tells of its training: how images became the input of the net.

A model file holds the net that was trained, and with it the transform_param of its data layer; so
does a prototxt. Training makes (crop of image - mean) * scale of pixels 0..255, blue first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...proto import AnyWeights, caffe_pb2, read_mean, reads_images, title
from ...proto.text import decode

_Layer = caffe_pb2.LayerParameter | caffe_pb2.LayerWeights


@dataclass(frozen=True)
class Preprocessing:
    """How images became input.

    origin: which layer of which file says so, for messages. scale, mean_values, mean_file: of its
    transform_param. extents: (height, width) of the images before they were cropped, where that
    is known.
    """

    origin: str = ""
    scale: float = 1.0
    mean_values: tuple[float, ...] = ()
    mean_file: str = ""
    folder: Path = Path()
    extents: tuple[int, int] | None = None

    def mean(self) -> np.ndarray | None:
        """A value for each channel (or one for all), or an image (channels, height, width).

        The mean's file is where training had it, or beside the file that names it. UserError where
        it is in neither place.
        """
        if not self.mean_file:
            return np.array(self.mean_values, np.float32) if self.mean_values else None
        given = Path(self.mean_file)
        beside = self.folder / given.name
        for path in (given, beside):
            if path.is_file():
                return read_mean(path)
        raise UserError(
            f'{self.origin}: the mean in "{self.mean_file}" was subtracted in training, and is '
            f"neither there nor at {beside}: put it there, or give a mean (0 for none)"
        )

    def is_like(self, other: Preprocessing) -> bool:
        """Whether both make the same values of a pixel, as far as can be told without the files."""
        if self.scale != other.scale:
            return False
        if self.mean_file and other.mean_file:
            return Path(self.mean_file).name == Path(other.mean_file).name
        if self.mean_file or other.mean_file:  # a mean's image and its values are nearly the same
            return bool(self.mean_values or other.mean_values)
        mine, its = (set(each.mean_values) for each in (self, other))
        if len(mine) <= 1 and len(its) <= 1:
            return (mine or {0.0}) == (its or {0.0})
        return self.mean_values == other.mean_values

    def __str__(self) -> str:
        text = "no mean"
        if self.mean_file:
            text = f"the mean in {self.mean_file}"
        elif self.mean_values:
            text = "the mean " + ", ".join(f"{value:g}" for value in self.mean_values)
        return f"{text}, scale {self.scale:g}"


def find_preprocessing(net: AnyWeights, file: str | Path, blob: str = "") -> Preprocessing | None:
    """What the data layer of a net says; None where there is none, or several differ.

    file: that the net was read from. blob: the input that is asked about: of several data layers
    the one that makes it counts, and of these those of the TEST phase.
    """
    readers: list[_Layer] = [layer for layer in net.layer if reads_images(layer)]
    readers = [layer for layer in readers if layer.top[0] == blob] or readers
    readers = [layer for layer in readers if _tests(layer)] or readers
    said = [_read(layer, file) for layer in readers]
    return said[0] if said and all(each.is_like(said[0]) for each in said) else None


def _tests(layer: _Layer) -> bool:
    """Whether a layer is for the TEST phase."""
    return any(rule.HasField("phase") and rule.phase == caffe_pb2.TEST for rule in layer.include)


def _read(layer: _Layer, file: str | Path) -> Preprocessing:
    transform, size = layer.transform_param, layer.image_data_param
    file_name = transform.mean_file
    if isinstance(file_name, bytes):  # protobuf's way with what is not UTF-8
        file_name = decode(file_name)
    return Preprocessing(
        f"{file}, {title(layer)}",
        transform.scale,
        tuple(transform.mean_value),
        file_name,
        Path(file).parent,
        (size.new_height, size.new_width) if size.new_height and size.new_width else None,
    )
