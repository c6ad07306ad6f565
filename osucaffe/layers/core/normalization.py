"""Owns the layers that normalize activations by figures of their neighbours."""

from __future__ import annotations

import math
from typing import Any

from ..base import Blobs, Flags, Layer, Program, Shape, Shapes, Tensor, register


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
        self.note = self.tensor(bottom[0].shape, flexible=True)
        program.lrn(bottom[0].data, top[0].data, self.note, **self.settings)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        x, y, dy, dx = bottom[0].data, top[0].data, top[0].diff, bottom[0].diff
        program.lrn_backward(x, y, dy, self.note, dx, **self.settings)


RECALL = (
    "share = where(c == 0, 0, 1 / where(c == 0, 1, c)); "
    "y = a * share; z = 1 / sqrt(b * share + eps)"
)
"""Mean and rate from the sums of past means and variances and the sum of their weights."""


class Standardize(Layer):
    """y = (x - mean) * rate, with the mean over some axes, and rate 1 / spread or 1.

    axes: those over which mean and variance are taken; the statistics have extent 1 there. rate:
    the formula of y = rate from a = variance; None: only the mean is subtracted.
    """

    in_place = True
    rate_formula: str | None = "y = 1 / sqrt(a + eps)"
    affine_index: int | None = None
    """Where the scale stands among the parameters, with the bias behind it, if there are any."""
    affine_shape: Shape

    def lay_out(self, shape: Shape, axes: tuple[int, ...], eps: float) -> None:
        """Work on data viewed as this shape."""
        self.shape, self.axes = shape, axes
        self.small = tuple(1 if i in axes else extent for i, extent in enumerate(shape))
        self.count = math.prod(shape) // math.prod(self.small)
        self.constants = {"share": 1 / self.count, "eps": eps}

    def save(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        """Set `saved` to x, or a copy if the layer overwrites it."""
        self.saved = bottom[0].data.view(self.shape)
        if bottom[0] is top[0]:
            x, self.saved = self.saved, self.tensor(self.shape)
            program.copy(x, self.saved)

    def measure(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        """Set `saved`, `mean`, `variance` and `rate` from x."""
        self.save(program, bottom, top)
        x = self.saved
        self.mean = self.tensor(self.small)
        self._reduce(program, [x], self.mean, "y = a * share")
        if self.rate_formula:
            self.variance = self.tensor(self.small)
            inputs = [x, self.mean]
            self._reduce(program, inputs, self.variance, "y = (a - b) * (a - b) * share")
            self.rate = self.tensor(self.small)
            program.elementwise(
                [self.variance], [self.rate], formula=self.rate_formula, constants=self.constants
            )

    def add_affine(self, shape: Shape, scale_filler: Any, bias_filler: Any) -> None:
        """Declare a scale (ones by default) and a bias for the normalized x."""
        ones = type(scale_filler)(type="constant", value=1)
        given = scale_filler.ListFields()
        self.affine_index = len(self.parameters)
        self.add_parameter(shape, scale_filler if given else ones)
        self.add_parameter(shape, bias_filler)

    def affine(self, tensor: Tensor) -> Tensor:
        """A scale, a bias or a gradient of theirs with as many axes as the data."""
        return tensor.view(self.affine_shape)

    def normalize(self, program: Program, y: Tensor) -> None:
        """y from `saved`."""
        inputs, formula = [self.saved, self.mean], "y = a - b"
        if self.rate_formula:
            inputs, formula = [*inputs, self.rate], "y = (a - b) * c"
        if self.affine_index is not None:
            pair = self.parameters[self.affine_index : self.affine_index + 2]
            inputs = [*inputs, *(self.affine(blob.data) for blob in pair)]
            formula = f"{formula} * d + e"
        program.broadcast(inputs, [y.view(self.shape)], formula=formula)

    def differentiate_affine(self, program: Program, dy: Tensor) -> Tensor:
        """The gradients of scale and bias; the gradient of the normalized x."""
        if self.affine_index is None:
            return dy
        axes = tuple(i for i, extent in enumerate(self.affine_shape) if extent == 1)
        if (dw := self.gradient(self.affine_index)) is not None:
            inputs, formula = [dy, self.saved, self.mean, self.rate], "y = a * (b - c) * d"
            program.reduce_gradient(inputs, dw, formula=formula, axes=axes)
        if (db := self.gradient(self.affine_index + 1)) is not None:
            program.reduce_gradient([dy], db, formula="y = a", axes=axes)
        scaled = self.tensor(self.shape)
        scale = self.affine(self.parameters[self.affine_index].data)
        program.broadcast([dy, scale], [scaled], formula="y = a * b")
        return scaled

    def differentiate(self, program: Program, dy: Tensor, dx: Tensor) -> None:
        """dx = rate * (dy - mean(dy) - y * mean(dy * y)), y standing for the normalized x.

        This is Caffe's gradient of MVN too, where it holds for an eps far below the deviation.
        """
        mean = self.tensor(self.small)
        self._reduce(program, [dy], mean, "y = a * share")
        if not self.rate_formula:
            program.broadcast([dy, mean], [dx], formula="y = a - b")
            return
        product = self.tensor(self.small)
        inputs = [dy, self.saved, self.mean, self.rate]
        self._reduce(program, inputs, product, "y = a * (b - c) * d * share")
        formula = "y = d * (a - e - (b - c) * d * f)"
        program.broadcast([*inputs, mean, product], [dx], formula=formula)

    def _reduce(self, program: Program, inputs: list[Tensor], y: Tensor, formula: str) -> None:
        program.reduce(inputs, y, formula=formula, axes=self.axes, constants=self.constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = self.differentiate_affine(program, top[0].diff.view(self.shape))
        if propagate_down[0]:
            self.differentiate(program, dy, bottom[0].diff.view(self.shape))


@register("MVN")
class MVN(Standardize):
    """Each channel (or item, across_channels) less its mean, divided by its deviation."""

    in_place = False

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.mvn_param, bottom[0]
        self.check_axes(shape, "N x C ...")
        groups = shape[0] if param.across_channels else shape[0] * shape[1]
        self.lay_out((groups, math.prod(shape) // groups), (1,), param.eps)
        self.rate_formula = "y = 1 / (sqrt(a) + eps)" if param.normalize_variance else None
        return bottom

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.measure(program, bottom, top)
        self.normalize(program, top[0].data)


@register("BatchNorm")
class BatchNorm(Layer):
    """Each channel less its mean over the batch, divided by its deviation (Ioffe & Szegedy 2015).

    Parameters: sums of past means and variances, each weighted moving_average_fraction to the
    power of its age, and the sum of these weights, by which they are divided when used.
    """

    in_place = True
    statistics = (0, 1, 2)

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.batch_norm_param, bottom[0]
        self.past = self.phase == "TEST"
        if param.HasField("use_global_stats"):
            self.past = param.use_global_stats
        self.channels = shape[1] if len(shape) > 1 else 1
        self.settings: dict[str, Any] = {
            "eps": param.eps,
            "fraction": param.moving_average_fraction,
        }
        for i, extents in enumerate([(self.channels,), (self.channels,), (1,)]):
            self.fix_parameter(i)
            self.add_parameter(extents)
        if param.scale_bias:
            ones = type(param.scale_filler)(type="constant", value=1)
            given = param.scale_filler.ListFields()
            self.add_parameter((self.channels,), param.scale_filler if given else ones)
            self.add_parameter((self.channels,), param.bias_filler)
        return bottom

    def fix_parameter(self, index: int) -> None:
        """Statistics are not learned: the solver must leave them alone."""
        while len(self.param.param) <= index:
            self.param.param.add(lr_mult=0, decay_mult=0)
        if self.param.param[index].lr_mult != 0:
            self.fail(f"param[{index}].lr_mult", "must be 0: statistics are not learned")

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x = self.saved = bottom[0].data
        if bottom[0] is top[0]:
            self.saved = self.tensor(x.shape, flexible=True)
            program.copy(x, self.saved)
        self.mean, self.rate = self.tensor((self.channels,)), self.tensor((self.channels,))
        statistics = [blob.data for blob in self.parameters[:3]]
        x, y = with_channels(self.saved), with_channels(top[0].data)
        if self.past:
            exact = [tensor.view(tensor.shape) for tensor in statistics]
            program.broadcast(
                exact, [self.mean, self.rate],
                formula=RECALL, constants={"eps": self.settings["eps"]},
            )  # fmt: skip
        else:
            program.batch_norm_statistics(x, self.mean, self.rate, *statistics, **self.settings)
        program.batch_norm(x, self.mean, self.rate, *self.affine(), None, y)

    def affine(self) -> tuple[Tensor | None, Tensor | None]:
        """Scale and bias, if it has them itself."""
        scale_bias = [blob.data for blob in self.parameters[3:]]
        return (scale_bias[0], scale_bias[1]) if scale_bias else (None, None)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dx = with_channels(bottom[0].diff) if propagate_down[0] else None
        program.batch_norm_backward(
            with_channels(self.saved), [with_channels(top[0].diff)], self.mean, self.rate,
            *self.affine(), None, None, dx, self.gradient(3), self.gradient(4),
            constant=self.past,
        )  # fmt: skip


def with_channels(tensor: Tensor) -> Tensor:
    """The tensor with a second axis, which may be of one channel."""
    return tensor if len(tensor.shape) > 1 else tensor.view((tensor.count, 1))


@register("LayerNorm")
class LayerNorm(Standardize):
    """Each item normalized over its axes from `axis` on, scaled and shifted (Ba et al. 2016)."""

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.layer_norm_param, bottom[0]
        axis = self.axis(param.axis, len(shape), "layer_norm_param.axis")
        inner = math.prod(shape[axis:])
        self.lay_out((math.prod(shape[:axis]), inner), (1,), param.eps)
        if param.scale_bias:
            self.affine_shape = (1, inner)
            self.add_affine(shape[axis:], param.scale_filler, param.bias_filler)
        return bottom

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.measure(program, bottom, top)
        self.normalize(program, top[0].data)
