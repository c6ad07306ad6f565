"""Owns the cache of a net that only runs forward: what was built for the last few input shapes, so
that a batch size that comes again costs nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..backends.tensor import Shape
from .passes.memory import MemoryPlan

if TYPE_CHECKING:
    from ..net import Net

MOST = 8
"""Shapes besides the current ones: of each there is a captured graph and memory for outputs."""
_BUILT = (
    "_parts", "blobs", "nodes", "labels", "inputs", "outputs", "total", "seeds", "_build",
    "programs", "_calls", "_steps", "memory", "_replay", "_pool_size",
)  # fmt: skip
"""The attributes of a net that depend on its shapes."""


class Shapes:
    """The last few shapes of a net's inputs, with what was built for them."""

    def __init__(self) -> None:
        self._built: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()

    def enter(self, net: Net, shapes: Mapping[str, Shape]) -> bool:
        """Let the net be as it was when its inputs had these shapes; False: it never had them, or
        something about it is not remembered."""
        if not _remembers(net):
            return False
        now = {name: net.blobs[name].shape for name in net.inputs}
        wanted = now | {name: tuple(map(int, shape)) for name, shape in shapes.items()}
        key = tuple(sorted(wanted.items()))
        if wanted == now or key not in self._built:
            return wanted == now
        before = {name: net.blobs[name].data for name in net.inputs}
        self.leave(net)
        for name, value in self._built.pop(key).items():
            setattr(net, name, value)
        for name, old in before.items():
            if old.shape == (new := net.blobs[name].data).shape:
                net.backend.write(new, net.backend.read(old))
        return True

    def leave(self, net: Net) -> bool:
        """Remember what the net is built as, before it is built anew: whether it is."""
        if not _remembers(net):
            return False
        key = tuple(sorted((name, net.blobs[name].shape) for name in net.inputs))
        self._built[key] = {name: getattr(net, name) for name in _BUILT}
        while len(self._built) > MOST:
            _, oldest = self._built.popitem(last=False)
            net.pool.remove(oldest["memory"])
        return True

    def clear(self) -> list[MemoryPlan]:
        """Forget all but the current ones; the memory plans of the others."""
        plans = [built["memory"] for built in self._built.values()]
        self._built.clear()
        return plans


def _remembers(net: Net) -> bool:
    """Whether all that the net does depends on the shapes of its inputs, and on nothing that its
    layers remember themselves."""
    return (
        net.constants is not None
        and all(node.bottom or node.layer.type == "Input" for node in net.nodes)
        and not any(call.name == "host" for call in net.programs[0])
    )
