"""LevelDB, the other database of Caffe's: read as an LMDB is, by numbers in key order."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import UserError
from .record_database import Database, Record

_MARK_EVERY = 64


def is_leveldb(folder: Path) -> bool:
    """Whether a folder holds a LevelDB."""
    return (folder / "CURRENT").is_file()


class LevelDatabase(Database):
    """A LevelDB folder. UserError where it cannot be opened, by another process that has it open
    as well: LevelDB allows one at a time."""

    shared = False

    def __init__(self, path: Path) -> None:
        self.path = path
        remedy = f"convert it: osucaffe data convert {path} LMDB, and name that"
        try:
            import plyvel
        except ImportError:
            raise UserError(
                f'{path} is a LevelDB, which needs the package plyvel: pip install "osucaffe'
                '[leveldb]"'
            ) from None
        try:
            # Checksums are verified: what Caffe's tools wrote years ago may have lost a bit since.
            self._records: Any = plyvel.DB(
                os.fspath(path), create_if_missing=False, paranoid_checks=True
            )
        except (plyvel.Error, OSError) as error:
            busy = "lock" in str(error).lower()
            why = f"another process has it open; {remedy}" if busy else str(error)
            raise UserError(f"cannot open LevelDB {path}: {why}") from error
        # LevelDB finds keys, not numbers, and does not know how many there are: all are looked at.
        self._marks = []
        self.count = 0
        for key in self.keys():
            if self.count % _MARK_EVERY == 0:
                self._marks.append(key)
            self.count += 1
        if not self.count:
            raise UserError(f"LevelDB {path} has no records")

    def read(self, start: int, stop: int) -> list[Record]:
        self.check_range(start, stop)
        skip = start % _MARK_EVERY
        with self._reading(start=self._marks[start // _MARK_EVERY]) as records:
            part = itertools.islice(records, skip, skip + stop - start)
            return [(memoryview(key), memoryview(value)) for key, value in part]

    def keys(self) -> Iterator[bytes]:
        with self._reading(include_value=False) as keys:
            yield from keys

    @contextlib.contextmanager
    def _reading(self, **bounds: Any) -> Iterator[Any]:
        import plyvel

        try:
            with self._records.iterator(verify_checksums=True, **bounds) as records:
                yield records
        except plyvel.Error as error:
            raise UserError(f"LevelDB {self.path} is damaged: {error}") from error
