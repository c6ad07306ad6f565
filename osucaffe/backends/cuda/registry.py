"""Owns the table of the primitives on the GPU, and the memory orders that each may be given.

An implementation is a function `(call, a) -> Step`, given the arguments `a` as the primitive
declares them. What it registers with says how their tensors lie in memory:

    "own"   as they lie: it looks at the layouts itself (and may call `call.in_layout`)
    "flat"  all in one memory order, of any element types
    "row"   row-major
    "plain" row-major, of the element types that they declare: for kernels that know no other
    "nhwc"  those of more than two axes with the channels last

Where a tensor lies otherwise it gets a temporary in its place, converted before or after.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..primitives.recording import arguments
from ..tensor import Call, Step, Tensor, sequence
from .autotune.tuner import Pending
from .layout import Layout, dtype_of, is_nhwc, is_row_major, with_layout
from .passes.convert import convert

if TYPE_CHECKING:
    from .autotune.candidate import Provider
    from .autotune.trial import Trial
    from .backend import Cuda

MODULES = (
    "detection", "formulas", "losses", "movement", "normalization", "pooling", "products",
    "records", "recurrence", "regions", "solvers", "strided",
)  # fmt: skip
"""The modules whose import registers primitives."""


@dataclass(eq=False)
class CudaCall(Call):
    """A call with the backend that prepares it and the conversions around its step."""

    backend: Cuda = None  # type: ignore[assignment]
    before: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)
    trial: Trial | None = None
    _substitutes: dict[tuple[int, bool, str], Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """One of its tensors (or lists of them) by name, or None."""
        return self.reads.get(name, self.writes.get(name))

    def choose_layouts(self, *tensors: Tensor | None) -> None:
        """Choose the layouts of tensors that are still open."""
        for tensor in tensors:
            if tensor is not None:
                self.backend.choose_layout(tensor)

    def tune(self, providers: Sequence[Provider]) -> Pending:
        """Let the tuner choose among what these offer."""
        return self.backend.tuner.begin(self, providers)

    def inner(
        self, name: str, reads: dict[str, Any], writes: dict[str, Any], settings: dict[str, Any]
    ) -> CudaCall:
        """A call that is a part of this one."""
        return CudaCall(
            f"{self.name} {name}", reads, writes, settings, self.layer, frozenset(), self.scratch,
            backend=self.backend, trial=self.trial,
        )  # fmt: skip

    def copy(self) -> CudaCall:
        """The same call, with scratch memory and conversions of its own."""
        return replace(self, scratch=[], before=[], after=[], _substitutes={})

    def needed(self, name: str) -> Tensor:
        """One of its tensors, which it must have."""
        tensor: Tensor = self[name]
        assert tensor is not None, name
        return tensor

    def low_precision(self, parameter: Tensor) -> Tensor:
        """A parameter in the precision's type: see `Cuda.low_precision`."""
        if self.backend.dtype == "float32":
            return parameter
        return (self.trial or self.backend).low_precision(parameter)

    def row_major(self, tensor: Tensor) -> Tensor:
        """This tensor, or a temporary in its place, row-major in its own element type: for kernels
        that know no other layout."""
        self.backend.choose_layout(tensor)
        return self.in_layout(tensor, nhwc=False, dtype=tensor.dtype)

    def in_layout(self, tensor: Tensor, *, nhwc: bool, dtype: str | None = None) -> Tensor:
        """This tensor if it lies in this order and element type (None: any), or a temporary that
        does, converted from it before the step if the call reads it, to it after if it writes."""
        dtype = dtype or dtype_of(tensor)
        if (is_nhwc if nhwc else is_row_major)(tensor) and dtype == dtype_of(tensor):
            return tensor
        key = (id(tensor), nhwc, dtype)
        if key not in self._substitutes:
            layout = Layout(tensor.shape, dtype, nhwc and len(tensor.shape) > 2)
            substitute = with_layout(self.temporary(tensor.shape, tensor.dtype), layout)
            if any(tensor is each for each in self.read_tensors()):
                self.before.append(convert(tensor, substitute))
            for name, value in self.writes.items():
                if any(tensor is each for each in (value if isinstance(value, list) else [value])):
                    added = name in self.accumulates
                    self.after.append(convert(substitute, tensor, accumulate=added))
            self._substitutes[key] = substitute
        return self._substitutes[key]


Order = str
Function = Callable[..., "Step | Pending"]
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


def prepare(backend: Cuda, calls: Iterable[Call]) -> list[Step]:
    """The steps that run these calls on this backend: first the layouts of all are chosen, and what
    is to be timed begins to be built; then each gets its step."""
    return [finish() for finish in [_begin(backend, call) for call in calls]]


def _begin(backend: Cuda, call: Call) -> Callable[[], Step]:
    """Choose the layouts of a call's tensors. Returns what gives its step."""
    function, order = IMPLEMENTATIONS[call.name]
    inner = CudaCall(
        call.name, call.reads, call.writes, call.settings, call.layer, call.accumulates,
        call.scratch, backend=backend,
    )  # fmt: skip
    given = call.reads | call.writes
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
        given = {
            name: _map(
                lambda tensor: inner.in_layout(
                    tensor, nhwc=nhwc, dtype=tensor.dtype if order == "plain" else None
                ),
                value,
            )
            for name, value in given.items()
        }
    found = function(inner, arguments(call.name, given, call.settings))

    def finish() -> Step:
        step = found.step() if isinstance(found, Pending) else found
        call.implementation = inner.implementation
        return sequence([*inner.before, step, *inner.after])

    return finish


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return [None if each is None else _map(function, each) for each in value]
    return value
