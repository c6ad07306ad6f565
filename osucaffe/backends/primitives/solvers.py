"""The declarations of the primitives of the solvers."""

from __future__ import annotations

from collections.abc import Sequence

from .recording import Primitive, Read, ReadWrite, ReadWrites, Write


class SumOfSquares(Primitive):
    """y (scalar) = sum of x^2."""

    x: Read
    y: Write


class SegmentSums(Primitive):
    """y (3 * segments) = for each segment (start, stop) of flat x and g the sums of x^2, of g^2 and
    of x * g."""

    x: Read
    g: Read
    y: Write
    segments: Sequence[tuple[int, int]]


class Update(Primitive):
    """Evaluate an update rule over the arena's flat buffers.

    In the formula w and g are weights and gradients, h and h2 the history; `names` are the
    elements of `scalars` (float32 host or device memory: what changes between iterations);
    segments (start, stop, rate, decay) give `rate` and `decay`, the parameter's multipliers.
    sums: of the segments (segment_sums), for a formula that reads those: `ww`, `gg` and `wg`.
    """

    weights: ReadWrite
    gradients: Read
    history: ReadWrites
    scalars: Read
    formula: str
    names: Sequence[str]
    segments: Sequence[tuple[int, int, float, float]]
    constants: dict[str, float]
    sums: Read | None = None


SUMS = ("ww", "gg", "wg")
"""The names of a segment's sums in an update's formula."""
