"""The declarations of the primitives that make one value of each window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .recording import FusedFlag, FusedRead, Primitive, Read, Write


class PoolingWindow(Primitive, abstract=True, kw_only=True):
    """Windows that are laid over an image."""

    kernel: Sequence[int]
    stride: Sequence[int]
    pad: Sequence[int]

    @property
    def window(self) -> dict[str, Any]:
        """The arguments that say how."""
        return {"kernel": self.kernel, "stride": self.stride, "pad": self.pad}


class MaxPooling(PoolingWindow):
    """y (N, C, *out) = the maximum of each window of x (N, C, *in); windows end at the image, of
    which each has some pixel. NaN is the greatest (but where oneDNN computes, which takes no heed
    of it).

    index: int32 of y's shape, where the (first) maximum stands in its flattened channel of x;
    flexible: a backend may keep another note in it for `max_pooling_backward`.
    The extents of y say how many windows there are (Caffe rounds up or down).
    after_relu: a ReLU made x: a maximum that is not positive is not noted, so that it gets no
    gradient.
    """

    x: Read
    y: Write
    index: Write | None
    after_relu: FusedFlag = False


class MaxPoolingBackward(PoolingWindow):
    """dx = dy added at each window's maximum, zero elsewhere; plus addend. relu_output: as of
    `convolution_backward_data`."""

    dy: Read
    index: Read
    dx: Write
    addend: FusedRead | None = None
    relu_output: FusedRead | None = None


class AveragePooling(PoolingWindow):
    """y = the sum of each window over its area within the padded image (as Caffe counts it:
    padding up to extent + pad counts, what reaches beyond it does not)."""

    x: Read
    y: Write


class AveragePoolingBackward(PoolingWindow):
    """dx = dy / area spread over each window; plus addend. relu_output: as of
    `convolution_backward_data`."""

    dy: Read
    dx: Write
    addend: FusedRead | None = None
    relu_output: FusedRead | None = None


class StochasticPooling(Primitive):
    """Zeiler & Fergus 2013. train: an element drawn with probability x / sum, its index noted
    as in `max_pooling`; else sum(x^2) / sum(x). x >= 0. Backward is `max_pooling_backward`."""

    x: Read
    y: Write
    index: Write
    kernel: Sequence[int]
    stride: Sequence[int]
    key: int
    train: bool

    @property
    def pad(self) -> Sequence[int]:
        """It has no padding."""
        return [0] * len(self.kernel)
