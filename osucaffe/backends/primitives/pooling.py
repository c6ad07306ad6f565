"""Owns the declarations of the primitives that make one value of each window."""

from __future__ import annotations

from collections.abc import Sequence

from .recording import FusedFlag, FusedRead, Read, Recorder, Write, primitive


class PoolingPrimitives(Recorder):
    @primitive
    def max_pooling(
        self,
        x: Read,
        y: Write,
        index: Write | None,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
        behind_relu: FusedFlag = False,
    ) -> None:
        """y (N, C, *out) = the maximum of each window of x (N, C, *in); windows end at the image.

        index: int32 of y's shape, where the (first) maximum stands in its flattened channel of x;
        flexible: a backend may keep another note in it for `max_pooling_backward`.
        The extents of y say how many windows there are (Caffe rounds up or down).
        behind_relu: a ReLU made x: a maximum that is not positive is not noted, so that it gets no
        gradient.
        """

    @primitive
    def max_pooling_backward(
        self,
        dy: Read,
        index: Read,
        dx: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
    ) -> None:
        """dx = dy added at each window's maximum, zero elsewhere."""

    @primitive
    def unpooling(self, x: Read, index: Read, y: Write) -> None:
        """y (N, C, H, W) = zeros, and each element of x (N, C, *) where its index says: the index
        in its channel of y, row by row. Of several that go to one place the last one stays.

        index: floats that hold whole numbers, of x's shape. One that is out of range makes the
        first element of its channel NaN.
        """

    @primitive
    def unpooling_backward(self, dy: Read, index: Read, dx: Write) -> None:
        """dx = dy where the index says (0 where it is out of range)."""

    @primitive
    def interpolation(self, x: Read, y: Write) -> None:
        """y (N, C, *out) = x (N, C, H, W) between its pixels, corners on corners: row i of y stands
        at i * (H - 1) / (rows of y - 1) of x, the only row of one at 0; columns likewise."""

    @primitive
    def interpolation_backward(self, dy: Read, dx: Write) -> None:
        """dx = the gradient of `interpolation` to x."""

    @primitive
    def average_pooling(
        self,
        x: Read,
        y: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
    ) -> None:
        """y = the sum of each window over its area within the padded image (as Caffe counts it:
        padding up to extent + pad counts, what reaches beyond it does not)."""

    @primitive
    def average_pooling_backward(
        self,
        dy: Read,
        dx: Write,
        relu_output: FusedRead | None = None,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
    ) -> None:
        """dx = dy / area spread over each window."""

    @primitive
    def stochastic_pooling(
        self,
        x: Read,
        y: Write,
        index: Write,
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        key: int,
        train: bool,
    ) -> None:
        """Zeiler & Fergus 2013. train: an element drawn with probability x / sum, its index noted
        as in `max_pooling`; else sum(x^2) / sum(x). x >= 0. Backward is `max_pooling_backward`."""
