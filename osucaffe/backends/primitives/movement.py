"""The declarations of the primitives that move data, pick elements, and run on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from itertools import accumulate
from typing import Any

from ..tensor import Shape
from .recording import (
    FusedReads,
    Primitive,
    Read,
    Reads,
    ReadWrite,
    Write,
    WriteOrAdd,
    Writes,
)


class Fill(Primitive):
    """Set every element of y to value."""

    y: Write
    value: float


class Copy(Primitive):
    """y = x, of the same shape (the layouts may differ)."""

    x: Read
    y: Write


FusedSlices = list["tuple[int, int] | None"]


class Concat(Primitive):
    """Put xs after one another along axis.

    slices: of each, where the part that is taken begins, and its extent along axis (None: all of
    it).
    """

    xs: Reads
    y: Write
    axis: int
    slices: FusedSlices | None = None

    @property
    def parts(self) -> list[tuple[int, int]]:
        """What is taken of each of xs: where it begins, and its extent, along axis."""
        slices = self.slices or [None] * len(self.xs)
        return [cut or (0, x.shape[self.axis]) for x, cut in zip(self.xs, slices, strict=True)]

    @property
    def starts(self) -> list[int]:
        """Where each of them begins in y, along axis."""
        return [0, *accumulate(extent for _, extent in self.parts)][:-1]


class Split(Primitive):
    """Cut x along axis into ys: concat backwards. A None in ys skips that part.

    relu_output: for each part (or None) as of `convolution_backward_data`.
    """

    x: Read
    ys: Writes
    axis: int
    relu_output: FusedReads | None = None

    @property
    def starts(self) -> list[int]:
        """Where each of ys begins in x, along axis; a None takes what is left."""
        known = sum(y.shape[self.axis] for y in self.ys if y is not None)
        missing = sum(y is None for y in self.ys)
        left = (self.x.shape[self.axis] - known) // missing if missing else 0
        extents = (left if y is None else y.shape[self.axis] for y in self.ys)
        return [0, *accumulate(extents)][:-1]


class Permute(Primitive):
    """y = x with its axes in another order: axis i of y is axis axes[i] of x.

    shape: x is seen under this one (None: its own); y has the elements in the order that comes,
    under its own shape. (Views would have both lie in the order of their shapes.)
    """

    x: Read
    y: Write
    axes: Sequence[int]
    shape: Shape | None = None

    @property
    def seen(self) -> tuple[Shape, Shape]:
        """The shapes that x and y are seen under."""
        shape = self.x.shape if self.shape is None else tuple(self.shape)
        return shape, tuple(shape[axis] for axis in self.axes)


class Crop(Primitive):
    """y = the box of x that begins at offsets and has y's extents."""

    x: Read
    y: Write
    offsets: Sequence[int]


class CropBackward(Primitive):
    """dx = dy in that box, zero outside it."""

    dy: Read
    dx: Write
    offsets: Sequence[int]


class Gather(Primitive):
    """y[i] = x[index[i]]: pick along the first axis of x; y is (*index's shape, *rest of x's).

    index: floats that hold whole numbers. Where one is out of range, y[i] is NaN.
    """

    x: Read
    index: Read
    y: Write


class GatherBackward(Primitive):
    """dx[index[i]] = the sum of those dy[i], zero where nothing was picked."""

    dy: Read
    index: Read
    dx: WriteOrAdd


class Arange(Primitive):
    """y = 0, 1, 2, ... in row-major order."""

    y: Write


class TopK(Primitive):
    """The largest of x along axis, in falling order: as many as the outputs are long there.

    index: float32. Of equal elements the later comes first (C++ Caffe 1.0).
    """

    x: Read
    index: Write | None
    value: Write | None
    _: KW_ONLY
    axis: int

    @property
    def length(self) -> int:
        """How many of the largest to return."""
        return next(y.shape[self.axis] for y in (self.index, self.value) if y is not None)


class Collective(Primitive):
    """Do an operation of a communicator on x, which several ranks do at this point of their nets.

    operation: called with the flat array and the stream that makes it, it returns a handle to wait
    for. blocks: the host waits for it, so that it cannot be captured.
    """

    x: ReadWrite
    operation: Callable[..., Any]
    blocks: bool


class Host(Primitive):
    """Run a Python function on the host: function(reads, writes), lists of NumPy arrays.

    It changes the arrays of writes, which hold the tensors' values, in place.
    feed: it brings input: called without arguments, it calls `tensor.place` (row-major) on
    each of writes with the host memory of the next batch, instead of filling the memory that
    they have. uploads: False where it brings them to the backend's memory by itself, and
    places them there before they are first read.
    """

    reads: Reads
    writes: Writes
    function: Callable[..., None]
    feed: bool = False
    uploads: bool = True


def is_feed(call: Primitive) -> bool:
    """Whether it brings input."""
    return isinstance(call, Host) and call.feed
