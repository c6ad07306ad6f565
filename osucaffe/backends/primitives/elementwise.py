"""Owns the declarations of the primitives that treat each element alone, and of sums of them."""

from __future__ import annotations

from collections.abc import Sequence

from .recording import FusedRead, Gradient, Read, Reads, Recorder, Write, Writes, primitive


class ElementwisePrimitives(Recorder):
    @primitive
    def elementwise(
        self,
        inputs: Reads,
        outputs: Writes,
        *,
        formula: str,
        constants: dict[str, float] | None = None,
    ) -> None:
        """Evaluate a formula (see `formula.py`) over tensors of one shape.

        Inputs are called a, b, c, ... in the formula in their order; outputs y, z. An output
        may be the same tensor as an input.
        """

    @primitive
    def broadcast(
        self,
        inputs: Reads,
        outputs: Writes,
        *,
        formula: str,
        constants: dict[str, float] | None = None,
    ) -> None:
        """`elementwise` over tensors of as many axes as the outputs, in which an input's extent
        may be 1 where the outputs' is not: it is repeated."""

    @primitive
    def reduce(
        self,
        inputs: Reads,
        y: Write,
        *,
        formula: str,
        axes: Sequence[int],
        constants: dict[str, float] | None = None,
    ) -> None:
        """y = the sum over axes of the formula's y, evaluated as in `broadcast`.

        y has as many elements as the other axes of the inputs together, in their order.
        """

    @primitive
    def reduce_gradient(
        self,
        inputs: Reads,
        dw: Gradient,
        *,
        formula: str,
        axes: Sequence[int],
        constants: dict[str, float] | None = None,
    ) -> None:
        """`reduce` into the gradient of a parameter (the formula still writes y)."""

    @primitive
    def sum(
        self,
        xs: Reads,
        y: Write,
        relu_output: FusedRead | None = None,
        *,
        coefficients: Sequence[float] | None = None,
    ) -> None:
        """y = sum of coefficient * x over xs, all of one shape; y may be one of xs.

        relu_output: as of `convolution_backward_data`, for y.
        """

    @primitive
    def dropout(self, x: Read, y: Write, mask: Write, *, ratio: float, key: int) -> None:
        """y = x * keep / (1 - ratio), keep drawn by `random.squares32` for (seed, step, key, i).

        mask: uint8 of x's shape, 1 where kept; a backend may leave it unwritten and draw again
        in `dropout_backward`. y may be x.
        """

    @primitive
    def dropout_backward(
        self,
        dy: Read,
        mask: Read,
        dx: Write,
        relu_output: FusedRead | None = None,
        *,
        ratio: float,
        key: int,
    ) -> None:
        """dx = dy * keep / (1 - ratio). dx may be dy.

        relu_output: as of `convolution_backward_data`.
        """

    # ReLU has a primitive of its own: the libraries fuse it.

    @primitive
    def relu(self, x: Read, y: Write, *, slope: float) -> None:
        """y = x if x > 0 else slope * x. y may be x."""

    @primitive
    def relu_backward(self, x: Read, dy: Read, dx: Write, *, slope: float) -> None:
        """dx = dy if x > 0 else slope * dy. x may be the output (in place); dx may be dy."""
