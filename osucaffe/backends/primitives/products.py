"""The declarations of convolution and inner product, and of the windows they look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .formulas import Elementwise
from .recording import FusedRead, FusedWrite, Primitive, Read, Recorder, Write, WriteOrAdd

FusedActivation = Elementwise


class ConvolutionWindow(Primitive, abstract=True, kw_only=True):
    """How a convolution lays its filters over the image."""

    stride: Sequence[int]
    pad: Sequence[int]
    dilation: Sequence[int]
    group: int

    @property
    def window(self) -> dict[str, Any]:
        """The arguments that say how."""
        names = "stride", "pad", "dilation", "group"
        return {name: getattr(self, name) for name in names}


class Convolution(ConvolutionWindow):
    """y (N, O, *out) = x (N, C, *in) correlated with w (O, C / group, *kernel), plus b (O,).

    addend: y itself, whose values are added. relu: then y = y if y > 0 else relu * y (set by
    the fusion pass). activation: the call of another formula that y ends with, in its place.
    sums: what `batch_norm_statistics` needs of y, as the backend keeps it.
    """

    x: Read
    w: Read
    b: Read | None
    y: Write
    addend: FusedRead | None = None
    relu: float | None = None
    activation: FusedActivation | None = None
    sums: FusedWrite | None = None

    def gradient(self, program: Recorder) -> None:
        dy, dx, dw, db = (self.diffs[name] for name in ("y", "x", "w", "b"))
        if dw is not None or db is not None:
            program.record(ConvolutionBackwardFilter(self.x, dy, dw, db, **self.window))
        if dx is not None:
            program.record(ConvolutionBackwardData(dy, self.w, dx, **self.window))


class ConvolutionBackwardData(ConvolutionWindow):
    """dx = the gradient of `convolution` to x, plus addend.

    relu_output: of dx's shape; dx is zero where it is not positive, as after a ReLU that made
    it.
    """

    dy: Read
    w: Read
    dx: Write
    addend: FusedRead | None = None
    relu_output: FusedRead | None = None


class ConvolutionBackwardFilter(ConvolutionWindow):
    """dw, db = the gradients of `convolution` to w and b (either may be None)."""

    x: Read
    dy: Read
    dw: WriteOrAdd | None
    db: WriteOrAdd | None


class Flattening(Primitive, abstract=True, kw_only=True):
    """axis: the first of those that are flattened to K. transpose: w is (K, O)."""

    axis: int
    transpose: bool


class InnerProduct(Flattening):
    """y = X W^T + b: X is x with axes from `axis` on flattened to K; w is (O, K), or (K, O).

    relu, activation: as in `convolution`.
    """

    x: Read
    w: Read
    b: Read | None
    y: Write
    relu: float | None = None
    activation: FusedActivation | None = None


class InnerProductBackwardData(Flattening):
    """dx = the gradient of `inner_product` to x.

    relu_output: as of `convolution_backward_data`.
    """

    dy: Read
    w: Read
    dx: Write
    relu_output: FusedRead | None = None


class InnerProductBackwardFilter(Flattening):
    """dw, db = the gradients of `inner_product` to w and b (either may be None)."""

    x: Read
    dy: Read
    dw: WriteOrAdd | None
    db: WriteOrAdd | None


class Unfolding(Primitive, abstract=True, kw_only=True):
    """Windows of an image, for each position of one."""

    kernel: Sequence[int]
    stride: Sequence[int]
    pad: Sequence[int]
    dilation: Sequence[int]


class Im2col(Unfolding):
    """y (N, C * kernel elements, *out) = the windows of x (N, C, *in), zero in the padding."""

    x: Read
    y: Write


class Im2colBackward(Unfolding):
    """dx = the sum of dy where each element of x stands in windows."""

    dy: Read
    dx: Write
