"""The interface of a database of records, LMDB or LevelDB, read by number in key order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ...errors import UserError
from .datum import Datum, parse_datum, pixels

Record = tuple[memoryview, memoryview]
"""Key and value."""


class ValueRanges(NamedTuple):
    """The locations of values in a file, in the order of their keys: offset and length."""

    file: BinaryIO
    begins: np.ndarray
    sizes: np.ndarray


class Database(ABC):
    """A folder of records, read-only. They are numbered in key order from 0.

    Open one with `open_database` (database.py). Safe to use from several threads.
    """

    path: Path
    count: int
    shared: bool = True
    """Whether several processes can open it."""

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
        """The value of a record, which may be read from disk lazily."""
        [(_, value)] = self.read(number, number + 1)
        return value

    def key(self, number: int) -> bytes:
        """The key of a record."""
        [(key, _)] = self.read(number, number + 1)
        return bytes(key)

    def name(self, key: memoryview | bytes) -> str:
        """The name of a record in messages."""
        return f'record "{bytes(key).decode(errors="replace")}" of {self.path}'

    def decode(
        self,
        key: memoryview,
        value: memoryview,
        colour: bool | None = None,
        memory: np.ndarray | None = None,
    ) -> tuple[Datum, np.ndarray]:
        """A record's fields and its image (channels, height, width); see `datum.pixels`.

        memory: where to decode an image that fits. UserError names a record that is damaged.
        """
        try:
            datum = parse_datum(value)
            return datum, pixels(datum, colour, memory)
        except ValueError as error:
            raise UserError(f"{self.name(key)} cannot be read: {error}") from error

    def ranges(self, start: int, stop: int) -> ValueRanges | None:
        """The file offsets of the values of the records start .. stop - 1; None if the file does
        not hold them verbatim."""
        return None

    def rows(self, start: int, stop: int) -> np.ndarray | None:
        """The values of small records as rows of one array, if they have one length."""
        values = [value for _, value in self.read(start, stop)]
        if not values[0] or any(len(value) != len(values[0]) for value in values):
            return None
        return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
