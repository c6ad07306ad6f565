"""Owns the search for layers by name: several layers may have the same name, or none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Named(Protocol):
    """A layer, or its message."""

    name: str


_Named = TypeVar("_Named", bound=Named)


def by_name(layers: Iterable[_Named]) -> dict[str, list[_Named]]:
    """The layers of each name, in their order. Layers without a name have the empty one.

    Layers of one name in two nets, or in a net and a file, are the same in this order: the first
    is the first, the second the second.
    """
    found: dict[str, list[_Named]] = {}
    for layer in layers:
        found.setdefault(layer.name, []).append(layer)
    return found
