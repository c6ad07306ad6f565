"""Owns Permute, which gives the axes of a blob another order."""

from __future__ import annotations

from ..base import Blobs, Flags, Layer, Program, Shapes, register


@register("Permute")
class Permute(Layer):
    """The axes in another order: `order` names the old axis at each new place (SSD)."""

    def setup(self, bottom: Shapes) -> Shapes:
        shape, order = bottom[0], list(self.param.permute_param.order)
        if len(set(order)) < len(order) or max(order, default=0) >= len(shape):
            self.fail("permute_param.order", f"{order} must name axes of {shape} once each")
        self.axes = (*order, *(axis for axis in range(len(shape)) if axis not in order))
        return [tuple(shape[axis] for axis in self.axes)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.permute(bottom[0].data, top[0].data, axes=self.axes)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        back = tuple(self.axes.index(axis) for axis in range(len(self.axes)))
        program.permute(top[0].diff, bottom[0].diff, axes=back)
