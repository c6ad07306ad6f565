"""Reading LMDBs: their records by number in key order, and the records' file offsets."""

from __future__ import annotations

import bisect
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from .lmdb_tree import COPY_AGAIN, HEADER, Leaves, LmdbTree
from .record_database import Database, Record, ValueRanges

_AT_ONCE = 1000
"""Keys that are read at a time."""
# The first overflow page of a value: number, flags, and the number of pages.
_VALUE_PAGE = struct.Struct("<Q 2x H I")
_VALUE = 0x04


class LmdbDatabase(Database):
    """An LMDB folder.

    Raises UserError where the folder is missing or no LMDB, or the file empty, cut short or damaged
    (here, and wherever it is read).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tree = LmdbTree(path)
        self.count = self._tree.entries
        self._lock = threading.RLock()
        self._walk = self._tree.leaves()
        self._leaves: list[Leaves] = []
        """The leaves that were read, some at a time, in the order of their keys,"""
        self._ends: list[int] = []
        """and the number of records up to and including each."""
        self._mapped: tuple[memoryview, ValueRanges] | None = None

    def __reduce__(self) -> Any:
        return LmdbDatabase, (self.path,)

    def check(self) -> None:
        """Without locks a writer cannot see readers, and reuses pages that are still read."""
        if self._tree.changed():
            raise UserError(
                f"LMDB {self.path} is being written: it has changed since it was opened. Let what "
                "writes it end first, or read a copy."
            )

    def _select(self, start: int, stop: int) -> Leaves:
        """The locations of the records start .. stop - 1."""
        self.check_range(start, stop)
        with self._lock:
            while not self._ends or self._ends[-1] < stop:
                leaves = next(self._walk, None)
                end = (self._ends[-1] if self._ends else 0) + (len(leaves.keys) if leaves else 0)
                if leaves is None or end > self.count:
                    self._walk = iter(())
                    self._tree.damaged(
                        f"its pages hold other than the {self.count:,} records it says"
                    )
                self._leaves.append(leaves)
                self._ends.append(end)
        parts = []
        for leaf in range(bisect.bisect_right(self._ends, start), len(self._ends)):
            first = self._ends[leaf] - len(self._leaves[leaf].keys)
            if first >= stop:
                break
            parts.append(
                [field[max(start - first, 0) : stop - first] for field in self._leaves[leaf]]
            )
        if len(parts) == 1:
            return Leaves(*parts[0])
        return Leaves(*map(np.concatenate, zip(*parts, strict=True)))

    def read(self, start: int, stop: int) -> list[Record]:
        leaves = self._select(start, stop)
        keys = self._views(leaves.keys, leaves.key_sizes)
        if not leaves.elsewhere.any():
            return list(zip(keys, self._views(leaves.values, leaves.sizes), strict=True))
        before = np.where(leaves.elsewhere, HEADER, 0)
        values = self._views(leaves.values - before, leaves.sizes + before)
        for i in np.flatnonzero(leaves.elsewhere).tolist():
            values[i] = self._without_header(
                values[i], int(leaves.values[i]) // self._tree.page_size
            )
        return list(zip(keys, values, strict=True))

    def keys(self) -> Iterator[bytes]:
        for first in range(0, self.count, _AT_ONCE):
            leaves = self._select(first, min(first + _AT_ONCE, self.count))
            yield from map(bytes, self._views(leaves.keys, leaves.key_sizes))

    def value(self, number: int) -> memoryview:
        with self._lock:
            if self._mapped is None:
                ranges = self.ranges(0, self.count)
                mapped = mmap.mmap(ranges.file.fileno(), 0, access=mmap.ACCESS_READ)
                self._mapped = memoryview(mapped), ranges
        memory, ranges = self._mapped
        begin = int(ranges.begins[number])
        end = begin + int(ranges.sizes[number])
        # To touch what is not there would end the process (SIGBUS).
        if os.fstat(ranges.file.fileno()).st_size < end:
            raise UserError(f"LMDB {self.path} has become shorter while it was read: {COPY_AGAIN}")
        return memory[begin:end]

    def _without_header(self, value: memoryview, page: int) -> memoryview:
        """A value without the header of the first of its pages, which is checked."""
        number, flags, count = _VALUE_PAGE.unpack_from(value)
        if number != page or not flags & _VALUE or count * self._tree.page_size < len(value):
            self._tree.damaged(f"its page {page} is not that of a record")
        return value[HEADER:]

    def rows(self, start: int, stop: int) -> np.ndarray | None:
        leaves = self._select(start, stop)
        length = int(leaves.sizes[0])
        if not length or (leaves.sizes != length).any():
            return None
        data, offsets = self._tree.fetch(leaves.values, leaves.sizes)
        # Rows that may begin at any byte: to pick among them takes half the time of bytes' numbers.
        rows = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))[offsets]
        return rows.view(np.uint8).reshape(-1, length)

    def ranges(self, start: int, stop: int) -> ValueRanges:
        leaves = self._select(start, stop)
        return ValueRanges(self._tree.stream, leaves.values, leaves.sizes)

    def _views(self, begins: np.ndarray, sizes: np.ndarray) -> list[memoryview]:
        data, offsets = self._tree.fetch(begins, sizes)
        view = memoryview(data.data)
        ends = (offsets + sizes).tolist()
        return [view[begin:end] for begin, end in zip(offsets.tolist(), ends, strict=True)]
