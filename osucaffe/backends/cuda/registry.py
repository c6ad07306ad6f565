"""The table of the primitives on the GPU, and the memory orders that each may be given.

An implementation is a function `(ctx, a) -> Step` of a call `a`. What it registers with says how
the call's tensors lie in memory:

    "own"   as they lie: it looks at the layouts itself (and may call `ctx.in_layout`)
    "flat"  all in one memory order, of any element types
    "row"   row-major
    "plain" row-major, of the element types that they declare: for kernels that know no other
    "nhwc"  those of more than two axes with the channels last

Where a tensor lies otherwise it gets a temporary in its place, converted before or after.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

from ..primitives.recording import Primitive, implementation
from ..tensor import Run, Tensor, sequence
from .call import Context, Pending, TuningGpu
from .layout import Layout, is_nhwc, is_row_major

__all__ = ["Context", "primitive"]

MODULES = (
    "formulas", "losses", "movement", "normalization", "pooling", "products", "records",
    "recurrence", "solvers", "strided",
)  # fmt: skip
"""The modules whose import registers primitives."""


Order = str
Function = Callable[..., "Run | Pending"]
IMPLEMENTATIONS: dict[str, tuple[Function, Order]] = {}


def primitive(order: Order) -> Callable[[Function], Function]:
    """Register the decorated function under its name (without a trailing underscore)."""
    if order not in ("own", "flat", "row", "plain", "nhwc"):
        raise ValueError(f"unknown order {order!r}")

    def register(function: Function) -> Function:
        name = function.__name__.rstrip("_")
        if name in IMPLEMENTATIONS:
            raise ValueError(f"primitive {name!r} is implemented twice")
        IMPLEMENTATIONS[name] = (function, order)
        return function

    return register


def load() -> None:
    """Import the modules that implement primitives."""
    for module in MODULES:
        importlib.import_module(f".primitives.{module}", __package__)


def prepare(backend: TuningGpu, calls: Iterable[Primitive]) -> list[Run]:
    """What runs these calls on this backend: first the layouts of all are chosen, and what is to be
    timed begins to be built; then each gets its step."""
    return [finish() for finish in [_begin(backend, call) for call in calls]]


def _begin(backend: TuningGpu, call: Primitive) -> Callable[[], Run]:
    """Choose the layouts of a call's tensors. Returns what gives its step."""
    function, order = implementation(call, IMPLEMENTATIONS, "cuda")
    ctx, given = Context(backend, call), call
    tensors = [*call.written_tensors(), *call.read_tensors()]
    if not call.name.startswith(("copy", "inner_product")):  # `convert` looks at the layout
        for tensor in tensors:
            if isinstance(tensor.layout, Layout) and tensor.layout.shape != tensor.shape:
                raise ValueError(f"{call.name} cannot read {tensor}, which lies as {tensor.layout}")
    if order != "own":
        for tensor in tensors:
            backend.choose_layout(tensor)
        # In one order: that of the first tensor in which there is a difference, an output's first.
        deep = [tensor for tensor in tensors if not (is_nhwc(tensor) and is_row_major(tensor))]
        nhwc = order == "nhwc" or (order == "flat" and bool(deep) and is_nhwc(deep[0]))

        def in_order(field: str, tensor: Tensor) -> Tensor:
            dtype = tensor.dtype if order == "plain" else None
            return ctx.in_layout(tensor, nhwc=nhwc, dtype=dtype)

        given = call.on(in_order)
    found = function(ctx, given)

    def finish() -> Run:
        step = found.step() if isinstance(found, Pending) else found
        return sequence([*ctx.before, step, *ctx.after])

    return finish
