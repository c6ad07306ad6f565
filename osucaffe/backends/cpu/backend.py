"""The CPU backend: it lets oneDNN prepare a call, or NumPy where oneDNN declines."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from .. import primitives as ops
from ..cores import computing_threads
from ..primitives.recording import Primitive, implementation
from ..random import RandomState
from ..tensor import Run, Step, Tensor, sequence
from .host import Host
from .primitives import (  # noqa: F401 (importing them registers the primitives)
    formulas,
    losses,
    movement,
    normalization,
    pooling,
    products,
    records,
    recurrence,
    solvers,
)
from .registry import IMPLEMENTATIONS, Context

if TYPE_CHECKING:
    from .onednn import Analysis


class Cpu(Host):
    """Runs nets on the host.

    dtype: "float32", or "float64" for gradient checks: then everything that tensors declare as
    float32 is held and computed in float64, by NumPy alone.
    threads: for oneDNN, OpenBLAS and the backend's own workers; None: as `computing_threads` says.
    onednn: use oneDNN where it is installed.

    The threads that read records decode and transform them, too.
    """

    name = "cpu"
    adds = (ops.Convolution,)

    def __init__(
        self, dtype: str = "float32", threads: int | None = None, onednn: bool = True
    ) -> None:
        from .onednn import load  # which a run on a GPU does without

        super().__init__(dtype, threads or computing_threads())
        self.onednn = load() if onednn and dtype == "float32" else None
        threadpool_limits(self.threads)
        _preallocate_openblas()
        if self.onednn is not None:
            self.activations = self.onednn.activations
            self.onednn.set_threads(self.threads)

    # -- memory --------------------------------------------------------------------------------

    def read(self, tensor: Tensor) -> np.ndarray:
        if tensor.layout is None:
            return np.array(tensor.array)
        plain = Tensor(tensor.shape, tensor.dtype)
        self.allocate_for(plain)
        self.reorder(tensor, plain)()
        values: np.ndarray = plain.array
        return values

    def write(self, tensor: Tensor, values: Any) -> None:
        if tensor.layout is None:
            np.copyto(tensor.array, values, casting="unsafe")
            return
        values = np.broadcast_to(np.asarray(values, self.dtype_of(tensor)), tensor.shape)
        values = np.ascontiguousarray(values)  # as it is where it can be: weights are large
        plain = Tensor(tensor.shape, tensor.dtype)
        plain.place(values, values.ctypes.data)
        self.reorder(plain, tensor)()

    def store(self, x: Tensor, target: Tensor, index: int) -> None:
        target.array[index] = x.array

    def synchronize(self) -> None:
        """Wait until all steps have run: here they have when they return."""

    def begin_forward(self, random: RandomState) -> None:
        """Let a forward pass draw its random numbers: here, calls look at `random` themselves."""

    def capture(self, steps: Sequence[Run]) -> Run:
        return sequence(steps if self.onednn is None else self.onednn.coalesce(self, steps))

    # -- steps ---------------------------------------------------------------------------------

    def prepare(self, calls: Iterable[Primitive], beside: Sequence[Primitive] = ()) -> list[Step]:
        calls = list(calls)
        net = self.onednn.analyze([*calls, *beside]) if self.onednn else None
        return [self._prepare(call, net) for call in calls]

    def _prepare(self, call: Primitive, net: Analysis | None) -> Step:
        if self.onednn and net and (served := self.onednn.prepare(call, net)):
            return served
        match call:
            case ops.Convolution() | ops.InnerProduct() if call.activation is not None:
                return self._prepare_apart(call, call.activation, net)
            case ops.Copy() if (step := self._prepare_reorder(call)) is not None:
                return step
        return self._prepare_numpy(call)

    def _prepare_apart(
        self,
        call: ops.Convolution | ops.InnerProduct,
        activation: ops.Evaluation,
        net: Analysis | None,
    ) -> Step:
        """A call, and after it the activation that it should end with."""
        plain, then = call.changed(activation=None), activation.changed(scratch=call.scratch)
        run = sequence([self._prepare(plain, net), self._prepare(then, net)])
        call.implementation = f"{plain.implementation}, {then.implementation}"
        return Step(run, call.implementation)  # the library's: threads are its own

    def _prepare_numpy(self, call: Primitive) -> Step:
        """NumPy's implementation, on row-major stand-ins for tensors of another layout."""
        found = implementation(call, IMPLEMENTATIONS, self.name)
        call.implementation = "NumPy"
        tensors = [*call.read_tensors(), *call.written_tensors()]
        stand_ins = _StandIns(self, call)
        if found.agnostic(call) and _share_layout(tensors):
            stand_ins.not_for(tensors)
        added = frozenset() if found.accumulates else call.accumulates

        def stand_in(field: str, tensor: Tensor) -> Tensor:
            return stand_ins.addend(tensor) if field in added else stand_ins.get(tensor)

        inner = call.on(stand_in).changed(accumulates=call.accumulates - added)
        run = found.function(Context(self, inner), inner)
        return Step(sequence([*stand_ins.before, run, *stand_ins.after]))

    def _prepare_reorder(self, call: ops.Copy) -> Step | None:
        """A copy between two layouts is a reorder; None when it is not that."""
        if call.y.layout_undecided or call.x.layout == call.y.layout:
            return None
        _make_row_major(call.x)
        return self.reorder(call.x, call.y)

    def reorder(self, source: Tensor, target: Tensor) -> Step:
        """The step that copies source into target, of the same shape in another layout."""
        assert self.onednn is not None, "only oneDNN gives tensors a layout"
        return self.onednn.reorder(self, source, target)


_PRODUCTS_BYTES = 32 << 20
"""What OpenBLAS keeps for products."""


@functools.cache
def _preallocate_openblas() -> None:
    """Let NumPy's products take the memory that they keep, as it is known to be there: where there
    is none, OpenBLAS asks for it without end (with NumPy before 2.4).

    Raises OSError (ENOMEM) instead.
    """
    mmap.mmap(-1, _PRODUCTS_BYTES).close()
    one = np.ones((2, 2), np.float32)
    np.matmul(one, one)


class _StandIns:
    """Row-major scratch in the place of a call's tensors, and the steps that keep both alike."""

    def __init__(self, backend: Cpu, call: Primitive) -> None:
        self.before: list[Run] = []
        self.after: list[Run] = []
        self._backend, self._call = backend, call
        added: list[Tensor] = [getattr(call, name) for name in call.accumulates]
        if isinstance(call, ops.Host):  # its function changes what it is given
            added = call.writes
        self._read = {*call.read_tensors(), *added}
        self._known: dict[Tensor, Tensor] = {}

    def not_for(self, tensors: list[Tensor]) -> None:
        """Leave these as they are."""
        self._known |= {tensor: tensor for tensor in tensors}

    def get(self, tensor: Tensor) -> Tensor:
        """The tensor itself if it is row-major, or still open: then it becomes so."""
        if tensor not in self._known:
            self._known[tensor] = self._make(tensor, read=tensor in self._read)
        return self._known[tensor]

    def addend(self, tensor: Tensor) -> Tensor:
        """Scratch to write: afterwards it is added to the tensor."""
        total = self._make(tensor, read=True)
        part = self._call.temporary(tensor.shape, tensor.dtype)
        self.after.insert(0, lambda: np.add(total.array, part.array, out=total.array))
        return part

    def _make(self, tensor: Tensor, read: bool) -> Tensor:
        _make_row_major(tensor)
        if tensor.layout is None:
            return tensor
        stand_in = self._call.temporary(tensor.shape, tensor.dtype)
        if read:
            self.before.append(self._backend.reorder(tensor, stand_in))
        if any(tensor is written for written in self._call.written_tensors()):
            self.after.append(self._backend.reorder(stand_in, tensor))
        return stand_in


def _make_row_major(tensor: Tensor) -> None:
    """Make the tensor row-major if its layout is still open."""
    tensor.root.flexible = False


def _share_layout(tensors: list[Tensor]) -> bool:
    """Whether all the tensors lie alike; those that are open take the others' layout, or none."""
    layouts = [tensor.layout for tensor in tensors if not tensor.layout_undecided] or [None]
    if any(layout != layouts[0] for layout in layouts):
        return False
    for tensor in tensors:
        if tensor.layout_undecided:
            tensor.root.layout = layouts[0]
    return True
