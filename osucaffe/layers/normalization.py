"""Owns the layers that divide activations by a measure of their neighbourhood."""

from __future__ import annotations

from typing import Any

from ..backends.primitives import Program
from ..backends.tensor import Shape
from ..blob import Blob
from ..layer import Layer, register


@register("LRN")
class LRN(Layer):
    """Local response normalization, across channels or within each (Krizhevsky et al. 2012)."""

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param = self.param.lrn_param
        if len(bottom[0]) != 4:
            self.fail("bottom", f"has shape {bottom[0]}, but must be N x C x H x W")
        if param.local_size % 2 == 0:
            self.fail("lrn_param.local_size", f"is {param.local_size}: it must be odd")
        self.settings: dict[str, Any] = {
            "size": param.local_size,
            "alpha": param.alpha,
            "beta": param.beta,
            "k": param.k,
            "within_channel": param.NormRegion.Name(param.norm_region) == "WITHIN_CHANNEL",
        }
        return bottom

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        self.note = self.tensor(bottom[0].shape, flexible=True)
        program.lrn(bottom[0].data, top[0].data, self.note, **self.settings)

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if propagate_down[0]:
            x, y, dy, dx = bottom[0].data, top[0].data, top[0].diff, bottom[0].diff
            program.lrn_backward(x, y, dy, self.note, dx, **self.settings)
