"""C3D's layers of clips (N x C x frames x H x W): Convolution3D and Pooling3D.

facebookarchive/C3D: version 1.1 has messages of their own for them, 1.0 further fields of
convolution_param and pooling_param. What is said once holds for height and width.
"""

from __future__ import annotations

import math
from typing import Any

from ...layers.base import Blob, Blobs, Flags, Layer, Program, Shapes, register
from ...layers.core.convolution import Convolution
from ...layers.core.pooling import Pooling, pooling_of
from ...proto import caffe_pb2


def _number(layer: Layer, message: str, field: str, default: int) -> int:
    """A field that others repeat; UserError where it is."""
    value = getattr(getattr(layer.param, message), field, default)
    values = [value] if isinstance(value, int) else [*value] or [default]
    if len(values) > 1:
        layer.fail(f"{message}.{field}", f"is {values}: C3D has one, for height and width")
    return int(values[0])


def _read(layer: Layer, ours: str, older: str) -> tuple[str, Any, int, int]:
    """The field that holds a layer's settings, these, and the kernel: frames, and their pixels."""
    field = ours if layer.param.HasField(ours) else older
    if field == ours and layer.param.HasField(older):
        layer.fail(older, f"cannot be combined with {ours}")
    param = getattr(layer.param, field)
    depth, size = (_number(layer, field, name, 0) for name in ("kernel_depth", "kernel_size"))
    for name, value in (("kernel_depth", depth), ("kernel_size", size)):
        if value < 1:
            layer.fail(f"{field}.{name}", "must be at least 1")
    return field, param, depth, size


@register("Convolution3D")
class Convolution3D(Convolution):
    """Convolution over frames, height and width (C3D)."""

    messages = ("convolution3d_param", "convolution_param")

    def __init__(self, param: Any, phase: str, *, key: int = 0, seed: int = 0) -> None:
        copy = caffe_pb2.LayerParameter()
        copy.CopyFrom(param)
        super().__init__(copy, phase, key=key, seed=seed)
        field, given, depth, size = _read(self, self.messages[0], self.messages[1])
        equivalent = caffe_pb2.ConvolutionParameter(
            num_output=given.num_output, bias_term=given.bias_term, kernel_size=[depth, size, size]
        )
        for name, over_frames, default in (
            ("pad", "temporal_pad", 0),
            ("stride", "temporal_stride", 1),
        ):
            frames, pixels = (_number(self, field, each, default) for each in (over_frames, name))
            getattr(equivalent, name).extend([frames, pixels, pixels])
        equivalent.weight_filler.CopyFrom(given.weight_filler)
        equivalent.bias_filler.CopyFrom(given.bias_filler)
        copy.convolution_param.CopyFrom(equivalent)
        self.saved_shapes = ((1, 1, 1, 1, given.num_output),)

    def setup(self, bottom: Shapes) -> Shapes:
        self.check_axes(bottom[0], "N x C x frames x H x W")
        return super().setup(bottom)


@register("Pooling3D")
class Pooling3D(Layer):
    """The maximum or average over frames, height and width (C3D): of pixels, and then of frames."""

    messages = ("pooling3d_param", "pooling_param")

    def setup(self, bottom: Shapes) -> Shapes:
        shape = bottom[0]
        self.check_axes(shape, "N x C x frames x H x W")
        field, param, depth, size = _read(self, self.messages[0], self.messages[1])
        method = param.PoolMethod.Name(param.pool)
        if method == "STOCHASTIC":
            self.fail(f"{field}.pool", "must be MAX or AVE")
        stride, pad = _number(self, field, "stride", 1), _number(self, field, "pad", 0)
        if pad and method == "MAX":
            self.fail(f"{field}.pad", "is for AVE pooling only")
        # A maximum of maxima is the maximum, and so with averages.
        self.pixels = pooling_of(self, method, (size,) * 2, (stride,) * 2, (pad,) * 2, self.key)
        self.frames = pooling_of(
            self, method, (depth, 1), (param.temporal_stride, 1), (0, 0), self.key
        )
        self.flat = (shape[0], shape[1] * shape[2], *shape[3:])
        small = self.pixels.setup([self.flat])[0]
        expected = tuple(-(-(extent + 2 * pad - size) // stride) + 1 for extent in shape[3:])
        if small[2:] != expected:
            self.fail(f"{field}.pad", "lets the last windows lie in the padding: make it less")
        self.between = Blob(f"{self.name}.pixels", small)
        self.columns = (shape[0], shape[1], shape[2], math.prod(small[2:]))
        self.pooled = self.frames.setup([self.columns])[0]
        return [(*shape[:2], self.pooled[2], *small[2:])]

    def _parts(self, bottom: Blob, top: Blob) -> list[tuple[Pooling, Blob, Blob]]:
        """The two poolings, each with its bottom and top."""
        return [
            (self.pixels, bottom.view(self.flat), self.between),
            (self.frames, self.between.view(self.columns), top.view(self.pooled)),
        ]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        for pooling, x, y in self._parts(bottom[0], top[0]):
            pooling.forward(program, [x], [y])

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        for pooling, x, y in reversed(self._parts(bottom[0], top[0])):
            pooling.backward(program, [y], propagate_down, [x])
