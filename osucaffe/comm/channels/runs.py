"""Owns runs: the bytes of several arrays, one behind the other, sent or filled in parts; and the
requests of a channel, mostly sent or filled at once."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np


class Run:
    """What is left of a message's bytes; the arrays themselves are never copied.

    nbytes: how many are left.
    """

    __slots__ = ("nbytes", "views")

    def __init__(self, views: Iterable[memoryview], nbytes: int) -> None:
        self.views = deque(views)
        self.nbytes = nbytes

    def head(self, most: int) -> list[memoryview]:
        """The first bytes that are left, up to so many."""
        found = []
        for view in self.views:
            if most <= 0:
                break
            found.append(view[:most] if len(view) > most else view)
            most -= len(view)
        return found

    def drop(self, count: int) -> None:
        """So many are done."""
        self.nbytes -= count
        views = self.views
        if not self.nbytes:
            views.clear()
            return
        while count:
            first = views[0]
            if count < len(first):
                views[0] = first[count:]
                return
            count -= len(first)
            views.popleft()

    def fill(self, source: memoryview) -> int:
        """Overwrite the first bytes that are left; how many it took."""
        taken, most = 0, len(source)
        for view in self.views:
            end = taken + len(view)
            if end > most:
                view[: most - taken] = source[taken:]
                taken = most
                break
            view[:] = source[taken:end]
            taken = end
        self.drop(taken)
        return taken


def views_of(arrays: Sequence[np.ndarray]) -> list[memoryview]:
    """The bytes of each array that has any."""
    return [each.data.cast("B") for each in arrays if each.size]


class Request(Run):
    """A message under way. size: its bytes. It has views only once it is sent or filled in parts:
    they cost more than all else that a small one needs."""

    __slots__ = ("arrays", "done", "size", "tag")

    def __init__(self, arrays: Sequence[np.ndarray], tag: int) -> None:
        self.arrays = arrays
        self.size = sum([each.nbytes for each in arrays])
        self.tag = tag
        self.done = False

    def in_parts(self) -> Request:
        """This one, with views."""
        super().__init__(views_of(self.arrays), self.size)
        return self

    def take(self, source: memoryview) -> None:
        """All of it is here: fill the arrays."""
        reader = io.BytesIO(source)
        for each in self.arrays:
            reader.readinto(each)  # type: ignore[arg-type]
        self.done = True
