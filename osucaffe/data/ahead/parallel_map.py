"""Owns work on many records at once: threads that run ahead, results in order, bad records."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ...errors import UserError

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

    The first few are named in the log, and all are counted in `count`, each once if it has a
    number. Safe to use from threads. A copy in another process tells of them instead (`tell`, with
    the number), if it is set.
    """

    tell: Callable[[int, str], None] | None = None

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.count = 0
        self._told_next = _NAMED
        self._instead: dict[int, int] = {}
        """By the number of a bad record, that of the one that takes its place."""
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return partial(BadRecords, skip=self.skip), ()

    def usable(
        self, record: int, count: int, read: Callable[[int], _Result], none: str
    ) -> tuple[_Result, int]:
        """What `read` makes of a record of so many, and its number; where that is bad and to be
        skipped, of the next one that is not. None is read again that was once found to be bad.

        none: the message where none can be used.
        """
        passed, at = [record], record
        for _ in range(count):
            at = self._instead.get(at, at)
            try:
                item = read(at)
            except UserError as error:
                self.report(error, at)
                passed.append(at)
                at = (at + 1) % count
                continue
            self._instead.update({each: at for each in passed if each != at})
            return item, at
        raise UserError(none)

    def report(self, error: UserError, record: int | None = None) -> None:
        """Raise the error, or note it. record: its number, if it may be found again."""
        if not self.skip:
            raise error
        with self._lock:
            if record is not None:
                if record in self._instead:
                    return
                self._instead[record] = record
            if self.tell:
                self.tell(record or 0, str(error))
                return
            self.count += 1
            if self.count <= _NAMED:
                _log.warning("Skipped: %s", error)
            if self.count == self._told_next:
                self._told_next *= 2
                _log.warning(
                    "Skipped: %s records so far; further ones are counted, but not named",
                    f"{self.count:,}",
                )


def map_usable(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    threads: int,
    bad: BadRecords,
    advance: Callable[[], object],
) -> Iterator[tuple[_Item, _Result]]:
    """Items with what `map_ahead` gives of them, but for those of which the function raises
    UserError: what becomes of these, `bad` decides. advance is called after each."""

    def attempt(item: _Item) -> _Result | UserError:
        try:
            return function(item)
        except UserError as error:
            return error

    for item, result in zip(items, map_ahead(attempt, items, threads), strict=True):
        advance()
        if isinstance(result, UserError):
            bad.report(result)
        else:
            yield item, result
