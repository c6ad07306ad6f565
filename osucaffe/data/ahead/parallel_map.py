"""Parallel processing of records: threads that run ahead, results in order, bad records."""

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

    Only a few items are taken ahead of the results, which bounds the memory in use. Exceptions of
    the function are raised in the order of the items.
    """
    rest = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="osucaffe-data") as pool:
        pending: deque[Future[_Result]] = deque()
        try:
            for item in itertools.islice(rest, _AHEAD * threads):
                pending.append(pool.submit(function, item))
            while pending:
                result = pending.popleft().result()
                pending.extend(pool.submit(function, item) for item in itertools.islice(rest, 1))
                yield result
        finally:
            for future in pending:
                future.cancel()


class BadRecords:
    """The handling of unusable records: the first is an error, or each is counted and skipped.

    The first few are named in the log, and all are counted in `count`, each once if it has a
    number. hint: ends the error. Safe to use from threads. A copy in another process reports them
    by `tell` instead (with the number), if it is set.
    """

    tell: Callable[[int, str], None] | None = None

    def __init__(self, *, skip: bool = False, hint: str = "") -> None:
        self.skip, self.hint = skip, hint
        self.count = 0
        self._told_next = _NAMED
        self._instead: dict[int, int] = {}
        """The replacement of each bad record, by number."""
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return partial(BadRecords, skip=self.skip, hint=self.hint), ()

    def usable(
        self, record: int, count: int, read: Callable[[int], _Result], none: str
    ) -> tuple[_Result, int]:
        """The result of `read` for a record of `count`, and its number; if that is bad and to be
        skipped, for the next good one. Records known to be bad are not read again.

        none: the message if none can be used.
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
            self._instead.update({record: at for record in passed if record != at})
            return item, at
        raise UserError(none)

    @property
    def skipped(self) -> set[int]:
        """The numbers of those that are bad themselves or were replaced."""
        return set(self._instead)

    def report(self, error: UserError, record: int | None = None) -> None:
        """Raise the error, or count it. record: its number, if it may be seen again."""
        if not self.skip:
            raise UserError(f"{error}{self.hint}") from error
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
    """Items with their results from `map_ahead`, except those for which the function raises
    UserError, which `bad` handles. advance is called after each."""

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
