"""The declarations of LRN, batch normalization and softmax."""

from __future__ import annotations

from dataclasses import KW_ONLY

from ..tensor import Shape, Tensor
from .formulas import Sum
from .pooling import PoolingWindow
from .recording import FusedRead, Primitive, Read, Reads, ReadWrite, Recorder, Write, WriteOrAdd


class Neighbourhood(Primitive, abstract=True, kw_only=True):
    """The numbers of local response normalization: see `lrn`."""

    size: int
    alpha: float
    beta: float
    k: float
    within_channel: bool


class Lrn(Neighbourhood):
    """y = x * s^-beta (Krizhevsky et al. 2012, section 3.3).

    Across channels: s = k + alpha / size * sum of x^2 over `size` neighbouring channels;
    within: s = 1 + alpha * mean of x^2 over a size x size window, zero-padded (k not used).
    workspace: float32 of x's shape, flexible: s, or what else the backend's backward wants; None:
    there is no backward.
    """

    x: Read
    y: Write
    workspace: Write | None


class LrnBackward(Neighbourhood):
    """dx = the gradient of `lrn` to x.

    relu_output: x itself, where a ReLU made it: as of `convolution_backward_data`.
    """

    x: Read
    y: Read
    dy: Read
    workspace: Read
    dx: Write
    relu_output: FusedRead | None = None


class BatchNormStatistics(Primitive):
    """mean, inv_std (C,) = the mean of each channel of x (N, C, ..), and 1 / sqrt(variance + eps).

    The past: running_mean = momentum * running_mean + mean, running_variance (C,) likewise with the
    unbiased variance, running_weight (1,) = momentum * running_weight + 1.
    sums: what the convolution that made x has summed.
    """

    x: Read
    mean: Write
    inv_std: Write
    running_mean: ReadWrite
    running_variance: ReadWrite
    running_weight: ReadWrite
    _: KW_ONLY
    eps: float
    momentum: float
    sums: FusedRead | None = None


CHANNELS = ("mean", "inv_std", "scale", "bias")
"""The tensors (C,) that batch normalization computes with."""


class Normalization(Primitive, abstract=True):
    """What batch normalization computes with: see `batch_norm`."""

    @property
    def channel_params(self) -> dict[str, Tensor | None]:
        """The tensors (C,), by their names."""
        return {name: getattr(self, name) for name in CHANNELS}


class BatchNorm(Normalization):
    """y = (x - mean) * inv_std * scale + bias + addend, where what is None is left out.

    x, addend, y: (N, C, ..); the others: (C,). relu: then y = max(y, 0). y may be x or the
    addend. (addend and relu are set by the fusion pass.) subsample: steps in rows and columns of
    images: y has only the pixels from the first on that these reach. constant: mean and inv_std do
    not depend on x.
    """

    x: Read
    mean: Read | None
    inv_std: Read | None
    scale: Read | None
    bias: Read | None
    addend: Read | None
    y: Write
    relu: bool = False
    subsample: Shape | None = None
    constant: bool = True

    def gradient(self, program: Recorder) -> None:
        dx, dscale, dbias, addend, dy = (
            self.diffs[name] for name in ("x", "scale", "bias", "addend", "y")
        )
        output = self.y if self.relu and self.addend is not None else None
        # What gets the gradient after the ReLU: dy itself where possible, which saves memory.
        masked = addend
        if addend is not None and dx is not dy and not self.subsample:
            masked = dy if self.relu else None
        if any(each is not None for each in (dx, dscale, dbias, masked)):
            program.record(
                BatchNormBackward(
                    self.x, [dy], self.mean, self.inv_std, self.scale, self.bias, output, masked,
                    dx, dscale, dbias, self.constant, self.relu, self.subsample,
                )
            )  # fmt: skip
        if addend is not None and addend not in (masked, dy):
            program.record(Sum([dy], addend))


class BatchNormBackward(Normalization):
    """The gradients of `batch_norm`. dys: parts of the gradient of y, which is their sum.

    relu: there was one; relu_output: its output, or None where it follows from x, as it does
    without an addend. dy: the gradient after the ReLU, which is the addend's. dx or dy may be one
    of dys. (More than one part is set by a pass.) constant, subsample: of `batch_norm`; dys and
    relu_output are of y's pixels, at all others the gradient is 0.
    """

    x: Read
    dys: Reads
    mean: Read | None
    inv_std: Read | None
    scale: Read | None
    bias: Read | None
    relu_output: Read | None
    dy: Write | None
    dx: Write | None
    dscale: WriteOrAdd | None
    dbias: WriteOrAdd | None
    constant: bool
    relu: bool = False
    subsample: Shape | None = None


class BatchNormPooling(PoolingWindow, Normalization):
    """y (N, C, *out) = `max_pooling` of `batch_norm` of x (N, C, *in), which is not kept.

    inv_std: positive. relu: then y = max(y, 0). index: as of `max_pooling`. max_input: x where the
    maximum is. (Layers do not record it: a pass makes it.)
    """

    x: Read
    mean: Read | None
    inv_std: Read | None
    scale: Read | None
    bias: Read | None
    y: Write
    index: Write
    max_input: Write
    relu: bool
    constant: bool = True

    def gradient(self, program: Recorder) -> None:
        dx, dscale, dbias = (self.diffs[name] for name in ("x", "scale", "bias"))
        if any(each is not None for each in (dx, dscale, dbias)):
            program.record(
                BatchNormPoolingBackward(
                    self.x, self.diffs["y"], self.index, self.max_input, self.mean, self.inv_std,
                    self.scale, self.bias, dx, dscale, dbias, self.constant, self.relu,
                    **self.window,
                )
            )  # fmt: skip


class BatchNormPoolingBackward(PoolingWindow, Normalization):
    """The gradients of `batch_norm_pooling`: dy is that of y, and the others are as of
    `batch_norm_backward`."""

    x: Read
    dy: Read
    index: Read
    max_input: Read
    mean: Read | None
    inv_std: Read | None
    scale: Read | None
    bias: Read | None
    dx: Write | None
    dscale: WriteOrAdd | None
    dbias: WriteOrAdd | None
    constant: bool
    relu: bool


class Softmax(Primitive):
    """y = exp(x - max) / sum of it, along axis. y may be x."""

    x: Read
    y: Write
    axis: int


class SoftmaxBackward(Primitive):
    """dx = y * (dy - sum(y * dy) along axis). dx may be dy."""

    y: Read
    dy: Read
    dx: Write
    axis: int
