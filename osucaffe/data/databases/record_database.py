"""Owns what a database of records is, LMDB or LevelDB: it is read by numbers, in key order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .lmdb_file import Places, Record


class Database(ABC):
    """A folder of records, read-only. They are numbered in key order from 0.

    Open one with `open_database` (database.py). Safe to use from several threads.
    """

    path: Path
    count: int
    shared: bool = True
    """Whether several processes can have it open."""

    def __len__(self) -> int:
        return self.count

    def check(self) -> None:  # noqa: B027 (there may be nothing to check)
        """UserError if it has been written to since it was opened."""

    def check_range(self, start: int, stop: int) -> None:
        """IndexError unless there are records start .. stop - 1."""
        if not 0 <= start < stop <= self.count:
            raise IndexError(f"records {start} to {stop} of {self.count} in {self.path}")

    @abstractmethod
    def read(self, start: int, stop: int) -> list[Record]:
        """Keys and values of the records start .. stop - 1, in key order."""

    @abstractmethod
    def keys(self) -> Iterator[bytes]:
        """The keys of all records, in their order."""

    def value(self, number: int) -> memoryview:
        """The value of a record, of which only what is looked at may be read from the disk."""
        [(_, value)] = self.read(number, number + 1)
        return value

    def key(self, number: int) -> bytes:
        """The key of a record."""
        [(key, _)] = self.read(number, number + 1)
        return bytes(key)

    def places(self, start: int, stop: int) -> Places | None:
        """Where the values of the records start .. stop - 1 lie in a file; None where they do not
        lie there as they are."""
        return None

    def rows(self, start: int, stop: int) -> np.ndarray | None:
        """The values of small records as rows of one array, if they have one length."""
        values = [value for _, value in self.read(start, stop)]
        if not values[0] or any(len(value) != len(values[0]) for value in values):
            return None
        return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
