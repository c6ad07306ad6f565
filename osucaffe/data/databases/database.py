"""Opening a database of either kind, and writing LMDBs."""

from __future__ import annotations

import itertools
import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import lmdb

from ...errors import UserError
from ...files import remove_leftovers, temporary_beside
from .leveldb_database import LevelDatabase, is_leveldb
from .lmdb_database import LmdbDatabase
from .record_database import Database

_AT_ONCE = 64
"""Records per copied chunk."""


_opened: weakref.WeakValueDictionary[tuple[int, int], Database] = weakref.WeakValueDictionary()


def open_database(path: str | os.PathLike[str]) -> Database:
    """Open a database for reading; UserError when it is missing, empty, cut short or damaged.

    LevelDB cannot be opened twice in one process: a folder that is open already is shared. The
    folder's files show which of the two it is.
    """
    folder = Path(path)
    if not is_leveldb(folder):
        return LmdbDatabase(folder)
    # It writes its files again when it is opened: the folder stays.
    status = folder.stat()
    identity = (status.st_dev, status.st_ino)
    database = _opened.get(identity)
    if database is None:
        database = _opened[identity] = LevelDatabase(folder)
    return database


def record_key(index: int, name: str = "") -> bytes:
    """The key that Caffe's tools give a record: eight digits, then _name for an image file."""
    return f"{index:08d}{'_' + name if name else ''}".encode(errors="surrogateescape")


def write_database(
    path: str | os.PathLike[str], records: Iterable[tuple[bytes, bytes]], *, batch: int = 1000
) -> int:
    """Write records, in rising order of their keys, as the LMDB folder `path`; return their number.

    All or nothing: the folder is built next to `path`, flushed to disk, then renamed. An existing
    LMDB is replaced; anything else is not touched (UserError). `batch` records are
    one transaction.
    """
    target = Path(path)
    try:
        if target.exists() and not _is_database_folder(target):
            raise UserError(f"{target} exists and is not an LMDB: remove it or use another name.")
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        with temporary_beside(target, folder=True) as temporary:
            count = _write(temporary.open_path, iter(records), batch)
            _replace(temporary.path, target)
    except OSError as error:
        raise UserError(f"cannot write LMDB {target}: {error.strerror or error}") from error
    except lmdb.Error as error:
        # This is all that LMDB says of a write that was cut short.
        hint = "; is the disk full?" if "Input/output error" in str(error) else ""
        raise UserError(f"cannot write LMDB {target}: {error}{hint}") from error
    return count


def convert_database(
    database: Database,
    target: str | os.PathLike[str],
    *,
    advance: Callable[[], object] = lambda: None,
) -> int:
    """Write the records of a database as the LMDB `target`; return their number. UserError."""

    def records() -> Iterator[tuple[bytes, bytes]]:
        for start in range(0, len(database), _AT_ONCE):
            for key, value in database.read(start, min(start + _AT_ONCE, len(database))):
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
                except lmdb.BadValsizeError:
                    raise UserError(
                        f'"{os.fsdecode(key)}" cannot be a key of an LMDB: keys have 1 to '
                        f"{environment.max_key_size()} bytes: give the files shorter names"
                    ) from None
                except lmdb.MapFullError:  # the transaction is undone: enlarge the map, try again
                    size *= 2
                    environment.set_mapsize(size)
            count += len(chunk)
        environment.sync(True)
    return count


def _replace(temporary: Path, target: Path) -> None:
    """Move the finished folder to its name (a folder that is not empty cannot be renamed over)."""
    if target.exists():
        old = temporary.with_suffix(".old")
        target.rename(old)
        temporary.rename(target)
        shutil.rmtree(old)
    else:
        temporary.rename(target)
