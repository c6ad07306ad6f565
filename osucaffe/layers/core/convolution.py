"""Convolution, its transpose and Im2col, and how sliding windows are read: kernel, stride, pad
and dilation by axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..base import Blobs, Flags, Layer, Program, Shape, Shapes, Tensor, register

MAX_FIELD = 2**30
"""Of any of these numbers: what is computed with them is within an int."""


@dataclass(frozen=True)
class Window:
    """A sliding window: one number for each spatial axis."""

    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape

    @property
    def settings(self) -> dict[str, Any]:
        """What convolution primitives want, besides the kernel."""
        return {"stride": self.stride, "pad": self.pad, "dilation": self.dilation}

    @property
    def reach(self) -> Shape:
        """How far each kernel reaches, holes included."""
        pairs = zip(self.kernel, self.dilation, strict=True)
        return tuple(dilation * (kernel - 1) + 1 for kernel, dilation in pairs)

    def positions(self, extents: Shape) -> Shape:
        """How often the window fits into padded extents (may be less than 1: it does not)."""
        axes = zip(extents, self.reach, self.stride, self.pad, strict=True)
        return tuple((x + 2 * pad - reach) // stride + 1 for x, reach, stride, pad in axes)

    def covered(self, positions: Shape) -> Shape:
        """The extents that that many positions cover, less padding (transposed convolution)."""
        axes = zip(positions, self.reach, self.stride, self.pad, strict=True)
        return tuple((x - 1) * stride + reach - 2 * pad for x, reach, stride, pad in axes)


_MAX_TAPS = 1 << 20
"""Of a kernel: an image bounds that of a convolution, but nothing that of its transpose."""


def read_window(layer: Layer, field: str, axes: int) -> Window:
    """Read `kernel_size`, `stride`, `pad`, `dilation` (or `kernel_h`, ...) of layer.param.field."""
    kernel = _by_axis(layer, field, "kernel_size", axes, None, least=1)
    if math.prod(kernel) > _MAX_TAPS:
        text = f"is {' x '.join(map(str, kernel))}: more than {_MAX_TAPS:,} elements"
        layer.fail(f"{field}.kernel_size", text)
    return Window(
        kernel=kernel,
        stride=_by_axis(layer, field, "stride", axes, 1, least=1),
        pad=_by_axis(layer, field, "pad", axes, 0, least=0),
        dilation=_by_axis(layer, field, "dilation", axes, 1, least=1),
    )


def _by_axis(
    layer: Layer, field: str, name: str, axes: int, default: int | None, *, least: int
) -> Shape:
    """One number for each axis: given as one for all, one each, or by `_h` and `_w`."""
    param: Any = getattr(layer.param, field)
    fields = param.DESCRIPTOR.fields_by_name
    if name not in fields:
        return (1,) * axes
    value = getattr(param, name)
    if isinstance(value, int):
        given = [value] if param.HasField(name) else []
    else:
        given = list(value)
    by_letter = [f"{name.removesuffix('_size')}_{letter}" for letter in "hw"]
    present = [side for side in by_letter if side in fields and param.HasField(side)]
    where = f"{field}.{name}"
    if present:
        where = f"{field}.{present[0]}"
        if given:
            layer.fail(where, f"cannot be combined with {name}: give one or the other")
        if axes != 2:
            layer.fail(where, f"is for 2 spatial axes, here are {axes}: give {name} for each")
        if len(present) == 1 and least > 0:
            missing = next(side for side in by_letter if side not in present)
            layer.fail(where, f"needs {missing}, too")
        given = [getattr(param, side) for side in by_letter]
    elif not given:
        if default is None:
            layer.fail(where, "is missing")
        given = [default]
    if len(given) not in (1, axes):
        layer.fail(where, f"is given {len(given)} times: give it once, or for each of {axes} axes")
    for number in given:
        if number < least:
            layer.fail(where, f"is {number}: it must be at least {least}")
        if number > MAX_FIELD:
            layer.fail(where, f"is {number}: it must be at most {MAX_FIELD}")
    return tuple(given) if len(given) == axes else tuple(given) * axes


class Filters(Layer):
    """What both directions share: parameters, extents, axes folded to (N, C, spatial ...)."""

    messages: tuple[str, ...] = ("convolution_param",)
    bottoms = tops = (1, None)
    transposed = False

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.convolution_param
        channel_axis = self.axis(param.axis, len(bottom[0]), "convolution_param.axis")
        outer, channels = bottom[0][:channel_axis], bottom[0][channel_axis]
        extents = bottom[0][channel_axis + 1 :]
        self.check_alike(bottom)
        if len(self.param.top) != len(bottom):
            self.fail("top", f"needs as many as bottoms: {len(bottom)}")
        outputs, self.group = param.num_output, param.group
        self.check_positive("convolution_param", "num_output")
        if self.group < 1 or channels % self.group or outputs % self.group:
            text = f"is {self.group}: it must divide {channels} channels and {outputs} outputs"
            self.fail("convolution_param.group", text)
        window = read_window(self, "convolution_param", len(extents))
        out = window.covered(extents) if self.transposed else window.positions(extents)
        check_fit(self, window, extents, out)
        first, second = (channels, outputs) if self.transposed else (outputs, channels)
        shape = (first, second // self.group, *window.kernel)
        self.add_parameter(shape, param.weight_filler)
        if param.bias_term:
            self.add_parameter((outputs,), param.bias_filler)
        # The primitives want exactly one axis before the channels and at least one after them.
        self.native = channel_axis == 1 and bool(extents)
        self.channel_axis, self.outer = channel_axis, math.prod(outer)
        window = window if extents else Window((1,), (1,), (0,), (1,))
        self.settings: dict[str, Any] = {**window.settings, "group": self.group}
        return [(*outer, outputs, *out)] * len(bottom)

    def image(self, tensor: Tensor) -> Tensor:
        """A bottom or top as (N, C, spatial ...)."""
        if self.native:
            return tensor
        channels, *extents = tensor.shape[self.channel_axis :]
        return tensor.view((self.outer, channels, *(extents or (1,))))

    def weights(self, tensor: Tensor) -> Tensor:
        """The weights or their gradient with at least one spatial axis."""
        return tensor if len(tensor.shape) > 2 else tensor.view((*tensor.shape, 1))

    @property
    def weight(self) -> Tensor:
        return self.weights(self.parameters[0].data)

    @property
    def bias(self) -> Tensor | None:
        return self.parameters[1].data if len(self.parameters) > 1 else None

    def gradients(self) -> tuple[Tensor | None, Tensor | None]:
        """Those of weights and bias, where needed."""
        gradient = self.gradient(0)
        return (None if gradient is None else self.weights(gradient)), self.gradient(1)


@register("Convolution")
class Convolution(Filters):
    """Correlation with learned filters: any number of spatial axes, groups, dilation."""

    derived = True

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        for x, y in zip(bottom, top, strict=True):
            x_data, y_data = self.image(x.data), self.image(y.data)
            program.convolution(x_data, self.weight, self.bias, y_data, **self.settings)


@register("Deconvolution")
class Deconvolution(Filters):
    """The transpose of Convolution: each input pixel adds a filter to the output."""

    transposed = True

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        for x, y in zip(bottom, top, strict=True):
            x_data, y_data = self.image(x.data), self.image(y.data)
            program.convolution_backward_data(x_data, self.weight, y_data, **self.settings)
            if self.bias is not None:
                bias = self.bias.view((1, *self.bias.shape, *[1] * (len(y_data.shape) - 2)))
                program.broadcast([y_data, bias], [y_data], formula="y = a + b")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dw, db = self.gradients()
        for x, y, down in zip(bottom, top, propagate_down, strict=True):
            dy, x_data = self.image(y.diff), self.image(x.data)
            if dw is not None:
                program.convolution_backward_filter(dy, x_data, dw, None, **self.settings)
            if db is not None:
                others = [axis for axis in range(len(dy.shape)) if axis != 1]
                program.reduce([dy], db, formula="y = a", axes=others)
            if down:
                program.convolution(dy, self.weight, None, self.image(x.diff), **self.settings)


@register("Im2col")
class Im2col(Layer):
    """Every window of the image as a column of channels."""

    messages = ("convolution_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        shape, param = bottom[0], self.param.convolution_param
        axis = self.axis(param.axis, len(shape), "convolution_param.axis")
        if axis == len(shape) - 1:
            self.fail("bottom", f"{shape} has no spatial axis after axis {axis}")
        self.window = read_window(self, "convolution_param", len(shape) - axis - 1)
        out = self.window.positions(shape[axis + 1 :])
        check_fit(self, self.window, shape[axis + 1 :], out)
        channels = shape[axis] * math.prod(self.window.kernel)
        self.small = (math.prod(shape[:axis]), *shape[axis:])
        self.large = (self.small[0], channels, *out)
        return [(*shape[:axis], channels, *out)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data.view(self.small), top[0].data.view(self.large)
        program.im2col(x, y, kernel=self.window.kernel, **self.window.settings)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff.view(self.large), bottom[0].diff.view(self.small)
        program.im2col_backward(dy, dx, kernel=self.window.kernel, **self.window.settings)


def check_fit(layer: Layer, window: Window, extents: Shape, out: Shape) -> None:
    """Refuse a window that has no position in these extents."""
    if min(out, default=1) < 1:
        sizes = (window.reach, window.pad, extents)
        reach, pad, image = ("x".join(map(str, size)) for size in sizes)
        text = f"a window of {reach} with pad {pad} does not fit an image of {image}"
        layer.fail("convolution_param.kernel_size", text)
