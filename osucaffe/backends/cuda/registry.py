"""Owns the table of the primitives on the GPU, and the memory orders that each may be given.

An implementation is a function `(call, **tensors, **settings) -> Step`. What it registers with
says how the tensors that it gets lie in memory:

    "own"   as they lie: it looks at the layouts itself (and may call `call.held`)
    "flat"  all in one memory order, of any element types
    "row"   row-major
    "nhwc"  those of more than two axes with the channels last

Where a tensor lies otherwise it gets a temporary in its place, converted before or after.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..tensor import Call, Step, Tensor, sequence
from .layout import Layout, dtype_of, is_nhwc, is_row_major, lying

if TYPE_CHECKING:
    from .backend import Cuda

MODULES = (
    "batch_norm", "convolution", "dense", "elementwise", "loss", "movement", "normalization",
    "pooling", "records", "recurrent", "selection", "strided", "update", "windows",
)  # fmt: skip
"""The modules whose import registers primitives."""


@dataclass(eq=False)
class CudaCall(Call):
    """A call with the backend that prepares it and the conversions around its step."""

    backend: Cuda = None  # type: ignore[assignment]
    before: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)
    _substitutes: dict[tuple[int, bool, str], Tensor] = field(default_factory=dict)

    def held(self, tensor: Tensor, *, nhwc: bool, dtype: str | None = None) -> Tensor:
        """This tensor if it lies in this order and element type (None: any), or a temporary that
        does, converted from it before the step if the call reads it, to it after if it writes."""
        dtype = dtype or dtype_of(tensor)
        if (is_nhwc if nhwc else is_row_major)(tensor) and dtype == dtype_of(tensor):
            return tensor
        key = (id(tensor), nhwc, dtype)
        if key not in self._substitutes:
            from .movement import convert

            layout = Layout(tensor.shape, dtype, nhwc and len(tensor.shape) > 2)
            substitute = lying(self.temporary(tensor.shape, tensor.dtype), layout)
            if any(tensor is each for each in self.read_tensors()):
                self.before.append(convert(tensor, substitute))
            for name, value in self.writes.items():
                if any(tensor is each for each in (value if isinstance(value, list) else [value])):
                    added = name in self.accumulates
                    self.after.append(convert(substitute, tensor, accumulate=added))
            self._substitutes[key] = substitute
        return self._substitutes[key]


Order = str
Function = Callable[..., Step]
IMPLEMENTATIONS: dict[str, tuple[Function, Order]] = {}


def primitive(order: Order) -> Callable[[Function], Function]:
    """Register the decorated function under its name (without a trailing underscore)."""
    if order not in ("own", "flat", "row", "nhwc"):
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
        importlib.import_module(f".{module}", __package__)


def prepare(backend: Cuda, call: Call) -> Step:
    """The step that runs a call on this backend."""
    function, order = IMPLEMENTATIONS[call.name]
    inner = CudaCall(
        call.name, call.reads, call.writes, call.settings, call.layer, call.accumulates,
        call.scratch, backend=backend,
    )  # fmt: skip
    arguments = call.reads | call.writes
    if order != "own":
        tensors = [*call.written_tensors(), *call.read_tensors()]
        for tensor in tensors:
            backend.settle(tensor)
        # In one order: that of the first tensor in which there is a difference, an output's first.
        deep = [tensor for tensor in tensors if not (is_nhwc(tensor) and is_row_major(tensor))]
        nhwc = order == "nhwc" or (order == "flat" and bool(deep) and is_nhwc(deep[0]))
        arguments = {
            name: _map(lambda tensor: inner.held(tensor, nhwc=nhwc), value)
            for name, value in arguments.items()
        }
    step = function(inner, **arguments, **call.settings)
    return sequence([*inner.before, step, *inner.after])


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return [None if each is None else _map(function, each) for each in value]
    return value
