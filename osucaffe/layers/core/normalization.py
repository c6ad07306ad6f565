"""The layers that normalize activations by figures of their neighbours."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...proto import BlobProto, LayerParameter, array_to_blob, blob_to_array, has_values
from ..base import Blobs, Flags, Layer, Program, Shapes, Tensor, register

log = logging.getLogger("osucaffe")


@register("LRN")
class LRN(Layer):
    """Local response normalization, across channels or within each (Krizhevsky et al. 2012)."""

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.lrn_param
        self.check_axes(bottom[0])
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

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.workspace = self.tensor(bottom[0].shape, flexible=True)
        program.lrn(bottom[0].data, top[0].data, self.workspace, **self.settings)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        x, y, dy, dx = bottom[0].data, top[0].data, top[0].diff, bottom[0].diff
        program.lrn_backward(x, y, dy, self.workspace, dx, **self.settings)


INV_STD = "y = 1 / sqrt(a + eps)"
"""From a = variance."""

RECALL = (
    "share = where(c == 0, 0, 1 / where(c == 0, 1, c)); "
    "y = a * share; z = 1 / sqrt(b * share + eps)"
)
"""Mean and inv_std from the sums of past means and variances and the sum of their weights."""

RECALL_AVERAGES = "y = a; z = 1 / sqrt(b + eps)"
"""Mean and inv_std from moving averages of means and variances."""

NVIDIA_LEAST_EPS = 1e-5
"""CUDNN_BN_MIN_EPSILON."""


class Standardize(Layer):
    """y = (x - mean) * inv_std for each row of x seen as rows, then perhaps scaled and shifted.

    inv_std_formula: of y = inv_std from a = variance; None: only the mean is subtracted. With
    parameters, these are scale and bias of each column.
    """

    inv_std_formula: str | None = INV_STD

    def lay_out(self, rows: int, count: int, eps: float) -> None:
        """Work on that many rows of x."""
        self.shape, self.small = (rows, count // rows), (rows, 1)
        self.constants = {"share": rows / count, "eps": eps}

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.saved = self.saved_input(program, bottom, top, flexible=False).view(self.shape)
        self.mean = self.tensor(self.small)
        self._mean(program, [self.saved], self.mean, "y = a * share")
        inputs, formula = [self.saved, self.mean], "y = a - b"
        if self.inv_std_formula:
            variance, self.inv_std = self.tensor(self.small), self.tensor(self.small)
            self._mean(program, inputs, variance, "y = (a - b) * (a - b) * share")
            program.elementwise(
                [variance], [self.inv_std], formula=self.inv_std_formula, constants=self.constants
            )
            inputs, formula = [*inputs, self.inv_std], "y = (a - b) * c"
        if self.parameters:
            inputs += [self._row(blob.data) for blob in self.parameters]
            formula = f"{formula} * d + e"
        program.broadcast(inputs, [top[0].data.view(self.shape)], formula=formula)

    def _row(self, tensor: Tensor) -> Tensor:
        """A scale or a bias with as many axes as the rows."""
        return tensor.view((1, tensor.count))

    def _mean(self, program: Program, inputs: list[Tensor], y: Tensor, formula: str) -> None:
        """The sum over each row, of a formula that has its share of it."""
        program.reduce(inputs, y, formula=formula, axes=(1,), constants=self.constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = top[0].diff.view(self.shape)
        if self.parameters:
            dy = self._backward_affine(program, dy)
        if propagate_down[0]:
            self._backward_rows(program, dy, bottom[0].diff.view(self.shape))

    def _backward_affine(self, program: Program, dy: Tensor) -> Tensor:
        """The gradients of scale and bias; the gradient of the normalized x."""
        if (dw := self.gradient(0)) is not None:
            inputs, formula = [dy, self.saved, self.mean, self.inv_std], "y = a * (b - c) * d"
            program.reduce(inputs, dw, formula=formula, axes=(0,))
        if (db := self.gradient(1)) is not None:
            program.reduce([dy], db, formula="y = a", axes=(0,))
        scaled, scale = self.tensor(self.shape), self._row(self.parameters[0].data)
        program.broadcast([dy, scale], [scaled], formula="y = a * b")
        return scaled

    def _backward_rows(self, program: Program, dy: Tensor, dx: Tensor) -> None:
        """dx = inv_std * (dy - mean(dy) - y * mean(dy * y)), y standing for the normalized x.

        This is Caffe's gradient of MVN too, where it holds for an eps far below the deviation.
        """
        mean = self.tensor(self.small)
        self._mean(program, [dy], mean, "y = a * share")
        if not self.inv_std_formula:
            program.broadcast([dy, mean], [dx], formula="y = a - b")
            return
        product = self.tensor(self.small)
        inputs = [dy, self.saved, self.mean, self.inv_std]
        self._mean(program, inputs, product, "y = a * (b - c) * d * share")
        formula = "y = d * (a - e - (b - c) * d * f)"
        program.broadcast([*inputs, mean, product], [dx], formula=formula)


@register("MVN")
class MVN(Standardize):
    """Each channel (or item, across_channels) less its mean, divided by its deviation."""

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.mvn_param, bottom[0]
        self.check_axes(shape, "N x C ...")
        groups = shape[0] if param.across_channels else shape[0] * shape[1]
        self.lay_out(groups, math.prod(shape), param.eps)
        self.inv_std_formula = "y = 1 / (sqrt(a) + eps)" if param.normalize_variance else None
        return bottom


@register("LayerNorm")
class LayerNorm(Standardize):
    """Each item normalized over its axes from `axis` on, scaled and shifted (Ba et al. 2016)."""

    in_place = True

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.layer_norm_param, bottom[0]
        axis = self.axis(param.axis, len(shape), "layer_norm_param.axis")
        self.lay_out(math.prod(shape[:axis]), math.prod(shape), param.eps)
        if param.scale_bias:
            filler = param.scale_filler if param.scale_filler.ListFields() else None
            self.add_parameter(shape[axis:], filler, default=1)
            self.add_parameter(shape[axis:], param.bias_filler)
        return bottom


@register("BatchNorm")
class BatchNorm(Layer):
    """Each channel less its mean over the batch, divided by its deviation (Ioffe & Szegedy 2015).

    BVLC's form. Parameters: sums of past means and variances, each weighted moving_average_fraction
    to the power of its age, and the sum of these weights, by which they are divided when used.

    NVIDIA's form (scale_bias, scale_filler or bias_filler). Parameters: moving averages of means
    and variances, 0 before the first batch and 1 from then on, scale, bias. Only the phase says
    whether the past counts.
    """

    in_place = derived = True
    statistics = (0, 1, 2)

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.batch_norm_param, bottom[0]
        self.is_nvidia = is_nvidia_batch_norm(self.param)
        self.past = self.phase == "TEST"
        if param.HasField("use_global_stats") and not self.is_nvidia:
            self.past = param.use_global_stats
        self.channels = shape[1] if len(shape) > 1 else 1
        self.eps = max(param.eps, NVIDIA_LEAST_EPS) if self.is_nvidia else param.eps
        self.fraction = param.moving_average_fraction
        for i, extents in enumerate([(self.channels,), (self.channels,), (1,)]):
            self.fix_parameter(i)
            self.add_parameter(extents)
        if self.is_nvidia:
            filler = param.scale_filler if param.HasField("scale_filler") else None
            self.add_parameter((self.channels,), filler, default=1)
            self.add_parameter((self.channels,), param.bias_filler)
        return bottom

    def fix_parameter(self, index: int) -> None:
        """Statistics are not learned: the solver must leave them alone."""
        while len(self.param.param) <= index:
            self.param.param.add(lr_mult=0, decay_mult=0)
        if self.is_nvidia:
            self.param.param[index].lr_mult = self.param.param[index].decay_mult = 0
        if self.param.param[index].lr_mult != 0:
            self.fail(f"param[{index}].lr_mult", "must be 0: statistics are not learned")

    def saved_blobs(self, blobs: Sequence[BlobProto]) -> Sequence[BlobProto]:
        """BVLC's are as they are, but for a sum of weights of 0: it is NVIDIA Caffe 0.16's, whose
        statistics are not sums. Of NVIDIA's five the one of one number says nothing: in 0.15 (and
        DIGITS) it comes last, after scale, bias, mean, variance; in 0.14, whose blobs have four
        axes, third, after scale and bias; from 0.16 on third, after mean and variance."""
        if not all(map(has_values, blobs)):
            return blobs
        if len(blobs) == 3 and not blob_to_array(blobs[2]).any() and blob_to_array(blobs[1]).any():
            return [*blobs[:2], array_to_blob(np.ones(1, np.float32))]
        if len(blobs) != 5 or not self.is_nvidia:
            return blobs
        values = [blob_to_array(blob).reshape(-1) for blob in blobs]
        if values[4].size == 1 < self.channels:
            values = [values[i] for i in (2, 3, 4, 0, 1)]
        elif values[2].size == 1 and len(blobs[2].shape.dim) == 4:
            values = [values[i] for i in (3, 4, 2, 0, 1)]
        elif values[2].size == 1 and values[2].item() not in (0, 1):
            log.warning(
                "%s: blob 2 of the model file, %g, is not read, as in NVIDIA Caffe. If it is the "
                "sum of weights of blobs 0 and 1 (as of an older osucaffe, or Intel Caffe), divide "
                "these by it, and make it 1",
                *(self.title, values[2].item()),
            )
        return [array_to_blob(each) for each in values]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = with_channels(self.saved_input(program, bottom, top)), with_channels(top[0].data)
        self.mean, self.inv_std = self.tensor((self.channels,)), self.tensor((self.channels,))
        means, variances, weight = (blob.data for blob in self.parameters[:3])
        exact = [tensor.view(tensor.shape) for tensor in (means, variances, weight)]
        if self.past:
            program.broadcast(
                exact[: 2 if self.is_nvidia else 3], [self.mean, self.inv_std],
                formula=RECALL_AVERAGES if self.is_nvidia else RECALL, constants={"eps": self.eps},
            )  # fmt: skip
        elif self.is_nvidia:
            batch = measure_batch(self, program, x, self.mean, self.inv_std, self.eps)
            for past, new in zip(exact, batch, strict=False):
                program.broadcast(
                    [past, new, exact[2]], [past],
                    formula="keep = where(c == 0, 0, fraction); y = keep * a + (1 - keep) * b",
                    constants={"fraction": self.fraction},
                )  # fmt: skip
            program.fill(exact[2], value=1.0)
        else:
            program.batch_norm_statistics(
                x, self.mean, self.inv_std, means, variances, weight,
                eps=self.eps, momentum=self.fraction,
            )  # fmt: skip
        program.batch_norm(x, self.mean, self.inv_std, *self.affine(), None, y, constant=self.past)

    def affine(self) -> tuple[Tensor | None, Tensor | None]:
        """Scale and bias, if it has them itself."""
        scale_bias = [blob.data for blob in self.parameters[3:]]
        return (scale_bias[0], scale_bias[1]) if scale_bias else (None, None)


def is_nvidia_batch_norm(layer: LayerParameter) -> bool:
    """Whether a BatchNorm is of NVIDIA Caffe's form, which a filler alone asks for, too."""
    param = layer.batch_norm_param
    return param.scale_bias or param.HasField("scale_filler") or param.HasField("bias_filler")


def measure_batch(
    layer: Layer, program: Program, x: Tensor, mean: Tensor, inv_std: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Find mean and inv_std (C,) of a batch x (N, C, ..). Returns means and unbiased variances."""
    # Sums of past statistics that forget all of the past: those of this batch.
    extents = (mean.count, mean.count, 1)
    means, unbiased, weight = (layer.tensor((extent,), persistent=True) for extent in extents)
    layer.initial = [(tensor, np.zeros(tensor.shape)) for tensor in (means, unbiased, weight)]
    program.batch_norm_statistics(x, mean, inv_std, means, unbiased, weight, eps=eps, momentum=0.0)
    return means, unbiased


def with_channels(tensor: Tensor) -> Tensor:
    """The tensor with a second axis, which may be of one channel."""
    return tensor if len(tensor.shape) > 1 else tensor.view((tensor.count, 1))
