"""Owns the fast forward pass of scripts' TEST nets: by a net beside the script's own, which has the
same parameters, inputs and outputs, but no other blobs until somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from .. import net as engine
from ..backends.tensor import Tensor
from .blob import Store

MOST_WANTED = 8
"""A script that looks at more blobs gets them all: its own net runs."""
BLOCK = 4096

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

    @staticmethod
    def serves(net: engine.Net) -> bool:
        """Whether a pass depends on the inputs and parameters alone, and on nothing else."""
        return (
            net.phase == "TEST"
            and bool(net.inputs)
            and all(node.bottom or node.layer.type == "Input" for node in net.nodes)
            and not any(node.layer.reshapes or any(node.loss_weight) for node in net.nodes)
            and not any(call.name == "host" for call in net.programs[0])
        )

    @property
    def pays(self) -> bool:
        """Whether there are blobs that nobody looks at."""
        return len(self._wanted) <= MOST_WANTED

    def run(self) -> None:
        """Run all of forward. What the script wrote must have been uploaded."""
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
        self.is_stale = True

    def want(self, names: Iterable[str]) -> None:
        """Have these blobs from the next run on."""
        mine = {*self._net.inputs, *self._net.outputs}
        more = {name for name in names if name not in mine} - self._wanted
        if more:
            self._wanted |= more
            if self._fast is not None:
                self._fast.discard()
            self._fast = None

    def has(self, name: str) -> bool:
        """Whether a blob holds what the last run computed."""
        kept = name in self._net.inputs or name in self._net.outputs
        return not self.is_stale or kept or (self._fast is not None and name in self._wanted)

    def catch_up(self) -> None:
        """Compute the blobs that are stale from the inputs of the last run."""
        self.is_stale = False
        backend = self._net.backend
        tensors = {name: self._net.blobs[name].data for name in self._net.inputs}
        now = {name: backend.read(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            backend.write(tensor, self._given[name])
        self._net.forward()
        for name, tensor in tensors.items():
            backend.write(tensor, now[name])

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


def fingerprint(values: np.ndarray) -> np.ndarray:
    """Numbers that change when a value does: for each block the product with a random row. It takes
    as long as to read the values once."""
    flat = np.ascontiguousarray(values).reshape(-1)
    row = np.random.default_rng(0).uniform(0.5, 1.5, BLOCK).astype(np.float32)
    whole = len(flat) // BLOCK * BLOCK
    return np.append(flat[:whole].reshape(-1, BLOCK) @ row, flat[whole:])
