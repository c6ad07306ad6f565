"""The fast forward pass of scripts' TEST nets: a second net shares the parameters, inputs and
outputs of the script's, but has no other blobs until the script reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from .. import net as engine
from ..backends.cores import computing_threads
from ..backends.cpu.workers import Workers
from ..backends.tensor import Tensor
from .store import Key, Store, key

MAX_REQUESTED = 8
"""A script that reads more blobs gets them all: its own net runs."""

PIECE = 1 << 18
"""Bytes that a thread compares at once."""
WORTH_THREADS = 1 << 24
"""Bytes from which several threads compare."""

Make = Callable[[list[str]], engine.Net]


class ForwardOnly:
    """Runs a script's net forward, without the blobs that the script does not read.

    make: makes a forward-only net with the net's parameters that has these blobs besides inputs and
    outputs. The blobs that it lacks are stale after a run; `catch_up` computes them from the same
    inputs and parameters, which are saved if they may have been written since. A blob that is read
    is computed from the next run on.
    """

    def __init__(self, net: engine.Net, store: Store, make: Make) -> None:
        self._net, self._store, self._make = net, store, make
        self._fast: engine.Net | None = None
        self._requested: set[str] = set()
        self._saved: dict[Tensor, np.ndarray] = {}
        """The inputs and parameters of the last run that may have been written since."""
        self._parameters = {blob.data for layer in net.layers for blob in layer.parameters}
        self.is_stale = False
        self.parameters_moved()
        store.watchers.add(self)

    @staticmethod
    def serves(net: engine.Net) -> bool:
        """Whether a pass depends on the inputs and parameters alone, and changes no parameters."""
        parameters = {blob.data for layer in net.layers for blob in layer.parameters}
        return (
            net.phase == "TEST"
            and bool(net.inputs)
            and net.is_repeatable
            and not any(any(node.loss_weight) for node in net.nodes)
            and not any(hasattr(call, "key") for call in net.programs[0])
            and not overwritten(net, parameters)
        )

    def pays(self) -> bool:
        """Whether there are blobs that the script neither reads nor holds arrays of: on the CPU
        these are the blob's memory, and show what a pass computes."""
        if self._net.is_complete != self._was_complete:
            self.moved()
        if not self._store.leases:
            return len(self._requested) <= MAX_REQUESTED
        held = {name for tensor in list(self._store.leases) for name in self._names.get(tensor, ())}
        more = held - self._requested.union(self._net.inputs, self._net.outputs)
        if len(more) > MAX_REQUESTED:
            return False
        self.want(more)
        return len(self._requested) <= MAX_REQUESTED

    def reshaped(self) -> None:
        """The net's blobs have got other shapes, and other memory."""
        self.is_stale = False
        self._saved = {k: values for k, values in self._saved.items() if k in self._parameters}
        self.moved()

    def moved(self) -> None:
        """Tensors of the net have got other memory."""
        net = self._net
        self._was_complete = net.is_complete
        self._inputs = {net.blobs[name].data for name in net.inputs}
        self._overwritten = overwritten(net, self._inputs)
        self._tensors = self._of_parameters | _by_memory((key(t), t) for t in self._inputs)
        vars(self).pop("_names", None)

    @cached_property
    def _names(self) -> Mapping[Key, Sequence[str]]:
        """The names of the blobs in each piece of memory."""
        return _by_memory((key(blob.data), name) for name, blob in self._net.blobs.items())

    def parameters_moved(self) -> None:
        """Parameters of the net lie in other memory, that of another net's."""
        self._of_parameters = _by_memory((key(t), t) for t in self._parameters)
        self.moved()
        self._net.backend.moves += 1

    def expose(self, tensor: Tensor) -> None:
        """The memory of a tensor may be written from now on."""
        for named in self._named(tensor):
            is_read = self.is_stale or (self._fast is not None and named in self._parameters)
            if is_read and named not in self._saved:
                self._saved[named] = np.array(self._store.values(named))

    def _named(self, tensor: Tensor) -> Sequence[Tensor]:
        """The inputs and parameters in the memory of a tensor."""
        return self._tensors.get(key(tensor), ())

    def run(self) -> None:
        """Run all of forward, if it `pays`. What the script wrote must have been uploaded."""
        fast = self._fast = self._fast or self._make(sorted(self._requested))
        shapes = {name: self._net.blobs[name].shape for name in self._net.inputs}
        if any(fast.blobs[name].shape != shape for name, shape in shapes.items()):
            fast.reshape(shapes)
        self._bind(fast)
        if self._have_changed():
            fast.refresh()
        fast.forward()
        self.is_stale = True

    def want(self, names: Iterable[str]) -> None:
        """Compute these blobs from the next run on."""
        mine = {*self._net.inputs, *self._net.outputs}
        more = {name for name in names if name not in mine} - self._requested
        if more:
            self._requested |= more
            if self._fast is not None:
                self._fast.discard()
            self._fast = None

    def has(self, name: str) -> bool:
        """Whether a blob holds the result of the last run."""
        exposed = name in self._net.inputs or name in self._net.outputs
        return not self.is_stale or exposed or (self._fast is not None and name in self._requested)

    def outlive(self, inputs: Iterable[str]) -> bool:
        """Whether stale blobs keep their values when these inputs get other shapes."""
        reached = set(inputs)
        if reached.issuperset(self._net.inputs):
            return False
        for node in self._net.nodes:
            if any(blob.name in reached for blob in node.bottom):
                reached.update(blob.name for blob in node.top)
        return not all(name in reached or self.has(name) for name in self._net.blobs)

    def catch_up(self) -> None:
        """Compute the stale blobs from the inputs and parameters of the last run."""
        self.is_stale = False
        backend, net = self._net.backend, self._net
        has = {*net.inputs, *net.outputs, *(self._requested if self._fast else ())}
        old = _different({tensor: backend.read(tensor) for tensor in self._saved}, self._saved)
        tensors = {*(net.blobs[name].data for name in has), *old}
        now = [(tensor, backend.read(tensor)) for tensor in tensors]
        for tensor in old:
            backend.write(tensor, self._saved[tensor])
        net.forward()
        for tensor, values in now:  # a script may have written to them since
            backend.write(tensor, values)

    def _bind(self, fast: engine.Net) -> None:
        """Share inputs, outputs and requested blobs between both nets."""
        for name in {*fast.inputs, *fast.outputs, *self._requested}:
            blob, other = self._net.blobs[name], fast.blobs[name]
            if blob.data.owner.array is None:
                self._net.backend.allocate_for(blob.data.owner)
            self._bind_tensor(fast, blob.data, other.data)
            if blob.length is not None and other.length is not None:
                self._bind_tensor(fast, blob.length, other.length)

    @staticmethod
    def _bind_tensor(fast: engine.Net, target: Tensor, other: Tensor) -> None:
        target, other = target.owner, other.owner
        if other.address != target.address:
            other.place(target.array.reshape(-1), target.address)
            fast.forget_replay()

    def _have_changed(self) -> bool:
        """Whether parameters have changed since the last run. Those that may be written after
        this one are saved."""
        if not (self._saved or self._overwritten or self._store.leases):
            return False
        held = [t for name in list(self._store.leases) for t in self._tensors.get(name, ())]
        tensors = {*self._saved, *self._overwritten, *held}
        values = {tensor: self._store.values(tensor) for tensor in tensors}
        before = {each: self._saved[each] for each in self._parameters.intersection(self._saved)}
        changed = tensors - {*before} | _different(values, before)
        self._saved = {
            tensor: np.array(values[tensor]) if tensor in changed else self._saved[tensor]
            for tensor in tensors
            if tensor in self._overwritten or self._store.in_use(tensor)
        }
        return any(tensor in self._parameters for tensor in changed)


def _by_memory(pairs: Iterable[tuple[Key, Any]]) -> dict[Key, list[Any]]:
    """What there is of each piece of memory."""
    found: dict[Key, list[Any]] = {}
    for place, value in pairs:
        found.setdefault(place, []).append(value)
    return found


def overwritten(net: engine.Net, tensors: Iterable[Tensor]) -> set[Tensor]:
    """Those whose memory a forward pass writes to."""
    return {tensor for tensor in tensors if tensor.owner in net.written}


def _different(now: Mapping[Tensor, Any], before: Mapping[Tensor, Any]) -> set[Tensor]:
    """Those that differ in any bit from the arrays, contiguous as they, that they were `before`.

    The C library compares: it makes no arrays for that, and so takes half as long as NumPy.
    """
    pieces = [
        (
            tensor,
            now[tensor].ctypes.data + start,
            old.ctypes.data + start,
            min(PIECE, old.nbytes - start),
        )
        for tensor, old in before.items()
        for start in range(0, old.nbytes, PIECE)
    ]
    changed: set[Tensor] = set()

    def compare(part: Sequence[tuple[Tensor, int, int, int]]) -> None:
        changed.update(tensor for tensor, *where in part if _MEMCMP(*where))

    count = _WORKERS.count if sum(size for *_, size in pieces) > WORTH_THREADS else 1
    _WORKERS.run([partial(compare, pieces[first::count]) for first in range(count)])
    return changed


_WORKERS = Workers(computing_threads())
_MEMCMP = ctypes.CDLL(None).memcmp
_MEMCMP.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
