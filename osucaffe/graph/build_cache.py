"""Owns what a net remembers of the shapes that it had: what was built for them, and what its layers
had set up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from ..backends.primitives.movement import Host
from ..backends.tensor import Shape, Tensor
from ..layers.base import Layer
from .passes.memory import Pool
from .passes.pipeline import Build

REMEMBERED = 16
"""Shapes besides the current ones, of each of which a net that only runs forward keeps what was
built for them, its captured graph and memory: a batch size or a scale that comes again costs
nothing."""


class BuildCache:
    """The builds of a net that has these layers, by the shapes of its inputs; the oldest first.

    pool: where their memory is planned.
    """

    def __init__(self, layers: Sequence[Layer], pool: Pool) -> None:
        self._layers, self._pool = layers, pool
        self._builds: OrderedDict[tuple[tuple[str, Shape], ...], Build] = OrderedDict()

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
    hosts = {call.position for call in build.programs[0] if isinstance(call, Host)}
    return all(
        (node.bottom or node.layer.type == "Input")
        and not node.layer.reshapes
        and (position not in hosts or node.layer.host_is_pure)
        for position, node in enumerate(build.parts.nodes)
    )
