"""The declarations of the primitives that treat each element alone, and of sums of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from string import ascii_lowercase

from ..tensor import Tensor
from .recording import FusedRead, Primitive, Read, Reads, Write, WriteOrAdd, Writes

OUTPUTS = ("y", "z")
"""What the outputs are called in a formula."""


class Evaluation(Primitive, abstract=True, kw_only=True):
    """A formula (see `formula.py`) and its constants."""

    formula: str
    constants: dict[str, float] | None = None


class Elementwise(Evaluation):
    """Evaluate a formula (see `formula.py`) over tensors of one shape.

    Inputs are called a, b, c, ... in the formula in their order; outputs y, z. An output
    may be the same tensor as an input.
    """

    inputs: Reads
    outputs: Writes

    @property
    def operands(self) -> dict[str, Tensor]:
        """All tensors by their names in the formula."""
        inputs = dict(zip(ascii_lowercase, self.inputs, strict=False))
        return inputs | dict(zip(OUTPUTS, self.outputs, strict=False))


class Broadcast(Elementwise):
    """`elementwise` over tensors of as many axes as the outputs, in which an input's extent
    may be 1 where the outputs' is not: it is repeated."""


class Reduce(Evaluation):
    """y = the sum over axes of the formula's y, evaluated as in `broadcast`.

    y has as many elements as the other axes of the inputs together, in their order.
    """

    inputs: Reads
    y: WriteOrAdd
    _: KW_ONLY
    axes: Sequence[int]

    @property
    def operands(self) -> dict[str, Tensor]:
        """The inputs by their names in the formula."""
        return dict(zip(ascii_lowercase, self.inputs, strict=False))


class Sum(Primitive):
    """y = sum of coefficient * x over xs, all of one shape; y may be one of xs.

    relu_output: as of `convolution_backward_data`, for y.
    """

    xs: Reads
    y: Write
    relu_output: FusedRead | None = None
    coefficients: Sequence[float] | None = None


class RandomPrimitive(Primitive, abstract=True, kw_only=True):
    """What decides which elements are kept: the share that is not, and the call's key."""

    ratio: float
    key: int


class Dropout(RandomPrimitive):
    """y = x * keep / (1 - ratio), keep drawn by `random.squares32` for (seed, step, key, i).

    mask: uint8 of x's shape, 1 where kept; a backend may leave it unwritten and draw again
    in `dropout_backward`. y may be x.
    """

    x: Read
    y: Write
    mask: Write


class DropoutBackward(RandomPrimitive):
    """dx = dy * keep / (1 - ratio). dx may be dy.

    relu_output: as of `convolution_backward_data`.
    """

    dy: Read
    mask: Read
    dx: Write
    relu_output: FusedRead | None = None


class Relu(Primitive):
    """y = x if x > 0 else slope * x. y may be x."""

    x: Read
    y: Write
    slope: float


class ReluBackward(Primitive):
    """dx = dy if x > 0 else slope * dy. x may be the output (in place); dx may be dy."""

    x: Read
    dy: Read
    dx: Write
    slope: float
