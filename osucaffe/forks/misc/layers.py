"""The layers of forks that brought only one or two: grouped convolutions, Lstm, SeLu, Gather,
CropCenter."""

from __future__ import annotations

import logging
import math

import numpy as np

from ...layers.base import (
    Blob,
    Blobs,
    Count,
    Flags,
    Layer,
    Program,
    Shapes,
    Tensor,
    pass_on,
    register,
)
from ...layers.core.convolution import Convolution
from ...layers.core.elementwise import Elementwise
from ...layers.core.recurrent import LSTM_DERIVATIVE, LSTM_FORMULA, Recurrent

log = logging.getLogger("osucaffe")


@register("DepthwiseConvolution")
class DepthwiseConvolution(Convolution):
    """Convolution; the name promises as many groups as channels, and `group` says them."""


@register("ConvolutionDepthwise")
class ConvolutionDepthwise(Convolution):
    """One filter for each channel, whatever num_output and group say."""

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.convolution_param
        axis = self.axis(param.axis, len(bottom[0]), "convolution_param.axis")
        channels = bottom[0][axis]
        for field in "num_output", "group":
            if param.HasField(field) and getattr(param, field) != channels:
                text = (
                    "%s, convolution_param.%s: has no effect: each of the %d channels has a filter"
                )
                log.warning(text, self.title, field, channels)
        param.num_output = param.group = channels
        return super().setup(bottom)


@register("CropCenter")
class CropCenter(Layer):
    """Without so much at both ends of each axis (waifu2x)."""

    def setup(self, bottom: Shapes) -> Shapes:
        shape, self.cut = bottom[0], tuple(self.param.crop_center_param.crop_size)
        if len(self.cut) != len(shape):
            self.fail("crop_center_param.crop_size", f"needs {len(shape)} numbers, one per axis")
        if any(2 * cut >= extent for cut, extent in zip(self.cut, shape, strict=True)):
            self.fail("crop_center_param.crop_size", f"{self.cut} leaves nothing of {shape}")
        return [tuple(extent - 2 * cut for cut, extent in zip(self.cut, shape, strict=True))]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.crop(bottom[0].data, top[0].data, offsets=self.cut)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.crop_backward(top[0].diff, bottom[0].diff, offsets=self.cut)


@register("Gather")
class Gather(Layer):
    """The bottoms (TSN, whose ranks see one another's items: here each keeps its own)."""

    bottoms: Count = (1, None)
    tops: Count = (1, None)

    def setup(self, bottom: Shapes) -> Shapes:
        if len(self.param.top) != len(bottom):
            self.fail("top", f"needs {len(bottom)}, one for each bottom")
        return bottom

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        for x, y in zip(bottom, top, strict=True):
            program.copy(x.data, y.data)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        for y, x, needs_gradient in zip(top, bottom, propagate_down, strict=True):
            if needs_gradient:
                program.copy(y.diff, x.diff)


@register("Lstm")
class Lstm(Recurrent):
    """LSTM cells over x (T * batch_size, ...): steps of batch_size sequences, one after another.

    A second bottom (T * batch_size): 0 where a sequence begins. With it, states live on from one
    forward pass to the next; without, all sequences begin with the pass. clipping_threshold
    bounds the gradients of what the gates are given.
    """

    bottoms: Count = (1, 2)
    tops: Count = (1, 1)
    messages = ("lstm_param",)
    parts, states = 4, 2
    exposed = static = False
    recurrent_index, bias_index = 1, 2
    formula = LSTM_FORMULA

    def setup(self, bottom: Shapes) -> Shapes:
        param, x = self.param.lstm_param, bottom[0]
        self.size, items = param.num_output, param.batch_size
        self.check_positive("lstm_param", "num_output", "batch_size")
        if x[0] % items:
            self.fail("lstm_param.batch_size", f"is {items}, but x is {x}: it must divide {x[0]}")
        if len(bottom) > 1 and math.prod(bottom[1]) != x[0]:
            self.fail("bottom[1]", f"has shape {bottom[1]}, but x, which is {x}, needs {x[0]}")
        self.steps, inputs = (x[0] // items, items), math.prod(x[1:])
        for shape in ((4 * self.size, inputs), (4 * self.size, self.size)):
            self.add_parameter(shape, param.weight_filler)
        self.add_parameter((4 * self.size,), param.bias_filler)
        self.derivative, most = LSTM_DERIVATIVE, param.clipping_threshold
        if most > 0:
            names = [f"dx{i}" for i in range(4)]
            bounds = [f"{name} = max(-{most!r}, min({most!r}, {name}))" for name in names]
            self.derivative = ";".join([LSTM_DERIVATIVE, *bounds])
        self.keep = self.tensor(self.steps, persistent=True)
        if len(bottom) < 2:
            later = np.ones(self.steps, np.float32)
            later[0] = 0
            self.initial = [(self.keep, later)]
        return [(x[0], self.size)]

    def _seen(self, bottom: Blobs, top: Blobs) -> tuple[Blobs, Blobs]:
        keep = Blob(f"{self.name}.keep", self.steps)
        keep.data = bottom[1].data.view(self.steps) if len(bottom) > 1 else self.keep
        x = bottom[0].view((*self.steps, bottom[0].data.count // math.prod(self.steps)))
        return [x, keep], [top[0].view((*self.steps, self.size))]

    def first_states(self, program: Program, bottom: Blobs) -> list[Tensor]:
        if len(self.param.bottom) > 1:
            return super().first_states(program, bottom)
        first = [self.tensor((self.steps[1], self.size)) for _ in range(self.states)]
        for state in first:
            program.fill(state, value=0.0)
        return first

    def last_states(self, program: Program, tensors: list[Tensor], top: Blobs) -> None:
        if len(self.param.bottom) > 1:
            super().last_states(program, tensors, top)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        super().forward(program, *self._seen(bottom, top))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        bottoms, tops = self._seen(bottom, top)
        super().backward(program, tops, propagate_down, bottoms)


@register("SeLu")
class SeLu(Elementwise):
    """y = lambda * x where it is positive, else lambda * alpha * (exp(x) - 1)."""

    value = "y = rate * where(a > 0, a, alpha * expm1(min(a, 0)))"
    derivative = "y = a * rate * where(b > 0, 1, alpha * exp(min(b, 0)))"
    from_input = True

    def read_constants(self) -> dict[str, float]:
        param = self.param.selu_param
        return {"alpha": param.alpha, "rate": getattr(param, "lambda")}


@register("SeLuDropout")
class SeLuDropout(Layer):
    """Dropout, in training, to alpha instead of 0, scaled and shifted to keep mean and variance."""

    in_place = True
    messages = ("selu_dropout_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.selu_dropout_param
        self.ratio = param.dropout_ratio
        if not 0 <= self.ratio < 1:
            self.fail("selu_dropout_param.dropout_ratio", f"is {self.ratio}: it must be in [0, 1)")
        keep = 1 - self.ratio
        scale = (keep * (1 + param.alpha**2 * self.ratio)) ** -0.5
        shift = -scale * self.ratio * param.alpha
        self.constants = {"scale": scale, "dropped": scale * param.alpha + shift, "shift": shift}
        return bottom

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data, top[0].data
        if self.phase == "TEST":
            pass_on(program, x, y)
            return
        ones, self.keep = self.tensor(x.shape), self.tensor(x.shape)
        program.fill(ones, value=1.0)
        mask = self.tensor(x.shape, "uint8")
        program.dropout(ones, self.keep, mask, ratio=self.ratio, key=self.key)
        formula = "y = where(b > 0, scale * a + shift, dropped)"
        program.elementwise([x, self.keep], [y], formula=formula, constants=self.constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff, bottom[0].diff
        if self.phase == "TRAIN":
            formula = "y = where(b > 0, scale * a, 0)"
            program.elementwise([dy, self.keep], [dx], formula=formula, constants=self.constants)
        else:
            pass_on(program, dy, dx)
