"""Owns LMDB: reading in key order without locks or copies, and writing whole databases at once."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import shutil
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import lmdb

from osucaffe.errors import UserError

from .lmdb_file import Places, Watch, check, find_places

_MARK_EVERY = 64


class Database:
    """An LMDB folder, read-only. Records are numbered in key order from 0.

    Open one with `open_database`. Safe to use from several threads.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        try:
            # No locks: read-only folders and network file systems work, and nothing is written.
            self._environment = lmdb.open(
                str(path), map_size=size, readonly=True, lock=False, readahead=True
            )
        except lmdb.Error as error:
            raise UserError(f"cannot open LMDB {path}: {error}") from error
        self.count: int = self._environment.stat()["entries"]
        self.file = (path / "data.mdb").open("rb", buffering=0)
        # LMDB finds keys, not numbers: so the key of every 64th record is noted on the way.
        self._watch = Watch(self.file)
        self._marks: list[bytes] = []
        self._lock = threading.Lock()
        self._values: tuple[memoryview, Places] | None = None

    def __len__(self) -> int:
        return self.count

    def check(self) -> None:
        """UserError if it has been written to since it was opened. Without locks a writer knows of
        no reader, and uses pages again that are still read here."""
        if self._watch.changed():
            raise UserError(
                f"LMDB {self.path} is being written: it has changed since it was opened. Let what "
                "writes it end first, or read a copy."
            )

    @contextlib.contextmanager
    def read(self, start: int, stop: int) -> Iterator[list[tuple[memoryview, memoryview]]]:
        """Keys and values of the records start .. stop - 1, in key order.

        They are views of the mapped file, valid inside the `with` block only.
        """
        if not 0 <= start < stop <= self.count:
            raise IndexError(f"records {start} to {stop} of {self.count} in {self.path}")
        mark = self._mark(start // _MARK_EVERY)
        with self._environment.begin(buffers=True) as transaction:
            cursor = transaction.cursor()
            cursor.set_key(mark)
            skip = start % _MARK_EVERY
            yield list(itertools.islice(cursor.iternext(), skip, skip + stop - start))

    def key(self, number: int) -> bytes:
        """The key of a record."""
        with self.read(number, number + 1) as [(key, _)]:
            return bytes(key)

    def value(self, number: int) -> memoryview:
        """The value of a record, of which only what is looked at is read from the disk.

        (`read` lets LMDB read all of it: better where all is wanted, or the values are small.)
        """
        with self._lock:
            if self._values is None:
                places = self.places()
                if places is None:
                    raise UserError(f"{self.path} is not an LMDB as Caffe's tools write them")
                whole = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
                self._values = memoryview(whole), places
        file, places = self._values
        begin = int(places.begins[number])
        return file[begin : begin + int(places.sizes[number])]

    def keys(self) -> Iterator[bytes]:
        """The keys of all records, in their order."""
        with self._environment.begin() as transaction:
            yield from transaction.cursor().iternext(keys=True, values=False)

    def places(self) -> Places | None:
        """Where the values lie in `file`; None if they cannot be found there."""
        with open(self.file.name, "rb") as stream:
            same = os.path.sameopenfile(stream.fileno(), self.file.fileno())
            places = find_places(stream) if same else None
        return places if places is not None and len(places.begins) == self.count else None

    def _mark(self, block: int) -> bytes:
        """The key of record 64 * block."""
        with self._lock:
            if block >= len(self._marks):
                with self._environment.begin() as transaction:
                    cursor = transaction.cursor()
                    if self._marks:
                        cursor.set_key(self._marks.pop())
                    else:
                        cursor.first()
                    keys = cursor.iternext(keys=True, values=False)
                    missing = block + 1 - len(self._marks)
                    self._marks += itertools.islice(
                        keys, 0, _MARK_EVERY * (missing - 1) + 1, _MARK_EVERY
                    )
            return self._marks[block]


_opened: weakref.WeakValueDictionary[tuple[int, int], Database] = weakref.WeakValueDictionary()


def open_database(path: str | os.PathLike[str]) -> Database:
    """Open a database for reading; UserError when it is missing, empty, cut short or damaged.

    Neither LMDB nor LevelDB can be opened twice in one process: a folder that is open already is
    shared. Which of the two it is, the folder says.
    """
    from .leveldb_database import LevelDatabase, is_leveldb

    folder = Path(path)
    level = is_leveldb(folder)
    size = 0 if level else check(folder)
    # LevelDB writes its files anew when it is opened: the folder stays.
    status = (folder if level else folder / "data.mdb").stat()
    identity = (status.st_dev, status.st_ino)
    database = _opened.get(identity)
    if database is None:
        database = LevelDatabase(folder) if level else Database(folder, size)
        _opened[identity] = database
    return database


def record_key(index: int, name: str = "") -> bytes:
    """The key that Caffe's tools give a record: eight digits, then _name for an image file."""
    return f"{index:08d}{'_' + name if name else ''}".encode()


def write_database(
    path: str | os.PathLike[str], records: Iterable[tuple[bytes, bytes]], *, batch: int = 1000
) -> int:
    """Write records, in rising order of their keys, as the LMDB folder `path`; return their number.

    All or nothing: the folder is built beside `path`, flushed to disk, then renamed. An LMDB that
    stands there is replaced; anything else there is left alone (UserError). `batch` records are
    one transaction.
    """
    target = Path(path)
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}"
    try:
        if target.exists() and not _is_database_folder(target):
            raise UserError(f"{target} exists and is not an LMDB: remove it or use another name.")
        temporary.mkdir(parents=True)
        count = _write(temporary, iter(records), batch)
        _replace(temporary, target)
    except OSError as error:
        raise UserError(f"cannot write LMDB {target}: {error.strerror or error}") from error
    except lmdb.Error as error:
        # This is all that LMDB says of a write that was cut short.
        hint = "; is the disk full?" if "Input/output error" in str(error) else ""
        raise UserError(f"cannot write LMDB {target}: {error}{hint}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return count


def convert_database(
    database: Database,
    target: str | os.PathLike[str],
    *,
    advance: Callable[[], object] = lambda: None,
) -> int:
    """Write the records of a database as the LMDB `target`; return their number. UserError."""

    def records() -> Iterator[tuple[bytes, bytes]]:
        for start in range(0, len(database), _MARK_EVERY):
            with database.read(start, min(start + _MARK_EVERY, len(database))) as found:
                for key, value in found:
                    advance()
                    yield bytes(key), bytes(value)

    return write_database(target, records())


def _is_database_folder(path: Path) -> bool:
    return path.is_dir() and {item.name for item in path.iterdir()} <= {"data.mdb", "lock.mdb"}


def _write(folder: Path, records: Iterator[tuple[bytes, bytes]], batch: int) -> int:
    count = 0
    size = 1 << 26
    with lmdb.open(
        str(folder), map_size=size, lock=False, sync=False, metasync=False, meminit=False
    ) as environment:
        while chunk := list(itertools.islice(records, batch)):
            while True:
                try:
                    with environment.begin(write=True) as transaction:
                        for key, value in chunk:
                            if not transaction.put(key, value, append=True):
                                raise ValueError(f"key {key!r} does not come after the last one")
                    break
                except lmdb.MapFullError:  # the transaction is undone: enlarge the map, try again
                    size *= 2
                    environment.set_mapsize(size)
            count += len(chunk)
        environment.sync(True)
    return count


def _replace(temporary: Path, target: Path) -> None:
    """Move the finished folder to its name (a folder that is not empty cannot be renamed over)."""
    if target.exists():
        old = temporary.with_name(temporary.name + ".old")
        target.rename(old)
        temporary.rename(target)
        shutil.rmtree(old)
    else:
        temporary.rename(target)
