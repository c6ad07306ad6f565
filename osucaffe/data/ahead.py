"""Owns work on many records at once: threads that run ahead, results in order, bad records."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ..errors import UserError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_AHEAD = 4
_NAMED = 10
_log = logging.getLogger("osucaffe")


def map_ahead(
    function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int
) -> Iterator[_Result]:
    """function of each item, in the order of the items, computed by `threads` threads.

    Only a few items are taken ahead of the results: the memory in use does not grow. What the
    function raises is raised in its turn.
    """
    rest = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="osucaffe-data") as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for item in itertools.islice(rest, _AHEAD * threads):
                waiting.append(pool.submit(function, item))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(function, item) for item in itertools.islice(rest, 1))
                yield result
        finally:
            for future in waiting:
                future.cancel()


class BadRecords:
    """What becomes of records that cannot be used: the first one stops, or each is counted.

    The first few are named in the log, and all are counted in `count`. Safe to use from threads. A
    copy in another process tells of them instead (`tell`), if it is set.
    """

    tell: Callable[[str], None] | None = None

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.count = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return partial(BadRecords, skip=self.skip), ()

    def found(self, error: UserError) -> None:
        """Raise the error, or note it."""
        if not self.skip:
            raise error
        if self.tell:
            self.tell(str(error))
            return
        with self._lock:
            self.count += 1
            if self.count <= _NAMED:
                _log.warning("Skipped: %s", error)
            if self.count == _NAMED:
                _log.warning("Further records that are skipped are counted, but not named")
