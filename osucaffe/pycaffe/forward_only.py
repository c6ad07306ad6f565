"""Owns the fast forward pass of scripts' TEST nets: by a net beside the script's own, which has the
same parameters, inputs and outputs, but no other blobs until somebody looks at them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from .. import net as engine
from ..backends.tensor import Tensor
from .blob import Store

MOST_WANTED = 8
"""A script that looks at more blobs gets them all: its own net runs."""
BLOCK = 4096
SETTLING = 3
"""Passes in which nets may still make arrays of their own memory, to use them again."""
_PARAMETERS = " parameters"

Make = Callable[[list[str]], engine.Net]


class ForwardOnly:
    """Runs a script's net forward, but for blobs that nobody looks at.

    make: makes a net that only runs forward with the net's parameters, and has these blobs besides
    inputs and outputs. The blobs that it does not have are stale behind a run; `catch_up` computes
    them from the same inputs. Who looks at a blob gets it from the next run on.
    """

    def __init__(self, net: engine.Net, store: Store, make: Make) -> None:
        self._net, self._store, self._make = net, store, make
        self._fast: engine.Net | None = None
        self._wanted: set[str] = set()
        self._given: dict[str, np.ndarray] = {}
        self._prints: dict[Tensor, np.ndarray] = {}
        self._looked_at: set[Tensor] = set()
        self.is_stale = False
        self._held_before: dict[str, int] = {}
        self.reshaped()

    @staticmethod
    def serves(net: engine.Net) -> bool:
        """Whether a pass depends on the inputs and parameters alone, and on nothing else."""
        return (
            net.phase == "TEST"
            and bool(net.inputs)
            and all(node.bottom or node.layer.type == "Input" for node in net.nodes)
            and not any(node.layer.reshapes or any(node.loss_weight) for node in net.nodes)
            and not any(call.name == "host" or "key" in call.settings for call in net.programs[0])
            and all(blob.length is None for blob in net.blobs.values())
        )

    def pays(self) -> bool:
        """Whether there are blobs that nobody looks at, or holds an array of: on the CPU that is
        the blob's memory, and shows what a pass computes."""
        self._held_before = self._held(parameters=bool(self._looked_at))
        held = [name for name, count in self._held_before.items() if count and name != _PARAMETERS]
        more = set(held) - self._wanted.union(self._net.inputs, self._net.outputs)
        if len(more) > MOST_WANTED:
            return False
        self.want(more)
        return len(self._wanted) <= MOST_WANTED

    def reshaped(self) -> None:
        """The net has other memory, of which the script has no arrays yet."""
        self.is_stale = False
        self._own = self._counted()
        self._unsettled = SETTLING

    def _counted(self, *, parameters: bool = True) -> dict[str, int]:
        """How many objects refer to the memory of each blob, and to that of all parameters."""
        if self._net.backend.name != "cpu":
            return {}
        found = {name: holders(blob.data.array) for name, blob in self._net.blobs.items()}
        if parameters:
            counts = (holders(each.blob.data.array) for each in self._net.parameters)
            found[_PARAMETERS] = sum(counts)
        return found

    def _held(self, *, parameters: bool = True) -> dict[str, int]:
        """How many of them the script has: those that came while the nets did not run."""
        found = self._counted(parameters=parameters)
        return {name: count - self._own[name] for name, count in found.items()}

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """What refers to memory from here on is the nets' own."""
        held = self._held()
        yield
        self._own = {name: count - held[name] for name, count in self._counted().items()}

    def run(self) -> None:
        """Run all of forward, if it `pays`. What the script wrote must have been uploaded."""
        held = self._held_before
        if self._unsettled:
            self._unsettled -= 1
            with self._running():
                self._run()
        else:
            self._run()
        self.is_stale = True
        if not held.get(_PARAMETERS):  # nobody can write to them any more
            self._looked_at.clear()
            self._prints.clear()

    def _run(self) -> None:
        fast = self._fast = self._fast or self._built()
        shapes = {name: self._net.blobs[name].shape for name in self._net.inputs}
        if any(fast.blobs[name].shape != shape for name, shape in shapes.items()):
            fast.reshape(shapes)
        self._bind(fast)
        if self._have_changed():
            fast.refresh()
        for name in self._net.inputs:
            values = self._store.written(self._net.blobs[name].data)
            if values is not None:
                self._given[name] = np.array(values)
            elif name not in self._given:
                self._given[name] = self._net.backend.read(self._net.blobs[name].data)
        fast.forward()

    def want(self, names: Iterable[str]) -> None:
        """Have these blobs from the next run on."""
        mine = {*self._net.inputs, *self._net.outputs}
        more = {name for name in names if name not in mine} - self._wanted
        if more:
            self._wanted |= more
            if self._fast is not None:
                self._fast.discard()
            self._fast, self._unsettled = None, SETTLING

    def has(self, name: str) -> bool:
        """Whether a blob holds what the last run computed."""
        kept = name in self._net.inputs or name in self._net.outputs
        return not self.is_stale or kept or (self._fast is not None and name in self._wanted)

    def catch_up(self) -> None:
        """Compute the blobs that are stale from the inputs of the last run."""
        self.is_stale = False
        backend, net = self._net.backend, self._net
        has = {*net.inputs, *net.outputs, *(self._wanted if self._fast else ())}
        now = [(net.blobs[name].data, backend.read(net.blobs[name].data)) for name in has]
        for name in net.inputs:
            backend.write(net.blobs[name].data, self._given[name])
        with self._running():
            net.forward()
        for tensor, values in now:  # a script may have written to them since
            backend.write(tensor, values)

    def refresh(self) -> None:
        """The parameters have changed."""
        if self._fast is not None:
            self._fast.refresh()

    def look_at(self, parameter: Tensor) -> None:
        """The script has got the array of a parameter, and may write to it from now on."""
        self._looked_at.add(parameter)

    def _built(self) -> engine.Net:
        self._prints.clear()
        return self._make(sorted(self._wanted))

    def _bind(self, fast: engine.Net) -> None:
        """Let both nets have the same inputs, outputs and wanted blobs."""
        for name in {*fast.inputs, *fast.outputs, *self._wanted}:
            own, other = self._net.blobs[name].data, fast.blobs[name].data
            own, other = own.base or own, other.base or other
            if other.address != own.address:
                other.place(own.array.reshape(-1), own.address)
                fast.forget_replay()

    def _have_changed(self) -> bool:
        """Whether parameters that a script may write to are not what they were."""
        changed = False
        for tensor in self._looked_at:
            values = self._store.written(tensor)
            if values is None:
                continue
            found = fingerprint(values)
            before = self._prints.get(tensor)
            changed = changed or before is None or not np.array_equal(before, found)
            self._prints[tensor] = found
        return changed


def holders(array: Any) -> int:
    """How many objects refer to the memory of an array: a script may hold it, or views of it or of
    these, and NumPy lets each refer to what owns the memory."""
    count = 0
    while array is not None:
        count += sys.getrefcount(array)
        array = array.base
    return count


def fingerprint(values: np.ndarray) -> np.ndarray:
    """Numbers that change when a value does: for each block the product with a random row. It takes
    as long as to read the values once."""
    flat = np.ascontiguousarray(values).reshape(-1)
    row = np.random.default_rng(0).uniform(0.5, 1.5, BLOCK).astype(np.float32)
    whole = len(flat) // BLOCK * BLOCK
    return np.append(flat[:whole].reshape(-1, BLOCK) @ row, flat[whole:])
