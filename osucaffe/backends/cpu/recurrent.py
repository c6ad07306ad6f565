"""Owns the recurrence by NumPy: one matrix product and one formula for each time step."""

from __future__ import annotations

import numpy as np

from ..tensor import Step, Tensor
from .evaluate import Evaluate
from .registry import CpuCall, primitive


class _Cell:
    """A formula over named arrays of shape (N, D), the gates by their names prefix0, prefix1 ..."""

    def __init__(self, call: CpuCall, formula: str, gates: Tensor, h: Tensor, names: list[str]):
        self.shape = h.shape[1:]
        self.width = self.shape[1]
        self.parts = gates.shape[2] // self.width
        length = max(1, h.count // max(1, h.shape[0]))
        self._evaluate = Evaluate(
            formula, names, (), None, dtype=call.backend.dtype, length=length, shared=True
        )

    def split(self, gates: np.ndarray) -> list[np.ndarray]:
        """The parts of one step's gates (N, K * D), as views."""
        return [gates[:, i * self.width : (i + 1) * self.width] for i in range(self.parts)]

    def run(self, arrays: list[np.ndarray]) -> None:
        """Evaluate the formula over arrays in the order of the names."""
        self._evaluate.piece(arrays, self.shape)


def _names(prefix: str, gates: Tensor, h: Tensor) -> list[str]:
    return [f"{prefix}{i}" for i in range(gates.shape[2] // h.shape[2])]


@primitive()
def recurrent(
    call: CpuCall,
    x: Tensor,
    keep: Tensor,
    w: Tensor | None,
    h_first: Tensor | None,
    c_first: Tensor | None,
    gates: Tensor,
    h_in: Tensor | None,
    h: Tensor,
    c: Tensor | None,
    *,
    formula: str,
) -> Step:
    state = ["c_in", "c"] if c is not None else []
    cell = _Cell(call, formula, gates, h, [*_names("x", gates, h), "keep", "h", *state])
    product = call.temporary(gates.shape[1:])
    zero = call.temporary(h.shape[1:])

    def step() -> None:
        zero.array.fill(0)
        np.copyto(gates.array, x.array)
        for t in range(len(h.array)):
            kept = keep.array[t][:, None]
            if w is not None and h_in is not None:
                before = h.array[t - 1] if t else h_first.array if h_first else zero.array
                np.multiply(before, kept, out=h_in.array[t])
                np.matmul(h_in.array[t], w.array.T, out=product.array)
                np.add(gates.array[t], product.array, out=gates.array[t])
            arrays = [*cell.split(gates.array[t]), kept, h.array[t]]
            if c is not None:
                before = c.array[t - 1] if t else c_first.array if c_first else zero.array
                arrays += [before, c.array[t]]
            cell.run(arrays)

    return step


@primitive()
def recurrent_backward(
    call: CpuCall,
    keep: Tensor,
    w: Tensor | None,
    c_first: Tensor | None,
    gates: Tensor,
    c: Tensor | None,
    dh: Tensor,
    dh_last: Tensor | None,
    dc_last: Tensor | None,
    dgates: Tensor,
    dh_first: Tensor | None,
    dc_first: Tensor | None,
    *,
    formula: str,
) -> Step:
    state = ["c_in", "c", "dc", "dc_in"] if c is not None else []
    names = [*_names("x", gates, dh), *_names("dx", gates, dh), "keep", "dh", *state]
    cell = _Cell(call, formula, gates, dh, names)
    # What h[t - 1] and c[t - 1] get from step t, and h[t] in all.
    flow, cell_flow, whole, zero = (call.temporary(dh.shape[1:]) for _ in range(4))

    def step() -> None:
        zero.array.fill(0)
        for total, last in ((flow, dh_last), (cell_flow, dc_last)):
            np.copyto(total.array, last.array if last else zero.array)
        for t in reversed(range(len(dh.array))):
            kept = keep.array[t][:, None]
            np.add(dh.array[t], flow.array, out=whole.array)
            arrays = [*cell.split(gates.array[t]), *cell.split(dgates.array[t]), kept, whole.array]
            if c is not None:
                before = c.array[t - 1] if t else c_first.array if c_first else zero.array
                arrays += [before, c.array[t], cell_flow.array, cell_flow.array]
            cell.run(arrays)
            if w is None:
                flow.array.fill(0)
            else:
                np.matmul(dgates.array[t], w.array, out=flow.array)
                np.multiply(flow.array, kept, out=flow.array)
        for total, first in ((flow, dh_first), (cell_flow, dc_first)):
            if first is not None:
                np.copyto(first.array, total.array)

    return step
