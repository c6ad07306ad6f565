"""Ranks that are threads of the test, for what only connects them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def on_ranks(size: int, work: Callable[[int, Callable[[Any], list[Any]]], Any]) -> list[Any]:
    """What each rank's work returns; work gets its rank, and what gathers values."""
    meet = threading.Barrier(size)
    values: list[Any] = [None] * size
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        def gather(value: Any) -> list[Any]:
            values[rank] = value
            meet.wait(60)
            got = list(values)
            meet.wait(60)
            return got

        try:
            found[rank] = work(rank, gather)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    return found
