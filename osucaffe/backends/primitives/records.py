"""The declarations of the primitives that turn raw records into input, or find them."""

from __future__ import annotations

from .recording import Primitive, Read, ReadWrite, Write


class Transformation(Primitive, abstract=True, kw_only=True):
    """What a record is multiplied with, and whether its channels come last."""

    scale: float
    interleaved: bool = False


class Transform(Transformation):
    """y[n] = (a crop of x[n] - mean) * scale, mirrored perhaps: see `records.transform_record`.

    x: uint8 (N, C, *in), or interleaved (N, *in, C). table: int32 (N, 3), for each record the
    first row and column of the crop, and 1 where it is mirrored. mean: (C, 1, 1), or (C, *in)
    and cropped likewise.
    """

    x: Read
    table: Read
    mean: Read | None
    y: Write


class NextRow(Primitive):
    """row = table[cursor], then cursor += 1; after the last row comes the first.

    So what differs from step to step is written for many of them ahead (a learning rate, which
    records make a batch), and nothing is copied to the device between them.
    table: float32 or int32 (K, *row's shape), as row is. cursor: int32 (1,).
    """

    table: Read
    cursor: ReadWrite
    row: Write


class CachedBatch(Transformation):
    """y[n] = what `transform` makes of records[rows[n, 0]], and labels[n] = rows[n, 4].

    records: uint8 (M, C, *in), or interleaved (M, *in, C): more than a batch. rows: int32
    (N, 5): the number of the record, what `transform`'s table says of it, and its label.
    addresses: int64 (R,): where R parts of the records lie, one of which is `records`: that of
    number n is the (n // R)-th of part n % R.
    """

    records: Read
    rows: Read
    mean: Read | None
    y: Write
    labels: Write | None = None
    addresses: Read | None = None


class CachedRows(Primitive):
    """y[n] = records[rows[n]]. records: float32 (M, *rest of y's); rows: int32 (N, 1)."""

    records: Read
    rows: Read
    y: Write
