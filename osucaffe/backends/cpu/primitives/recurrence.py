"""The recurrence over time on the CPU: one matrix product and one formula for each step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...primitives import recurrence as ops
from ...tensor import Run, Tensor
from ..evaluate import Evaluate
from ..registry import Context, primitive

Product = Callable[[int], None]
"""Given a time step. Forward: gates[t] += h_in[t] w^T; backward: flow = dgates[t] w."""


class _Cell:
    """A formula over one step's arrays of shape (N, D).

    They are, in this order: the gates, under each of the prefixes, and the others.
    """

    def __init__(
        self,
        formula: str,
        prefixes: list[str],
        others: list[str],
        gates: Tensor,
        h: Tensor,
        dtype: str,
    ) -> None:
        _, self.items, self.units = h.shape
        self.parts = gates.shape[2] // self.units
        names = [f"{prefix}{i}" for prefix in prefixes for i in range(self.parts)]
        length = self.items * self.units
        self._evaluate = Evaluate(formula, [*names, *others], dtype=dtype, length=length)

    def split(self, gates: np.ndarray) -> list[np.ndarray]:
        """The parts of one step's gates (N, K * D), as views."""
        return list(gates.reshape(self.items, self.parts, self.units).transpose(1, 0, 2))

    def run(self, arrays: list[np.ndarray]) -> None:
        """Evaluate the formula over arrays in the order of the names."""
        self._evaluate.piece(arrays, (self.items, self.units))


def forward_step(a: ops.Recurrent, product: Product | None, dtype: str) -> Run:
    """`Program.recurrent`, given what adds the products (None: there are none)."""
    gates, h, h_in, c, keep = a.gates, a.h, a.h_in, a.c, a.keep
    cell = _Cell(a.formula, ["x"], ["keep", "h"] + ["c_in", "c"] * (c is not None), gates, h, dtype)
    zero = a.temporary(h.shape[1:])

    def step() -> None:
        zero.array.fill(0)
        if a.x is not gates:
            np.copyto(gates.array, a.x.array)
        for t in range(len(h.array)):
            kept = keep.array[t][:, None]
            if product is not None and h_in is not None:
                np.multiply(_before(h, t, a.h_first or zero), kept, out=h_in.array[t])
                product(t)
            arrays = [*cell.split(gates.array[t]), kept, h.array[t]]
            if c is not None:
                arrays += [_before(c, t, a.c_first or zero), c.array[t]]
            cell.run(arrays)

    return step


def backward_step(
    a: ops.RecurrentBackward, product: Product | None, flow: Tensor, dtype: str
) -> Run:
    """`Program.recurrent_backward`, given what writes the products to flow (None: none does)."""
    dh, gates, dgates, c = a.dh, a.gates, a.dgates, a.c
    others = ["keep", "dh"] + ["c_in", "c", "dc"] * (c is not None)
    cell = _Cell(a.formula, ["x", "dx"], others, gates, dh, dtype)
    # What c[t - 1] gets from step t, as flow is what h[t - 1] does; h[t] in all.
    cell_flow, whole, zero = (a.temporary(dh.shape[1:]) for _ in range(3))

    def step() -> None:
        zero.array.fill(0)
        np.copyto(flow.array, (a.dh_last or zero).array)
        np.copyto(cell_flow.array, (a.dc_last or zero).array)
        for t in reversed(range(len(dh.array))):
            kept = a.keep.array[t][:, None]
            np.add(dh.array[t], flow.array, out=whole.array)
            arrays = [*cell.split(gates.array[t]), *cell.split(dgates.array[t]), kept, whole.array]
            if c is not None:
                arrays += [_before(c, t, a.c_first or zero), c.array[t], cell_flow.array]
            cell.run(arrays)
            if product is not None and (t or a.dh_first is not None):
                product(t)
                np.multiply(flow.array, kept, out=flow.array)
        for total, first in ((flow, a.dh_first), (cell_flow, a.dc_first)):
            if first is not None:
                np.copyto(first.array, total.array)

    return step


def _before(state: Tensor, t: int, first: Tensor) -> np.ndarray:
    """The state before step t."""
    array: np.ndarray = state.array[t - 1] if t else first.array
    return array


@primitive()
def recurrent(ctx: Context, a: ops.Recurrent) -> Run:
    result = ctx.temporary(a.gates.shape[1:])

    def product(t: int) -> None:
        np.matmul(a.h_in.array[t], a.w.array.T, out=result.array)  # type: ignore[union-attr]
        np.add(a.gates.array[t], result.array, out=a.gates.array[t])

    return forward_step(a, None if a.w is None else product, ctx.backend.dtype)


@primitive()
def recurrent_backward(ctx: Context, a: ops.RecurrentBackward) -> Run:
    flow = ctx.temporary(a.dh.shape[1:])

    def product(t: int) -> None:
        np.matmul(a.dgates.array[t], a.w.array, out=flow.array)  # type: ignore[union-attr]

    products = None if a.w is None else product
    return backward_step(a, products, flow, ctx.backend.dtype)
