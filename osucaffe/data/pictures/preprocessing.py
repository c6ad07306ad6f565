"""The preprocessing that a model was trained with: how images became the net's input.

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

    origin: the layer and file that specify it, for messages. scale, mean_values, mean_file: of its
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

        The mean's file is where training had it, or next to the file that names it; else
        UserError.
        """
        if not self.mean_file:
            return np.array(self.mean_values, np.float32) if self.mean_values else None
        given = Path(self.mean_file)
        in_folder = self.folder / given.name
        for path in (given, in_folder):
            if path.is_file():
                return read_mean(path)
        raise UserError(
            f'{self.origin}: the mean in "{self.mean_file}" was subtracted in training, and is '
            f"neither there nor at {in_folder}: put it there, or give a mean (0 for none)"
        )

    def is_like(self, other: Preprocessing) -> bool:
        """Whether both map a pixel to the same values, as far as can be known without the files."""
        if self.scale != other.scale:
            return False
        if self.mean_file and other.mean_file:
            return Path(self.mean_file).name == Path(other.mean_file).name
        if self.mean_file or other.mean_file:  # a mean's image and its values are nearly the same
            return bool(self.mean_values or other.mean_values)
        mine, its = (set(settings.mean_values) for settings in (self, other))
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
    """The preprocessing of a net's data layer; None if there is none, or several differ.

    file: that the net was read from. blob: the input in question: of several data layers those
    that make it count, and of these the ones of the TEST phase.
    """
    readers: list[_Layer] = [layer for layer in net.layer if reads_images(layer)]
    readers = [layer for layer in readers if layer.top[0] == blob] or readers
    readers = [layer for layer in readers if _tests(layer)] or readers
    read = [_read(layer, file) for layer in readers]
    return read[0] if read and all(settings.is_like(read[0]) for settings in read) else None


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
