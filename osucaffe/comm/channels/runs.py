"""Owns runs: the bytes of several arrays, one behind the other, sent or filled in parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np


class Run:
    """What is left of a message's bytes; the arrays themselves are never copied.

    nbytes: how many are left.
    """

    __slots__ = ("nbytes", "views")

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.views = deque(each.data.cast("B") for each in arrays if each.size)
        self.nbytes = sum(map(len, self.views))

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
        while count:
            first = views[0]
            if count < len(first):
                views[0] = first[count:]
                return
            count -= len(first)
            views.popleft()

    def fill(self, source: memoryview) -> int:
        """Overwrite the first bytes that are left; how many it took."""
        taken = 0
        for view in self.head(len(source)):
            view[:] = source[taken : taken + len(view)]
            taken += len(view)
        self.drop(taken)
        return taken
