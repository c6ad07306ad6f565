"""Owns layers of nets that tell faces apart: CenterLoss, ChannelScale, Flip."""

from __future__ import annotations

import math

import numpy as np

from ..base import Blobs, Flags, Layer, Program, Shapes, Tensor, register
from ..core.losses import Loss


@register("CenterLoss")
class CenterLoss(Loss):
    """Half the mean squared distance of features to the centers of their classes (Wen et al. 2016).

    Parameter: the centers (num_output, features). What moves a center is the sum of its distances
    to the features of its class over their number plus 1, whatever the loss weighs.
    """

    messages = ("center_loss_param",)
    no_gradient = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.center_loss_param
        self.check_batches(bottom)
        axis = self.axis(param.axis, len(bottom[0]), "center_loss_param.axis")
        if param.num_output < 1:
            self.fail("center_loss_param.num_output", "must be at least 1: the number of classes")
        items = math.prod(bottom[0][:axis])
        if math.prod(bottom[1]) != items:
            self.fail("bottom[1]", f"has shape {bottom[1]}: {items} features need as many labels")
        self.takes_labels(1, param.num_output)
        self.features = (items, math.prod(bottom[0]) // items)
        self.add_parameter((param.num_output, self.features[1]), param.center_filler)
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
            program.reduce_gradient([total, count], dw, formula="y = -a / (1 + b)", axes=())
        if propagate_down[0]:
            inputs = [self.distance, top[0].diff.view((1, 1))]
            dx, share = bottom[0].diff.view(self.features), {"share": 1 / self.features[0]}
            program.broadcast(inputs, [dx], formula="y = share * a * b", constants=share)


@register("ChannelScale")
class ChannelScale(Layer):
    """bottom[0] times bottom[1], which has one number for all channels of a place (NormFace)."""

    bottoms = (2, 2)
    messages = ("channel_scale_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        shape = bottom[0]
        self.small = (shape[0], 1, *shape[2:])
        if len(shape) < 2 or math.prod(bottom[1]) != math.prod(self.small):
            self.fail("bottom[1]", f"has shape {bottom[1]}, but {shape} needs {self.small}")
        return [shape]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        scale = bottom[1].data.view(self.small)
        program.broadcast([bottom[0].data, scale], [top[0].data], formula="y = a * b")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = top[0].diff
        if propagate_down[0]:
            inputs = [dy, bottom[1].data.view(self.small)]
            program.broadcast(inputs, [bottom[0].diff], formula="y = a * b")
        if propagate_down[1]:
            ds = bottom[1].diff.view(self.small)
            program.reduce([dy, bottom[0].data], ds, formula="y = a * b", axes=(1,))


@register("Flip")
class Flip(Layer):
    """Images mirrored, left to right or top to bottom (NormFace)."""

    messages = ("flip_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.flip_param, bottom[0]
        self.check_axes(shape)
        axes = [axis for axis, wanted in ((3, param.flip_width), (2, param.flip_height)) if wanted]
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
