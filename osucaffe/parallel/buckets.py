"""Buckets: slices of the arena that are exchanged together, and when each is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..arena import Arena, ArenaLayout, Parameter
from ..backends.backend import Backend

ITEM = 4
"""Bytes of an element of the arena."""
TAIL = 16
"""The last bucket is at most 1 / TAIL of the least size of the others: no backward is left to hide
it. (AlexNet with 64 images on each of two H200s: 1.625 ms; with an eighth, 1.637 ms.)"""


class Layout(Protocol):
    """What a plan needs of a net: provided by `net.Net` and by a `predict` sketch."""

    @property
    def layers(self) -> Sequence[Any]: ...
    @property
    def parameters(self) -> Sequence[Parameter]: ...
    @property
    def arena(self) -> ArenaLayout: ...


class NetLayout(Protocol):
    """What an exchange needs of a net."""

    @property
    def layers(self) -> Sequence[Any]: ...
    @property
    def parameters(self) -> Sequence[Parameter]: ...
    @property
    def arena(self) -> Arena: ...
    @property
    def backend(self) -> Backend: ...


class Bucket(NamedTuple):
    """Elements start .. stop - 1 of the arena.

    layer: the lowest layer that uses one of its parameters: forward needs them from there on, and
    backward has completed their gradients when it has run that layer.
    """

    start: int
    stop: int
    layer: int

    @property
    def nbytes(self) -> int:
        """Of its gradients, or of its weights."""
        return (self.stop - self.start) * ITEM


def find_buckets(net: Layout, nbytes: int, *, frozen: bool) -> list[Bucket]:
    """Cut the arena into buckets of at least nbytes (0: one for each parameter), in its order.

    The last one is small (see TAIL), as far as parameters allow. frozen: the parameters that come
    after the others (see `arena.py`) are included. Each bucket's layer is at most that of the one
    before.
    """
    lowest = lowest_layers(net)
    buckets: list[Bucket] = []
    large_enough = True  # whether the last bucket is large enough
    layer = len(net.layers)
    end = len(net.arena) if frozen else net.arena.shared
    left = end * ITEM
    tail = nbytes // TAIL if nbytes < left else 0
    for start, stop, parameter in net.arena.segments:
        if start >= end:
            break
        before, left = left, (end - stop) * ITEM
        layer = min(layer, lowest[id(parameter.blob)])
        if large_enough:
            buckets.append(Bucket(start, stop, layer))
        else:
            buckets[-1] = Bucket(buckets[-1].start, stop, layer)
        large_enough = buckets[-1].nbytes >= nbytes or left <= tail < before
    return buckets


def align(buckets: Sequence[Bucket], grain: int) -> list[Bucket]:
    """Buckets of the same elements, cut again so that each but the last has a multiple of `grain`
    elements. What is cut off one travels with the next."""
    aligned: list[Bucket] = []
    start = buckets[0].start if buckets else 0
    for bucket in buckets:
        stop = bucket.stop
        if bucket is not buckets[-1]:
            stop = start + (stop - start) // grain * grain
        if stop > start:
            aligned.append(Bucket(start, stop, bucket.layer))
            start = stop
    return aligned


def lowest_layers(net: Layout) -> dict[int, int]:
    """For each parameter's blob (by id) the lowest layer that uses it or a view of it, or a tensor
    that it is a part of."""
    lowest: dict[int, int] = {}
    owners = {id(parameter.blob.data): id(parameter.blob) for parameter in net.parameters}
    for index, layer in enumerate(net.layers):
        for blob in layer.parameters:
            for tensor in (blob.data.whole or blob.data).owners:
                owner = owners.get(id(tensor))
                if owner is not None:
                    lowest.setdefault(owner, index)
    return lowest
