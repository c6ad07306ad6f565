"""Pooling, one number for each window of each channel, and SPP, a pyramid of poolings."""

from __future__ import annotations

import math
from typing import Any

from ...proto import caffe_pb2
from ..base import Blob, Blobs, Flags, Layer, Program, Shape, Shapes, Tensor, register
from .convolution import Window, read_window


@register("Pooling")
class Pooling(Layer):
    """The maximum, average or a random element of each window (a second top: where it stood)."""

    tops = (1, 2)
    non_differentiable_tops = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.pooling_param
        self.method = param.PoolMethod.Name(param.pool)
        self.derived = self.method == "MAX"
        self.check_axes(bottom[0])
        if len(self.param.top) > 1 and self.method != "MAX":
            self.fail("top", "a second one (the mask) exists for MAX pooling only")
        extents = bottom[0][2:]
        if param.global_pooling:
            self.window = self._global_window(extents)
            out: Shape = (1, 1)
        else:
            self.window = read_window(self, "pooling_param", 2)
            out = self._positions(extents)
        self.settings: dict[str, Any] = {"kernel": self.window.kernel, "stride": self.window.stride}
        if self.method != "STOCHASTIC":
            self.settings |= {"pad": self.window.pad}
        elif any(self.window.pad):
            self.fail("pooling_param.pad", "is for MAX and AVE pooling only")
        return [(*bottom[0][:2], *out)] * max(1, len(self.param.top))

    def _global_window(self, extents: Shape) -> Window:
        param = self.param.pooling_param
        for field in ("kernel_size", "kernel_h", "kernel_w"):
            if param.HasField(field):
                self.fail(f"pooling_param.{field}", "cannot be given with global_pooling")
        window = Window(extents, (1, 1), (0, 0), (1, 1))
        for field, least in (("pad", 0), ("stride", 1)):
            for name in (field, f"{field}_h", f"{field}_w"):
                if param.HasField(name) and getattr(param, name) != least:
                    self.fail(f"pooling_param.{name}", f"must be {least} with global_pooling")
        return window

    def _positions(self, extents: Shape) -> Shape:
        """Caffe's extents: rounded up (or down), then no window that begins in the far padding."""
        param, window = self.param.pooling_param, self.window
        # Two spellings: BVLC's, and that of several forks.
        down = param.RoundMode.Name(param.round_mode) == "FLOOR" or not param.ceil_mode
        out = []
        for x, kernel, stride, pad in zip(
            extents, window.kernel, window.stride, window.pad, strict=True
        ):
            if pad >= kernel:
                self.fail("pooling_param.pad", f"is {pad}: it must be less than kernel {kernel}")
            room = x + 2 * pad - kernel  # less than 0: a window may still reach beyond the image
            count = (room if down else room + stride - 1) // stride + 1
            if count < 1:
                text = f"a window of {kernel} with pad {pad} does not fit extent {x}"
                self.fail("pooling_param.kernel_size", text)
            if any(window.pad) and (count - 1) * stride >= x + pad:
                count -= 1
            if (count - 1) * stride >= x + pad:
                text = f"the last window of {kernel} at stride {stride} lies outside extent {x}"
                self.fail("pooling_param.stride", f"{text}: use round_mode: FLOOR")
            out.append(count)
        return tuple(out)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data, top[0].data
        if self.method == "AVE":
            program.average_pooling(x, y, **self.settings)
            return
        masked = len(top) > 1
        self.index = self.tensor(y.shape, "int32", flexible=not masked)
        if self.method == "MAX":
            program.max_pooling(x, y, self.index, **self.settings)
        else:
            train = self.phase == "TRAIN"
            program.stochastic_pooling(x, y, self.index, **self.settings, key=self.key, train=train)
        if masked:
            top[1].keep_exact()  # in 16 bits a place would become another
            program.copy(self.index, top[1].data)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff, bottom[0].diff
        if self.method == "AVE":
            program.average_pooling_backward(dy, dx, **self.settings)
            return
        if self.method == "STOCHASTIC" and self.phase == "TEST":
            self._backward_expected(program, top[0], bottom[0])
            return
        settings = self.settings | {"pad": self.window.pad}
        program.max_pooling_backward(dy, self.index, dx, **settings)

    def _backward_expected(self, program: Program, top: Blob, bottom: Blob) -> None:
        """The gradient of y = sum(x^2) / sum(x) over a window: dx = dy * (2 x - y) / sum(x)."""
        x, y, dy, dx = bottom.data, top.data, top.diff, bottom.diff
        settings = self.settings | {"pad": self.window.pad}
        mean, rise, fall = (self.tensor(y.shape) for _ in range(3))
        program.average_pooling(x, mean, **settings)
        formula = "y = where(a > 0, b / max(a, 1e-30), 0)"
        program.elementwise([mean, dy], [rise], formula=formula)
        program.elementwise([rise, y], [fall], formula="y = a * b")
        rises = self.tensor(x.shape)
        program.average_pooling_backward(rise, rises, **settings)
        program.average_pooling_backward(fall, dx, **settings)
        program.elementwise([x, rises, dx], [dx], formula="y = 2 * a * b - c")


def pooling_of(
    layer: Layer, method: str, kernel: Shape, stride: Shape, pad: Shape, key: int
) -> Pooling:
    """A pooling that does a part of a layer's work."""
    param = caffe_pb2.LayerParameter(name=layer.name, type="Pooling", top=["y"])
    settings = param.pooling_param
    settings.pool = getattr(settings, method)
    settings.kernel_h, settings.kernel_w = kernel
    settings.stride_h, settings.stride_w = stride
    settings.pad_h, settings.pad_w = pad
    return layer.delegate(Pooling, param, key)


@register("SPP")
class SPP(Layer):
    """Poolings into 1, 4, 16 ... windows, put after one another (He et al. 2014)."""

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.spp_param, bottom[0]
        self.check_axes(shape)
        self.check_positive("spp_param", "pyramid_height")
        levels = range(param.pyramid_height)
        self.levels = [self._level(2**level, shape) for level in levels]
        shapes = [pooling.setup([shape])[0] for pooling in self.levels]
        self.pooled = [Blob(f"{self.name}.{i}", pooled) for i, pooled in enumerate(shapes)]
        if len(shapes) == 1:
            return shapes
        return [(shape[0], sum(math.prod(pooled[1:]) for pooled in shapes))]

    def _level(self, bins: int, shape: Shape) -> Pooling:
        """A pooling into bins x bins windows, padded where they do not divide the image."""
        param = self.param.spp_param
        kernel = tuple(-(-extent // bins) for extent in shape[2:])
        pads = [(size * bins - n + 1) // 2 for size, n in zip(kernel, shape[2:], strict=True)]
        for extent, size, pad in zip(shape[2:], kernel, pads, strict=True):
            if pad >= size:
                text = f"one of its levels would cut extent {extent} into {bins} windows"
                self.fail("spp_param.pyramid_height", text)
        method, key = param.PoolMethod.Name(param.pool), self.key * 64 + bins
        return pooling_of(self, method, kernel, kernel, tuple(pads), key)

    def _flat(self, tensor: Tensor) -> Tensor:
        return tensor.view((tensor.shape[0], tensor.count // tensor.shape[0]))

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        if len(self.levels) == 1:
            self.levels[0].forward(program, bottom, top)
            return
        for pooling, blob in zip(self.levels, self.pooled, strict=True):
            pooling.forward(program, bottom, [blob])
        program.concat([self._flat(blob.data) for blob in self.pooled], top[0].data, axis=1)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if len(self.levels) == 1:
            self.levels[0].backward(program, top, propagate_down, bottom)
            return
        program.split(top[0].diff, [self._flat(blob.diff) for blob in self.pooled], axis=1)
        parts = [Blob(f"{self.name}.dx", bottom[0].shape) for _ in self.levels]
        for pooling, blob, part in zip(self.levels, self.pooled, parts, strict=True):
            pooling.backward(program, [blob], propagate_down, [part])
        program.sum([part.diff for part in parts], bottom[0].diff)
