"""The recurrence over time: a product and a cell for each step, in one kernel or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ... import primitives as ops
from ...formula import to_c
from ...primitives.recording import Primitive, Read, Write
from ...tensor import Run, Tensor, sequence
from ..call import Candidate, Pending, Provider
from ..convolution.gemm import Bound, Gemm
from ..convolution.operands import choose_row_major, temporary
from ..convolution.tensor_cores import can_use_mma, mma_macros
from ..layout import C_TYPES, ITEM_BYTES, choose_row_layout, dtype_of
from ..libraries.cublaslt import Product
from ..passes.convert import transpose
from ..registry import Context, primitive
from ..runtime.compile import Kernel, kernel
from ..runtime.launch import blocks_for, launch
from .products import low_precision_weights

WARPS = 8
MAX_ROWS = 64
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

    def launcher(self, units: int) -> Callable[[Sequence[Any]], Run]:
        """What makes a launch for these arguments; units of a block, or 0 without a product."""
        if not units:
            function = self.kernel(self.direction)
            return lambda arguments: launch(
                function, blocks_for(self.items * self.units), arguments
            )
        blocks = -(-self.items // MAX_ROWS)
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


def _choose_layouts(ctx: Context) -> None:
    """All tensors lie row-major, where that is open: weights in float32."""

    def choose(name: str, tensor: Tensor) -> Tensor:
        if name == "w":
            choose_row_major(tensor)
        else:
            choose_row_layout(tensor, _dtype(ctx, name))
        return tensor

    ctx.call.on(choose)


def _dtype(ctx: Context, name: str) -> str:
    return "float32" if name in FLOATS else ctx.backend.dtype


def _given(ctx: Context) -> Any:
    """The call on tensors as its kernels take them."""

    def operand(name: str, tensor: Tensor) -> Tensor:
        if name == "w":
            return low_precision_weights(ctx, tensor)
        return ctx.in_layout(tensor, nhwc=False, dtype=_dtype(ctx, name))

    return ctx.call.on(operand)


def _cell(ctx: Context, direction: str, formula: str, gates: Tensor, h: Tensor) -> Cell:
    steps, items, units = h.shape
    parts = gates.shape[2] // units
    return Cell(direction, formula, steps, items, units, parts, ctx.backend.dtype)


Make = Callable[["Cell", int, Context, Any], Run]
"""Makes the step for that many units a block, or 0: products by a library."""


class _Recurrence(Provider):
    """The fused kernel with that many units a block, and a kernel for the cell after products by
    cuBLASLt."""

    name = "recurrence"

    def __init__(self, cell: Cell, make: Make, *, multiplies: bool, fuses: bool) -> None:
        self._cell, self._make = cell, make
        self._units = [0, *(cell.tile_configs() if multiplies and fuses else [])]

    def candidates(self) -> Iterable[Candidate]:
        for units in self._units:
            yield Candidate(f"{units} units", partial(self._step, units))

    def _step(self, units: int, ctx: Context) -> Run:
        return self._make(self._cell, units, ctx, _given(ctx))

    def build(self, ctx: Context) -> None:
        """The kernels; not the products, which are tuned on their own."""
        for units in self._units:
            if units:
                self._step(units, ctx.copy())


def _tune(ctx: Context, cell: Cell, make: Make) -> Pending | Run:
    multiplies = ctx.call.w is not None
    if not multiplies:
        return make(cell, 0, ctx, _given(ctx))
    backend = ctx.backend
    fuses = can_use_mma(backend.properties, backend.precision)
    return ctx.tune([_Recurrence(cell, make, multiplies=multiplies, fuses=fuses)])


def _library_product(
    ctx: Context, cell: Cell, a: Tensor, w: Tensor, transpose_b: bool
) -> tuple[Tensor, list[Run]]:
    """Where the product of a and the weights goes, and the step that computes it."""
    backend = ctx.backend
    columns = cell.parts * cell.units
    product = ctx.temporary((cell.items, columns))
    size = (cell.items, columns, cell.length)
    found = Product(backend.precision, *size, False, transpose_b, dtype_of(a), dtype_of(product))
    call = StateProduct(a, w, product, transpose_b)
    inner = ctx.of(call.changed(layer=ctx.call.layer, scratch=ctx.call.scratch))
    return product, [inner.tune([Gemm(backend, found, _bind_product)]).step()]


class StateProduct(Primitive, abstract=True):
    """c = a b, or a b^T: a part of the recurrence, which no layer records."""

    a: Read
    b: Read
    c: Write
    transpose_b: bool


def _bind_product(ctx: Context) -> Bound:
    return Bound(ctx.call.a, ctx.call.b, ctx.call.c, None, [])


@primitive("own")
def recurrent(ctx: Context, a: ops.Recurrent) -> Pending | Run:
    _choose_layouts(ctx)
    return _tune(ctx, _cell(ctx, "forward", a.formula, a.gates, a.h), _forward)


def _forward(cell: Cell, units: int, ctx: Context, a: ops.Recurrent) -> Run:
    """All steps. units: of a block, or 0: products by a library."""
    copy: Tensor | None = None
    product = a.w
    steps: list[Run] = []
    multiply: list[Run] = []
    if product is not None and not units:
        copy = temporary(ctx, (cell.items, cell.units))
        product, multiply = _library_product(ctx, cell, copy, product, True)
    if a.h_in is not None:
        count = blocks_for(cell.items * cell.units)
        steps.append(launch(cell.kernel("begin"), count, [a.keep, a.h_first, a.h_in, copy]))
    run = cell.launcher(units)
    fixed = [a.x, a.keep, a.c_first, a.gates, a.h_in, copy, a.h, a.c, product]
    for t in range(cell.steps):
        steps += [*multiply, run([*fixed, cell.steps, t])]
    return sequence(steps)


@primitive("own")
def recurrent_backward(ctx: Context, a: ops.RecurrentBackward) -> Pending | Run:
    _choose_layouts(ctx)
    return _tune(ctx, _cell(ctx, "backward", a.formula, a.gates, a.dh), _backward)


def _backward(cell: Cell, units: int, ctx: Context, a: ops.RecurrentBackward) -> Run:
    """All steps, the last one first. units: of a block, or 0: products by a library."""
    copy: Tensor | None = None
    product = a.w
    steps: list[Run] = []
    multiply: list[Run] = []
    if product is not None and units:
        product, steps = _transposed(ctx, product)
    elif product is not None:
        copy = temporary(ctx, (cell.items, cell.gates * cell.units))
        product, multiply = _library_product(ctx, cell, copy, product, False)
    run = cell.launcher(units)
    flow = ctx.temporary((cell.items, cell.units))
    fixed = [
        a.keep, a.c_first, a.gates, a.c, a.dh, a.dh_last, a.dc_last, a.dgates, copy, a.dh_first,
        a.dc_first, flow, product, cell.steps,
    ]  # fmt: skip
    end = 0 if a.dh_first is None else -1
    for t in range(cell.steps - 1, end - 1, -1):
        steps += [*(multiply if t < cell.steps - 1 else []), run([*fixed, t])]
    return sequence(steps)


def _transposed(ctx: Context, w: Tensor) -> tuple[Tensor, list[Run]]:
    """The weights transposed, so that the terms of a sum are neighbours, and what makes them so."""
    rows, columns = w.shape
    transposed = temporary(ctx, (columns, rows))
    return transposed, [transpose(w, transposed, rows, columns)]
