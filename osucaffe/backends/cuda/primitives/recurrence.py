"""Owns the recurrence over time: a product and a cell for each step, in one kernel or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...formula import to_c
from ...primitives.recording import arguments
from ...primitives.recurrence import Recurrent, RecurrentBackward
from ...tensor import Step, Tensor, sequence
from ..call import Candidate, Pending, Provider
from ..convolution.gemm import Bound, Gemm
from ..convolution.operands import choose_row_major, temporary
from ..convolution.tensor_cores import can_use_mma, mma_macros
from ..layout import C_TYPES, ITEM_BYTES, choose_row_layout, dtype_of
from ..libraries.cublaslt import Product
from ..passes.convert import transpose
from ..registry import CudaCall, primitive
from ..runtime.compile import Kernel, kernel
from ..runtime.launch import blocks_for, launch
from .products import low_precision_weights

WARPS = 8
MOST_ROWS = 64
"""Items of a block."""
COLUMNS = (8, 16, 32)
"""How many sums a block may compute for an item."""
FLOATS = ("keep", "h_first", "c_first", "c", "dh_last", "dc_last", "dh_first", "dc_first")
"""Arguments that are float32 in every precision."""


@dataclass(frozen=True)
class Cell:
    """One direction of a cell's formula. parts: columns of the product for each unit."""

    direction: str
    formula: str
    steps: int
    items: int
    units: int
    gates: int
    dtype: str

    @property
    def parts(self) -> int:
        return self.gates if self.direction == "forward" else 1

    @property
    def length(self) -> int:
        """How many terms each sum of the product has."""
        return self.units * (1 if self.direction == "forward" else self.gates)

    def _macros(self) -> dict[str, Any]:
        x, dx = ([f"{prefix}{i}" for i in range(self.gates)] for prefix in ("x", "dx"))
        load = [f"float {name} = gate[{i}];" for i, name in enumerate(x)]
        if self.direction == "forward":
            operands = [*x, "keep", "h", "c_in", "c"]
            store = [f"gate[{i}] = {name};" for i, name in enumerate(x)]
        else:
            operands = [*x, *dx, "keep", "dh", "c_in", "c", "dc"]
            load += [f"float {name};" for name in dx]
            store = [f"dgate[{i}] = {name};" for i, name in enumerate(dx)]
        return {
            "T": C_TYPES[self.dtype], "N": self.items, "D": self.units, "K": self.gates,
            "GATES": " ".join(load), "GIVEN": " ".join(store),
            self.direction.upper(): " ".join(to_c(self.formula, operands).splitlines()),
        }  # fmt: skip

    def kernel(self, name: str, **macros: Any) -> Kernel:
        return kernel("recurrent", name, **self._macros(), **macros)

    def tile_configs(self) -> list[int]:
        """Into how many units a block the fused kernel may cut the product; none: it cannot."""
        if self.length % (16 // ITEM_BYTES[self.dtype]):
            return []
        units = [columns // self.parts for columns in COLUMNS if columns % self.parts == 0]
        return [each for each in units if each < 2 * self.units]

    def launcher(self, units: int) -> Callable[[Sequence[Any]], Step]:
        """What makes a launch for these arguments; units of a block, or 0 without a product."""
        if not units:
            function = self.kernel(self.direction)
            return lambda arguments: launch(
                function, blocks_for(self.items * self.units), arguments
            )
        blocks = -(-self.items // MOST_ROWS)
        rows = -(-self.items // (blocks * 16)) * 16
        function = self.kernel(
            self.direction,
            UNITS=units,
            ROWS=rows,
            WARPS=WARPS,
            VEC=16 // ITEM_BYTES[self.dtype],
            **mma_macros(self.dtype, 4 // ITEM_BYTES[self.dtype]),
        )
        grid = (-(-self.units // units), blocks)
        shared = WARPS * rows * (units * self.parts // 8 | 1) * 8 * 4
        return lambda arguments: launch(function, grid, arguments, block=WARPS * 32, shared=shared)


def _choose_layouts(call: CudaCall) -> None:
    """All tensors lie row-major, where that is open: weights in float32."""
    for name, tensor in (call.reads | call.writes).items():
        if name == "w":
            choose_row_major(tensor)
        else:
            choose_row_layout(tensor, _dtype(call, name))


def _dtype(call: CudaCall, name: str) -> str:
    return "float32" if name in FLOATS else call.backend.dtype


def _given(call: CudaCall) -> Any:
    """The arguments of the call, with tensors as its kernels take them."""

    def operand(name: str, tensor: Tensor) -> Tensor:
        if name == "w":
            return low_precision_weights(call, tensor)
        return call.in_layout(tensor, nhwc=False, dtype=_dtype(call, name))

    tensors = {name: operand(name, each) for name, each in (call.reads | call.writes).items()}
    return arguments(call.name, call.settings, tensors)


def _cell(call: CudaCall, direction: str, formula: str, gates: Tensor, h: Tensor) -> Cell:
    steps, items, units = h.shape
    parts = gates.shape[2] // units
    return Cell(direction, formula, steps, items, units, parts, call.backend.dtype)


Make = Callable[["Cell", int, CudaCall, Any], Step]
"""Makes the step for so many units a block, or 0: products by a library."""


class _Recurrence(Provider):
    """The fused kernel with so many units a block, and a kernel for the cell behind products by
    cuBLASLt."""

    name = "recurrence"

    def __init__(self, cell: Cell, make: Make, *, multiplies: bool, fuses: bool) -> None:
        self._cell, self._make = cell, make
        self._units = [0, *(cell.tile_configs() if multiplies and fuses else [])]

    def candidates(self) -> Iterable[Candidate]:
        for units in self._units:
            yield Candidate(f"{units} units", partial(self._step, units))

    def _step(self, units: int, call: CudaCall) -> Step:
        return self._make(self._cell, units, call, _given(call))

    def build(self, call: CudaCall) -> None:
        """The kernels; not the products, which are tuned on their own."""
        for units in self._units:
            if units:
                self._step(units, call.copy())


def _tune(call: CudaCall, cell: Cell, make: Make) -> Pending | Step:
    multiplies = call["w"] is not None
    if not multiplies:
        return make(cell, 0, call, _given(call))
    backend = call.backend
    fuses = can_use_mma(backend.properties, backend.precision)
    return call.tune([_Recurrence(cell, make, multiplies=multiplies, fuses=fuses)])


def _library_product(
    call: CudaCall, cell: Cell, a: Tensor, w: Tensor, transpose_b: bool
) -> tuple[Tensor, list[Step]]:
    """Where the product of a and the weights goes, and the step that computes it."""
    backend = call.backend
    columns = cell.parts * cell.units
    product = call.temporary((cell.items, columns))
    size = (cell.items, columns, cell.length)
    found = Product(backend.precision, *size, False, transpose_b, dtype_of(a), dtype_of(product))
    reads, writes = {"a": a, "b": w}, {"c": product}
    inner = call.inner("product", reads, writes, {"transpose_b": transpose_b})
    return product, [inner.tune([Gemm(backend, found, _bind_product)]).step()]


def _bind_product(call: CudaCall) -> Bound:
    return Bound(call.needed("a"), call.needed("b"), call.needed("c"), None, [])


@primitive("own")
def recurrent(call: CudaCall, a: Recurrent) -> Pending | Step:
    _choose_layouts(call)
    return _tune(call, _cell(call, "forward", a.formula, a.gates, a.h), _forward)


def _forward(cell: Cell, units: int, call: CudaCall, a: Recurrent) -> Step:
    """All steps. units: of a block, or 0: products by a library."""
    copy: Tensor | None = None
    product = a.w
    steps: list[Step] = []
    multiply: list[Step] = []
    if product is not None and not units:
        copy = temporary(call, (cell.items, cell.units))
        product, multiply = _library_product(call, cell, copy, product, True)
    if a.h_in is not None:
        count = blocks_for(cell.items * cell.units)
        steps.append(launch(cell.kernel("begin"), count, [a.keep, a.h_first, a.h_in, copy]))
    run = cell.launcher(units)
    fixed = [a.x, a.keep, a.c_first, a.gates, a.h_in, copy, a.h, a.c, product]
    for t in range(cell.steps):
        steps += [*multiply, run([*fixed, cell.steps, t])]
    return sequence(steps)


@primitive("own")
def recurrent_backward(call: CudaCall, a: RecurrentBackward) -> Pending | Step:
    _choose_layouts(call)
    return _tune(call, _cell(call, "backward", a.formula, a.gates, a.dh), _backward)


def _backward(cell: Cell, units: int, call: CudaCall, a: RecurrentBackward) -> Step:
    """All steps, the last one first. units: of a block, or 0: products by a library."""
    copy: Tensor | None = None
    product = a.w
    steps: list[Step] = []
    multiply: list[Step] = []
    if product is not None and units:
        product, steps = _transposed(call, product)
    elif product is not None:
        copy = temporary(call, (cell.items, cell.gates * cell.units))
        product, multiply = _library_product(call, cell, copy, product, False)
    run = cell.launcher(units)
    flow = call.temporary((cell.items, cell.units))
    fixed = [
        a.keep, a.c_first, a.gates, a.c, a.dh, a.dh_last, a.dc_last, a.dgates, copy, a.dh_first,
        a.dc_first, flow, product, cell.steps,
    ]  # fmt: skip
    end = 0 if a.dh_first is None else -1
    for t in range(cell.steps - 1, end - 1, -1):
        steps += [*(multiply if t < cell.steps - 1 else []), run([*fixed, t])]
    return sequence(steps)


def _transposed(call: CudaCall, w: Tensor) -> tuple[Tensor, list[Step]]:
    """The weights transposed, so that the terms of a sum are neighbours, and what makes them so."""
    rows, columns = w.shape
    transposed = temporary(call, (columns, rows))
    return transposed, [transpose(w, transposed, rows, columns)]
