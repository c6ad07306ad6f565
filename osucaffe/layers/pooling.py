"""Owns Pooling: one number for each window of each channel."""

from __future__ import annotations

from ..backends.primitives import Program
from ..backends.tensor import Shape
from ..blob import Blob
from ..layer import Layer, register
from .window import Window, read_window


@register("Pooling")
class Pooling(Layer):
    """The maximum, average or a random element of each window (a second top: where it stood)."""

    tops = (1, 2)

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param = self.param.pooling_param
        self.method = param.PoolMethod.Name(param.pool)
        if len(bottom[0]) != 4:
            self.fail("bottom", f"has shape {bottom[0]}, but must be N x C x H x W")
        if len(self.param.top) > 1 and self.method != "MAX":
            self.fail("top", "a second one (the mask) exists for MAX pooling only")
        extents = bottom[0][2:]
        if param.global_pooling:
            self.window = self._whole(extents)
            out: Shape = (1, 1)
        else:
            self.window = read_window(self, "pooling_param", 2)
            out = self._positions(extents)
        self.settings = {"kernel": self.window.kernel, "stride": self.window.stride}
        if self.method == "STOCHASTIC":
            if any(self.window.pad):
                self.fail("pooling_param.pad", "is for MAX and AVE pooling only")
        else:
            self.settings["pad"] = self.window.pad
        return [(*bottom[0][:2], *out)] * max(1, len(self.param.top))

    def _whole(self, extents: Shape) -> Window:
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
        down = param.RoundMode.Name(param.round_mode) == "FLOOR"
        out = []
        for x, kernel, stride, pad in zip(
            extents, window.kernel, window.stride, window.pad, strict=True
        ):
            if pad >= kernel:
                self.fail("pooling_param.pad", f"is {pad}: it must be less than kernel {kernel}")
            room = x + 2 * pad - kernel
            if room < 0:
                self.fail(
                    "pooling_param.kernel_size",
                    f"a window of {kernel} with pad {pad} does not fit extent {x}",
                )
            count = (room if down else room + stride - 1) // stride + 1
            if any(window.pad) and (count - 1) * stride >= x + pad:
                count -= 1
            if (count - 1) * stride >= x + pad:
                self.fail(
                    "pooling_param.stride",
                    f"the last window of {kernel} at stride {stride} lies outside extent {x}: "
                    "use round_mode: FLOOR",
                )
            out.append(count)
        return tuple(out)

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
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
            program.stochastic_pooling(
                x, y, self.index, **self.settings, key=self.key, train=train
            )
        if masked:
            program.copy(self.index, top[1].data)

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if not propagate_down[0]:
            return
        dy, dx = top[0].diff, bottom[0].diff
        if self.method == "AVE":
            program.average_pooling_backward(dy, dx, **self.settings)
            return
        if self.method == "STOCHASTIC" and self.phase == "TEST":
            self.fail("pooling_param.pool", "STOCHASTIC has a gradient in the TRAIN phase only")
        settings = {**self.settings, "pad": self.window.pad}
        program.max_pooling_backward(dy, self.index, dx, **settings)
