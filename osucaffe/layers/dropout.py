"""Owns Dropout: in training, and in tests that ask for it, each element is dropped by chance."""

from __future__ import annotations

from ..backends.primitives import Program
from ..backends.tensor import Shape, Tensor
from ..blob import Blob
from .base import Layer, register


@register("Dropout")
class Dropout(Layer):
    """Zero a share dropout_ratio of the elements in training, scale up the others.

    sample_weights_test: in TEST, too, so that each pass is a sample (Bayesian SegNet, Kendall et
    al. 2015).
    """

    in_place = True

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param = self.param.dropout_param
        self.ratio = param.dropout_ratio
        if not 0 <= self.ratio < 1:
            self.fail("dropout_param.dropout_ratio", f"is {self.ratio}: it must be in [0, 1)")
        self.drops = self.phase == "TRAIN" or param.sample_weights_test
        self.later = not param.scale_train
        return bottom

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.drops:
            self.mask = self.tensor(x.shape, "uint8", flexible=True)
            program.dropout(x, y, self.mask, ratio=self.ratio, key=self.key)
            x = y
        if self.later:
            self._scale_down(program, x, y)
        elif x is not y:
            program.copy(x, y)

    def _scale_down(self, program: Program, x: Tensor, y: Tensor) -> None:
        """What Fast R-CNN's scale_train: false does in testing; in training it takes back what
        dropout scales up."""
        kept = {"kept": 1 - self.ratio}
        program.elementwise([x], [y], formula="y = kept * a", constants=kept)

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        dy, dx = top[0].diff, bottom[0].diff
        if not propagate_down[0]:
            return
        if self.drops:
            program.dropout_backward(dy, self.mask, dx, ratio=self.ratio, key=self.key)
            dy = dx
        if self.later:
            self._scale_down(program, dy, dx)
        elif dy is not dx:
            program.copy(dy, dx)
