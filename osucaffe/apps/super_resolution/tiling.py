"""Enlarging an image of any size with a super-resolution net: at once, or tile by tile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...data.pictures.preprocessing import Preprocessing
from ...errors import UserError
from ...net import Net
from ...proto import caffe_pb2

_LOCAL = (
    *("Input", "Split", "ReLU", "PReLU", "ELU", "Sigmoid", "TanH", "Eltwise", "Concat", "Scale"),
    *("Bias", "BatchNorm", "Dropout", "Power", "PixelShuffle", "Convolution"),
)
"""Layers whose outputs depend on the same pixel, and on those within their kernel."""


class Part(NamedTuple):
    """A run of input pixels, and the part of them whose output is used."""

    start: int
    stop: int
    keep: int
    end: int


def parts(extent: int, tile: int, margin: int) -> Iterator[Part]:
    """The parts of a row of pixels: all of equal length, so that a net has one shape.

    About `tile` pixels of each are used, with `margin` around them, less where the row ends: there
    the net must see the row's end. The used pixels make up the row.
    """
    if extent <= tile + 2 * margin:
        tile = extent
    count = -(-extent // tile)
    step = -(-extent // count)
    length = min(extent, step + 2 * margin)
    for keep in range(0, extent, step):
        start = min(max(0, keep - margin), extent - length)
        yield Part(start, start + length, keep, min(keep + step, extent))


def reach(net: caffe_pb2.NetParameter) -> int:
    """The most pixels of the small image to each side that affect a pixel of the large one.

    UserError for a net for which this is unknown.
    """
    total, factor = 0.0, 1
    for layer in net.layer:
        conv = layer.convolution_param
        if layer.type not in _LOCAL or max([*conv.stride, conv.stride_h, conv.stride_w]) > 1:
            raise UserError(
                f'layer "{layer.name}" ({layer.type}) may look at all of an image, so that it '
                "cannot be enlarged tile by tile: give --tile 0"
            )
        if layer.type == "Convolution":
            side = max([*conv.kernel_size, conv.kernel_h, conv.kernel_w])
            total += (side - 1) // 2 * max([*conv.dilation, 1]) / factor
        if layer.type == "PixelShuffle":
            factor *= layer.pixel_shuffle_param.upscale_factor
    return math.ceil(total)


class Enlarger:
    """Enlarges images (3, height, width), blue first, by a net.

    entered: the preprocessing in training, which also describes the output. tile: pixels of
    the small image that are enlarged at a time, to each side; 0: all. The result is the same, as
    tiles overlap by the receptive field. `scale`: the factor, found by the net's shapes.
    """

    def __init__(self, net: Net, entered: Preprocessing, tile: int = 0) -> None:
        if len(net.inputs) != 1 or len(net.outputs) != 1:
            raise UserError("a net that enlarges has one input and one output (a deploy net)")
        self._net = net
        self._input, self._output = net.inputs[0], net.outputs[0]
        if len(shape := net.blobs[self._input].shape) != 4 or shape[1] != 3:
            raise UserError(f"a net that enlarges takes colour images, 1x3xHxW, not {shape}")
        out = net.blobs[self._output].shape
        self.scale = out[-1] // shape[-1]
        larger = tuple(extent * self.scale for extent in shape[2:])
        if self.scale < 2 or out[1:] != (3, *larger):
            raise UserError(
                f"the net makes {out} of {shape}: it must enlarge by an integer factor, with "
                "the same channels"
            )
        self._tile, self._margin = tile, reach(net.param) if tile else 0
        mean = entered.mean()
        if mean is not None and mean.ndim > 1:
            raise UserError(f"{entered.origin}: the mean of an image of any size is a colour")
        self._mean = np.float32(0) if mean is None else mean.reshape(-1, 1, 1)
        self._factor = np.float32(entered.scale)

    def enlarge(self, image: np.ndarray) -> np.ndarray:
        """The bytes of an image `scale` times as large."""
        height, width = image.shape[1:]
        scale, tile = self.scale, self._tile or max(height, width)
        large = np.empty((3, height * scale, width * scale), np.uint8)
        for down in parts(height, tile, self._margin):
            for across in parts(width, tile, self._margin):
                piece = self._run(image[:, down.start : down.stop, across.start : across.stop])
                rows, columns = (
                    slice((part.keep - part.start) * scale, (part.end - part.start) * scale)
                    for part in (down, across)
                )
                to_rows, to_columns = (
                    slice(part.keep * scale, part.end * scale) for part in (down, across)
                )
                large[:, to_rows, to_columns] = piece[:, rows, columns]
        return large

    def _run(self, image: np.ndarray) -> np.ndarray:
        values = (image.astype(np.float32) - self._mean) * self._factor
        if self._net.blobs[self._input].shape != (1, *values.shape):
            self._net.reshape({self._input: (1, *values.shape)})
        self._net.write(self._input, values[None])
        self._net.forward()
        pixels = self._net.read(self._output)[0] / self._factor + self._mean
        return np.floor(pixels.clip(0, 255) + 0.5).astype(np.uint8)
