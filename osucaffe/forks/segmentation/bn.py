"""BN, the batch normalization of Caffe's forks: SegNet's, and that of TSN and PSPNet."""

from __future__ import annotations

import math

from ...layers.base import Blobs, Layer, Program, Shapes, Tensor, register
from ...layers.core.normalization import INV_STD, measure_batch, with_channels

SEGNET_EPS = 1e-9


@register("BN")
class BN(Layer):
    """Each channel less its mean, over its deviation, scaled and shifted: as SegNet or TSN has it.

    SegNet's form (scale_filler, shift_filler, bn_mode): by the statistics of the batch, in TEST
    too, or, with bn_mode INFERENCE, by scale and shift alone, into which they have been folded.
    Parameters: scale, shift. A second and a third top: mean and variance of the batch.

    TSN's and PSPNet's form (slope_filler, bias_filler, momentum, eps, frozen): in TEST and where
    frozen by moving averages. Parameters: slope, bias, moving mean, moving variance.

    Where no field tells, as many `param`s as there are parameters do; TSN's form without those.
    """

    tops = (1, 3)
    non_differentiable_tops = (1, 2)
    in_place = derived = True
    messages = ("bn_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.bn_param, bottom[0]
        self.check_axes(shape, "N x C ...")
        self.channels, self.count = shape[1], math.prod(shape) // shape[1]
        self.is_segnet = self._is_segnet()
        small = (1, self.channels, 1, 1)
        self.saved_shapes = ((1, self.channels), (self.channels,))
        if self.is_segnet:
            self.fixed = param.bn_mode == param.INFERENCE
            if self.fixed and len(self.param.top) > 1:
                self.fail("top", "INFERENCE knows no statistics for a second one")
            scale, shift = param.scale_filler, param.shift_filler
        else:
            if len(self.param.top) > 1:
                self.fail("top", "a second one (the mean) exists in SegNet's form only")
            self.fixed = param.frozen or self.phase == "TEST"
            scale, shift = param.slope_filler, param.bias_filler
        if not self.is_segnet and param.frozen:
            self._fix(0, 1)
        self.add_parameter(small, scale if scale.ListFields() else None, default=1)
        self.add_parameter(small, shift)
        if not self.is_segnet:
            self._fix(2, 3)
            self.statistics = (2, 3)
            self.add_parameter(small)
            self.add_parameter(small, default=float(param.frozen))
        return [shape, small, small][: len(self.param.top)]

    def _is_segnet(self) -> bool:
        param = self.param.bn_param
        forms = {
            True: ("scale_filler", "shift_filler", "bn_mode"),
            False: ("slope_filler", "bias_filler", "momentum", "eps", "frozen", "engine"),
        }
        given = {form: [f for f in names if param.HasField(f)] for form, names in forms.items()}
        if given[True] and given[False]:
            text = f"is of SegNet's form, but {given[False][0]} of TSN's: take one out"
            self.fail(f"bn_param.{given[True][0]}", text)
        return bool(given[True]) or (not given[False] and len(self.param.param) == 2)

    def _fix(self, *indices: int) -> None:
        """Let the solver leave these parameters alone, whatever the prototxt says."""
        for index in indices:
            while len(self.param.param) <= index:
                self.param.param.add()
            self.param.param[index].lr_mult = self.param.param[index].decay_mult = 0

    def parameter(self, index: int) -> Tensor:
        """A parameter, one number for each channel."""
        return self.parameters[index].data.view((self.channels,))

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.saved = self.saved_input(program, bottom, top)
        self.mean: Tensor | None = None
        self.inv_std: Tensor | None = None
        if not (self.is_segnet and self.fixed):
            self.mean, self.inv_std = self.tensor((self.channels,)), self.tensor((self.channels,))
            eps = SEGNET_EPS if self.is_segnet else self.param.bn_param.eps
            if self.fixed:
                program.copy(self.parameter(2), self.mean)
                variance, constants = self.parameter(3), {"eps": eps}
                program.elementwise(
                    [variance], [self.inv_std], formula=INV_STD, constants=constants
                )
            else:
                self._measure(program, self.mean, self.inv_std, eps, top)
        y, scale, shift = top[0].data, self.parameter(0), self.parameter(1)
        program.batch_norm(
            with_channels(self.saved), self.mean, self.inv_std, scale, shift, None,
            with_channels(y),
            constant=self.fixed,
        )  # fmt: skip

    def _measure(
        self, program: Program, mean: Tensor, inv_std: Tensor, eps: float, top: Blobs
    ) -> None:
        """Mean and inv_std of the batch, and what remembers or shows them."""
        means, unbiased = measure_batch(
            self, program, with_channels(self.saved), mean, inv_std, eps
        )
        share = {"share": (self.count - 1) / self.count if self.count > 1 else 1.0}
        for blob, tensor in zip(top[1:], (means, unbiased), strict=False):
            formula = "y = a" if tensor is means else "y = a * share"
            y = blob.data.view((self.channels,))
            program.elementwise([tensor], [y], formula=formula, constants=share)
        if not self.is_segnet:
            constants = share | {"keep": self.param.bn_param.momentum}
            for past, tensor, formula in (
                (self.parameter(2), means, "y = keep * a + (1 - keep) * b"),
                (self.parameter(3), unbiased, "y = keep * a + (1 - keep) * share * b"),
            ):
                program.elementwise([past, tensor], [past], formula=formula, constants=constants)
