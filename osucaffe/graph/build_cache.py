"""The cache of a net's builds by shape: what was built for them, and what its layers
had set up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..backends.primitives.movement import Host
from ..backends.primitives.recording import Primitive
from ..backends.tensor import Shape, Tensor
from ..blob import Blob
from ..layers.base import Layer
from .gradients import Node
from .passes.editing import operands, owners
from .passes.memory import Pool
from .passes.pipeline import Build

REMEMBERED = 16
"""Shapes besides the current ones, of each of which a net that only runs forward keeps what was
built for them, its captured graph and memory: a batch size or a scale that comes again costs
nothing."""


REMEMBERED_LAYERS = 64
"""Times the layers of a net whose layers give shapes themselves: how many builds for other shapes
are kept, without memory. Then all are forgotten."""


class BuildCache:
    """The builds of a net that has these layers, by the shapes of its inputs; the oldest first. Of
    nets whose shapes layers give, too: these layers and blobs, one by one.

    pool: where their memory is planned.
    """

    def __init__(self, layers: Sequence[Layer], pool: Pool) -> None:
        self._layers, self._pool = layers, pool
        self._builds: OrderedDict[tuple[tuple[str, Shape], ...], Build] = OrderedDict()
        self._nodes: dict[tuple[int, ...], Node] = {}
        self._blobs: dict[tuple[str, Shape], Blob] = {}

    def __len__(self) -> int:
        return len(self._builds)

    def __iter__(self) -> Iterator[Build]:
        return iter(self._builds.values())

    def add(self, build: Build) -> None:
        """Remember a build, perhaps instead of the oldest."""
        self._builds[_key(input_shapes(build))] = build
        if len(self._builds) > REMEMBERED:
            self.drop(self._builds.popitem(last=False)[1])

    def take(self, shapes: Mapping[str, Shape]) -> Build | None:
        """What was built for these shapes of all inputs, which is no longer in the cache then."""
        return self._builds.pop(_key(shapes), None)

    def input_of(self, name: str, shape: Shape) -> Tensor | None:
        """An input as it was when it had this shape."""
        tensors = (build.parts.blobs[name].data for build in self if name in build.parts.inputs)
        return next((tensor for tensor in tensors if tensor.shape == shape), None)

    def drop(self, build: Build) -> None:
        """Give back the room in the pool of what is not used any more."""
        if build.plan is not None:
            self._pool.remove(build.plan)

    def clear(self) -> None:
        """Drop all that is remembered."""
        for build in self:
            self.drop(build)
        self._builds.clear()

    # -- layers, one by one ----------------------------------------------------------------------

    def remember_layers(self, build: Build) -> None:
        """Remember the layers of a build, as `save_layers` saved them."""
        nodes = build.parts.nodes
        if len(self._nodes) > REMEMBERED_LAYERS * len(nodes):
            self._nodes.clear()
            self._blobs.clear()
            return  # views of blobs that have stayed all the time are forgotten, too
        for position, (node, state) in enumerate(zip(nodes, build.states, strict=True)):
            node.state = state
            self._nodes[position, *map(id, node.bottom)] = node
        for blob in build.parts.blobs.values():
            if blob.length is None and blob.data.base is None:
                self._blobs[blob.name, blob.shape] = blob

    def node(self, position: int, now: Node, bottom: Sequence[Blob]) -> Node | None:
        """A layer as it was when it had these bottoms, unless it may give its tops any shape, or
        goes by more than its bottoms."""
        found = self._nodes.get((position, *map(id, bottom)))
        if found is None or not bottom or found.layer.reshapes:
            return None
        if found is not now:
            if not _is_pure(found, (call for calls in found.calls.values() for call in calls)):
                return None
            vars(found.layer).update(found.state)
        return found

    def blob(self, name: str, shape: Shape) -> Blob | None:
        """A blob with memory of its own as it was when it had this shape."""
        return self._blobs.get((name, shape))

    def release(self, before: Build, now: Build) -> None:
        """Take their memory from the tensors of a build that are not those of the present one too,
        and from all scratch: that is planned again."""
        kept = {tensor for tensor in _tensors(now) if tensor.persistent}
        kept.update(blob.data for layer in self._layers for blob in layer.parameters)
        kept.update(blob.diff for layer in self._layers for blob in layer.parameters)
        known = owners(tensor for state in before.states for tensor in state["tensors"])
        for tensor in (known | _tensors(before) | _tensors(now)) - kept:
            for each in (tensor, *tensor.views):
                each.array, each.address = None, 0

    def save_layers(self, build: Build) -> None:
        """Let a build know what the layers have set up for it."""
        build.states = build.states or [dict(vars(layer)) for layer in self._layers]

    def restore_layers(self, build: Build) -> None:
        """Let the layers have what they had set up when this was built."""
        for layer, state in zip(self._layers, build.states, strict=True):
            vars(layer).update(state)


def input_shapes(build: Build) -> dict[str, Shape]:
    """The shapes of a net's inputs, by name."""
    return {name: build.parts.blobs[name].shape for name in build.parts.inputs}


def _key(shapes: Mapping[str, Shape]) -> tuple[tuple[str, Shape], ...]:
    return tuple(sorted(shapes.items()))


def is_repeatable(build: Build) -> bool:
    """Whether all that a net does depends on its inputs and parameters, and on nothing that its
    layers remember themselves."""
    return all(
        (node.bottom or node.layer.type == "Input")
        and not node.layer.reshapes
        and _is_pure(node, node.calls[0])
        for node in build.parts.nodes
    )


def _is_pure(node: Node, calls: Iterable[Primitive]) -> bool:
    """Whether these calls of a layer depend on nothing that it remembers itself."""
    return node.layer.host_is_pure or not any(isinstance(call, Host) for call in calls)


def _tensors(build: Build) -> set[Tensor]:
    """All that have the memory of a build's blobs and calls, of layers too."""
    calls = [call for calls in build.programs for call in calls]
    blobs = build.parts.blobs.values()
    return owners(
        [
            *(tensor for call in calls for tensor in (*operands(call), *call.scratch)),
            *(tensor for blob in blobs for tensor in (blob.data, blob.diff)),
            *(tensor for node in build.parts.nodes for tensor in node.layer.tensors),
        ]
    )
