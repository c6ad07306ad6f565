"""Owns the declarations of convolution and inner product, and of the windows they look at."""

from __future__ import annotations

from collections.abc import Sequence

from .recording import FusedRead, Gradient, Read, Recorder, Write, primitive


class ConvolutionPrimitives(Recorder):
    @primitive
    def convolution(
        self,
        x: Read,
        w: Read,
        b: Read | None,
        y: Write,
        addend: FusedRead | None = None,
        *,
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
        group: int,
        relu: float | None = None,
    ) -> None:
        """y (N, O, *out) = x (N, C, *in) correlated with w (O, C / group, *kernel), plus b (O,).

        addend: y itself, whose values are added. relu: then y = y if y > 0 else relu * y (set by
        the fusion pass).
        """

    @primitive
    def convolution_backward_data(
        self,
        dy: Read,
        w: Read,
        dx: Write,
        relu_output: FusedRead | None = None,
        *,
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
        group: int,
    ) -> None:
        """dx = the gradient of `convolution` to x.

        relu_output: of dx's shape; dx is zero where it is not positive, as behind a ReLU that made
        it.
        """

    @primitive
    def convolution_backward_filter(
        self,
        x: Read,
        dy: Read,
        dw: Gradient | None,
        db: Gradient | None,
        *,
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
        group: int,
    ) -> None:
        """dw, db = the gradients of `convolution` to w and b (either may be None)."""

    @primitive
    def inner_product(
        self,
        x: Read,
        w: Read,
        b: Read | None,
        y: Write,
        *,
        axis: int,
        transpose: bool,
        relu: float | None = None,
    ) -> None:
        """y = X W^T + b: X is x with axes from `axis` on flattened to K; w is (O, K), or (K, O).

        transpose: w is (K, O). relu: as in `convolution`.
        """

    @primitive
    def inner_product_backward_data(
        self,
        dy: Read,
        w: Read,
        dx: Write,
        relu_output: FusedRead | None = None,
        *,
        axis: int,
        transpose: bool,
    ) -> None:
        """dx = the gradient of `inner_product` to x.

        relu_output: as of `convolution_backward_data`.
        """

    @primitive
    def inner_product_backward_filter(
        self,
        x: Read,
        dy: Read,
        dw: Gradient | None,
        db: Gradient | None,
        *,
        axis: int,
        transpose: bool,
    ) -> None:
        """dw, db = the gradients of `inner_product` to w and b (either may be None)."""

    @primitive
    def im2col(
        self,
        x: Read,
        y: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        """y (N, C * kernel elements, *out) = the windows of x (N, C, *in), zero in the padding."""

    @primitive
    def im2col_backward(
        self,
        dy: Read,
        dx: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        """dx = the sum of dy where each element of x stands in windows."""
