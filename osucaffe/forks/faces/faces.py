"""CenterLoss, ChannelScale, Flip, and GlobalLSEMargin, whose margin follows the batches."""

from __future__ import annotations

import math

import numpy as np

from ...layers.base import Blobs, Flags, Layer, Program, Shapes, Tensor, register
from ...layers.core.channelwise import LARGEST, WITHIN, bounds_of
from ...layers.core.combine import ByPosition
from ...layers.core.losses import Loss


@register("CenterLoss")
class CenterLoss(Loss):
    """Half the mean squared distance of features to the centers of their classes (Wen et al. 2016).

    Parameter: the centers (num_output, features). What moves a center is the sum of its distances
    to the features of its class over their number plus 1, whatever the loss weighs.
    """

    messages = ("center_loss_param",)
    no_gradient = (1,)
    share: Tensor

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.center_loss_param
        self.check_batches(bottom)
        axis = self.axis(param.axis, len(bottom[0]), "center_loss_param.axis")
        self.check_positive("center_loss_param", "num_output")
        items = math.prod(bottom[0][:axis])
        self.take_labels(bottom, items, param.num_output)
        self.features = (items, math.prod(bottom[0]) // items)
        self.add_parameter((param.num_output, self.features[1]), param.center_filler)
        self.share = self.tensor((1, 1), persistent=True)
        self.initial.append((self.share, np.ones((1, 1), np.float32)))
        return [()]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, self.labels = bottom[0].data.view(self.features), bottom[1].data.view(self.features[:1])
        picked, self.distance = self.tensor(self.features), self.tensor(self.features)
        program.gather(self.parameters[0].data, self.labels, picked)
        program.elementwise([x, picked], [self.distance], formula="y = a - b")
        share = {"share": 0.5 / self.features[0]}
        formula = "y = share * a * a"
        program.reduce([self.distance], top[0].data, formula=formula, axes=(0, 1), constants=share)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if (dw := self.gradient(0)) is not None:
            ones = self.tensor((self.features[0], 1))
            total, count = self.tensor(dw.shape), self.tensor((dw.shape[0], 1))
            program.fill(ones, value=1.0)
            program.gather_backward(self.distance, self.labels, total)
            program.gather_backward(ones, self.labels, count)
            parts, formula = [total, count, self.share], "y = -c * a / (1 + b)"
            if (scale := self.context.loss_scale) is not None:
                parts, formula = [*parts, scale.view((1, 1))], formula + " * d"
            program.reduce(parts, dw, formula=formula, axes=())
        if propagate_down[0]:
            inputs = [self.distance, top[0].diff.view((1, 1))]
            dx, share = bottom[0].diff.view(self.features), {"share": 1 / self.features[0]}
            program.broadcast(inputs, [dx], formula="y = share * a * b", constants=share)


@register("ChannelScale")
class ChannelScale(ByPosition):
    """bottom[0] times bottom[1], one number for all channels of a position (NormFace)."""

    messages = ("channel_scale_param",)


@register("Flip")
class Flip(Layer):
    """Images mirrored, left to right or top to bottom (NormFace)."""

    messages = ("flip_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.flip_param, bottom[0]
        self.check_axes(shape)
        axes = [axis for axis, flips in ((3, param.flip_width), (2, param.flip_height)) if flips]
        self.orders = {axis: self.tensor((shape[axis],), persistent=True) for axis in axes}
        for axis, order in self.orders.items():
            self.initial.append((order, np.arange(shape[axis])[::-1].astype(np.float32)))
        return [shape]

    def _flip(self, program: Program, x: Tensor, y: Tensor) -> None:
        if not self.orders:
            program.copy(x, y)
        for number, (axis, order) in enumerate(self.orders.items()):
            parts = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
            first, flipped = (self.tensor((parts[1], parts[0], parts[2])) for _ in range(2))
            program.permute((y if number else x).view(parts), first, axes=(1, 0, 2))
            program.gather(first, order, flipped)
            program.permute(flipped, y.view(parts), axes=(1, 0, 2))

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self._flip(program, bottom[0].data, top[0].data)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self._flip(program, top[0].diff, bottom[0].diff)


_FIRST_SCALE = 30.0
_NEAR, _STILL = 0.1, 0.001
_FIRST_STEPS = 20
_KEPT = 0.9


def mean_shift(values: np.ndarray, start: float, steps: int) -> float:
    """Where values lie close, found from a start: the mean of those within 0.1, again and again.

    Where there are none, the search begins again at the mean of all.
    """
    at = start
    for _ in range(steps):
        near = values[np.abs(values - at) < _NEAR]
        if not len(near):
            at = float(values.mean())
            near = values[np.abs(values - at) < _NEAR]
        before, at = at, float(near.mean()) if len(near) else at
        if abs(at - before) < _STILL:
            break
    return at


@register("GlobalLSEMargin")
class GlobalLSEMargin(Layer):
    """Scale times (cosine less, of an item's own class, the margin); a third bottom: other scales.

    The margin is where most of the differences of own cosines and the softened maxima of the others
    lie: a mean over batches, 0.9 of the one before. The host finds it. Parameters: the scale (30 at
    first), which learns where there is no third bottom, and the margin. A second top: the mean
    scale, own cosine, softened maximum and maximum of the others, and the margin.
    """

    bottoms = (2, 3)
    tops = (1, 2)
    no_gradient = (1,)
    non_differentiable_tops = (1,)
    messages = ("scale_param",)
    statistics = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.scale_param
        self.check_axes(bottom[0], "N x classes", "bottom[0]")
        self.items, classes = bottom[0]
        for i in range(1, len(bottom)):
            self.check_count(bottom, i, self.items)
        self.take_labels(bottom, self.items, classes)
        filler = param.filler if param.HasField("filler") else None
        self.add_parameter((1,), filler, default=_FIRST_SCALE)
        self.add_parameter((1,))
        self.need_gradients[0] = self.need_gradients[0] and len(bottom) < 3
        self.need_gradients[1] = False
        return [bottom[0], (5,)]

    def _follow(self, reads: list[np.ndarray], writes: list[np.ndarray]) -> None:
        """Let the margin, which is written, follow the differences that are read."""
        (margins,), (margin,) = reads, writes
        finite, before = margins[np.isfinite(margins)], float(margin[0])
        if before == 0 and len(finite):
            margin[0] = mean_shift(finite, float(finite.mean()), _FIRST_STEPS)
        elif len(finite):
            margin[0] = _KEPT * before + (1 - _KEPT) * mean_shift(finite, before, 1)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        param, (scale, margin) = self.param.scale_param, (tensor.data for tensor in self.parameters)
        bounds = {"most": LARGEST} | bounds_of(param) | {"least": param.min_value}
        program.elementwise([scale], [scale], formula=WITHIN, constants=bounds)
        column = (self.items, 1)
        self.scale = bottom[2].data.view(column) if len(bottom) > 2 else scale.view((1, 1))
        x = bottom[0].data
        labels = [bottom[1].data.view(column), self.indices(program, (1, bottom[0].shape[1]))]
        target, greatest, soft, gap = (self.tensor(column) for _ in range(4))
        program.reduce([x, *labels], target, formula="y = where(b == c, a, 0)", axes=(1,))
        others = self.tensor(x.shape)
        program.broadcast([x, *labels], [others], formula="y = where(b == c, -1, max(a, -1))")
        program.top_k(others, None, greatest, axis=1)
        powers = "y = where(b == c, 0, exp(e * (a - d)))"
        program.reduce([x, *labels, greatest, self.scale], soft, formula=powers, axes=(1,))
        formula = "y = log(max(a, 1e-30)) / c + b"
        program.broadcast([soft, greatest, self.scale], [soft], formula=formula)
        program.elementwise([target, soft], [gap], formula="y = a - b")
        program.host([gap.view((self.items,))], [margin], function=self._follow)
        inputs = [x, *labels, self.scale, margin.view((1, 1))]
        formula = "y = d * (a - where(b == c, max(e, 0), 0))"
        program.broadcast(inputs, [top[0].data], formula=formula)
        if len(top) > 1:
            means = [self._mean(program, tensor) for tensor in (self.scale, target, soft, greatest)]
            program.concat([*means, margin], top[1].data, axis=0)

    def _mean(self, program: Program, x: Tensor) -> Tensor:
        mean, share = self.tensor((1,)), {"share": 1 / x.count}
        program.reduce([x], mean, formula="y = share * a", axes=(0, 1), constants=share)
        return mean

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        inputs, formula = [top[0].diff, top[0].data, self.scale], "y = a * b / c"
        if (ds := self.gradient(0)) is not None:
            program.reduce(inputs, ds, formula=formula, axes=(0, 1))
        if len(bottom) > 2 and propagate_down[2]:
            program.reduce(inputs, bottom[2].diff.view((self.items, 1)), formula=formula, axes=(1,))
        if propagate_down[0]:
            program.broadcast([top[0].diff, self.scale], [bottom[0].diff], formula="y = a * b")
