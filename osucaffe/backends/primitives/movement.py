"""Owns the declarations of the primitives that move data and bring it in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .recording import (
    FusedReads,
    Gradient,
    Read,
    Reads,
    Recorder,
    Update,
    Write,
    Writes,
    primitive,
)


class MovementPrimitives(Recorder):
    @primitive
    def fill(self, y: Write, *, value: float) -> None:
        """Set every element of y to value."""

    @primitive
    def copy(self, x: Read, y: Write) -> None:
        """y = x, of the same shape (the layouts may differ)."""

    @primitive
    def concat(self, xs: Reads, y: Write, *, axis: int) -> None:
        """Put xs behind one another along axis."""

    @primitive
    def split(
        self, x: Read, ys: Writes, relu_output: FusedReads | None = None, *, axis: int
    ) -> None:
        """Cut x along axis into ys: concat backwards. A None in ys skips that part.

        relu_output: for each part (or None) as of `convolution_backward_data`.
        """

    @primitive
    def permute(self, x: Read, y: Write, *, axes: Sequence[int]) -> None:
        """y = x with its axes in another order: axis i of y is axis axes[i] of x."""

    @primitive
    def crop(self, x: Read, y: Write, *, offsets: Sequence[int]) -> None:
        """y = the box of x that begins at offsets and has y's extents."""

    @primitive
    def crop_backward(self, dy: Read, dx: Write, *, offsets: Sequence[int]) -> None:
        """dx = dy in that box, zero outside it."""

    @primitive
    def gather(self, x: Read, index: Read, y: Write) -> None:
        """y[i] = x[index[i]]: pick along the first axis of x; y is (*index's shape, *rest of x's).

        index: floats that hold whole numbers. Where one is out of range, y[i] is NaN.
        """

    @primitive
    def gather_backward(self, dy: Read, index: Read, dx: Write) -> None:
        """dx[index[i]] = the sum of those dy[i], zero where nothing was picked."""

    @primitive
    def gather_gradient(self, dy: Read, index: Read, dw: Gradient) -> None:
        """`gather_backward` for a parameter."""

    @primitive
    def positions(self, y: Write) -> None:
        """y = 0, 1, 2, ... in row-major order."""

    @primitive
    def host(
        self,
        reads: Reads,
        writes: Writes,
        *,
        function: Callable[..., None],
        feed: bool = False,
        uploads: bool = True,
    ) -> None:
        """Run a Python function on the host: function(reads, writes), lists of NumPy arrays.

        It changes the arrays of writes, which hold the tensors' values, in place.
        feed: it brings input: called without arguments, it calls `tensor.place` (row-major) on
        each of writes with the host memory of the next batch, instead of filling the memory that
        they have. uploads: False where it brings them to the backend's memory by itself, and
        places them there before they are first read.
        """

    @primitive
    def transform(
        self,
        x: Read,
        table: Read,
        mean: Read | None,
        y: Write,
        *,
        scale: float,
        interleaved: bool = False,
    ) -> None:
        """y[n] = (a crop of x[n] - mean) * scale, mirrored perhaps: see `records.transform_record`.

        x: uint8 (N, C, *in), or interleaved (N, *in, C). table: int32 (N, 3), for each record the
        first row and column of the crop, and 1 where it is mirrored. mean: (C, 1, 1), or (C, *in)
        and cropped likewise.
        """

    @primitive
    def next_row(self, table: Read, cursor: Update, row: Write) -> None:
        """row = table[cursor], then cursor += 1; behind the last row comes the first.

        So what differs from step to step is written for many of them ahead (a learning rate, which
        records make a batch), and nothing is copied to the device between them.
        table: float32 or int32 (K, *row's shape), as row is. cursor: int32 (1,).
        """

    @primitive
    def cached_batch(
        self,
        records: Read,
        rows: Read,
        mean: Read | None,
        y: Write,
        labels: Write | None = None,
        addresses: Read | None = None,
        *,
        scale: float,
        interleaved: bool = False,
    ) -> None:
        """y[n] = what `transform` makes of records[rows[n, 0]], and labels[n] = rows[n, 4].

        records: uint8 (M, C, *in), or interleaved (M, *in, C): more than a batch. rows: int32
        (N, 5): the number of the record, what `transform`'s table says of it, and its label.
        addresses: int64 (R,): where R parts of the records lie, one of which is `records`: that of
        number n is the (n // R)-th of part n % R.
        """

    @primitive
    def cached_rows(self, records: Read, rows: Read, y: Write) -> None:
        """y[n] = records[rows[n]]. records: float32 (M, *rest of y's); rows: int32 (N, 1)."""
