"""Owns an LMDB's file as it lies on disk: whether it is whole, or changing; where its values are.

LMDB trusts its meta pages: reading a page beyond the end of a file that was cut short kills the
process (SIGBUS). So the pages are looked at here by plain reading, before LMDB maps them.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from osucaffe.errors import UserError

# A meta page: page header (16 bytes), then magic, version, address, map size, two tree
# descriptions of 48 bytes (the first begins with the page size; the second ends with the number
# of entries and the root page), the last page in use, and the transaction that wrote it.
_META = struct.Struct("<16x I 4x 16x I 44x 32x Q Q Q Q")
_MAGIC = 0xBEEFC0DE
# A page: number, padding, flags, and where its free space begins; then the offsets of its nodes.
_PAGE = struct.Struct("<Q 2x H H 2x")
_BRANCH = 0x01
# A node: size of the value (or number of the child page), flags, size of the key, key, value.
_NODE = struct.Struct("<I H H")
_VALUE_ELSEWHERE = 0x01
_REMEDY = "Make it again (osucaffe data, convert_imageset), or correct `source`."


class _Meta(NamedTuple):
    magic: int
    page_size: int
    entries: int
    root: int
    last_page: int
    transaction: int


def check(path: Path) -> int:
    """Check that the folder `path` holds a whole LMDB with records; return the bytes to map.

    Raises UserError when it is missing, no LMDB, empty, or cut short.
    """
    file = path / "data.mdb"
    try:
        if not path.exists():
            raise UserError(f"LMDB {path} does not exist (looked in {Path.cwd()}). {_REMEDY}")
        if not path.is_dir() or not file.is_file():
            raise UserError(f"{path} is no LMDB: that is a folder with a file data.mdb. {_REMEDY}")
        with file.open("rb") as stream:
            return _check(path, stream, file.stat().st_size)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}. Check its permissions.") from error


def _check(path: Path, stream: BinaryIO, size: int) -> int:
    if size == 0:
        raise UserError(f"LMDB {path}: data.mdb is empty, nothing was written to it. {_REMEDY}")
    meta = _newest_meta(stream)
    if meta is None:
        raise UserError(f"{path}/data.mdb is not an LMDB file, or is damaged. {_REMEDY}")
    needed = (meta.last_page + 1) * meta.page_size
    # Pages at the end that were freed before they were ever written may be missing rightly.
    if size < 2 * meta.page_size or (size < needed and not _pages_in_use_exist(stream, size, meta)):
        raise UserError(
            f"LMDB {path} is truncated: data.mdb has {size:,} bytes, its own meta page says "
            f"{needed:,}. Copy it again from where it was made."
        )
    if meta.entries == 0:
        raise UserError(f"LMDB {path} has no records. {_REMEDY}")
    return needed


def _newest_meta(stream: BinaryIO) -> _Meta | None:
    """The meta page that counts; None if the file is no LMDB."""
    first = _read_meta(stream, 0)
    if first is None or first.magic != _MAGIC:
        return None
    # Two meta pages take turns; the one with the later transaction counts.
    second = _read_meta(stream, first.page_size)
    if second and second.magic == _MAGIC and second.transaction > first.transaction:
        return second
    return first


def _read_meta(stream: BinaryIO, at: int) -> _Meta | None:
    stream.seek(at)
    content = stream.read(_META.size)
    return _Meta(*_META.unpack(content)) if len(content) == _META.size else None


class Watch:
    """Sees whether a whole LMDB is written to from now on."""

    def __init__(self, stream: BinaryIO) -> None:
        meta = _read_meta(stream, 0)
        assert meta is not None
        self._size = meta.page_size
        self._pages = mmap.mmap(stream.fileno(), 2 * self._size, access=mmap.ACCESS_READ)
        self._first = self._transactions()

    def _transactions(self) -> list[int]:
        """The transactions that the two meta pages are of."""
        return [_META.unpack_from(self._pages, at)[-1] for at in (0, self._size)]

    def changed(self) -> bool:
        """Whether a transaction has ended since this was made."""
        return self._transactions() != self._first


def _pages_in_use_exist(stream: BinaryIO, size: int, meta: _Meta) -> bool:
    """Whether all pages that hold keys or values lie within the file. Walks the tree of keys.

    The last keys come first: where records were appended, these are what a short file lacks.
    """
    if meta.entries == 0:
        return True
    pages = [meta.root]
    while pages:
        page = pages.pop()
        if (page + 1) * meta.page_size > size:
            return False
        content, is_branch = _read_page(stream, page, meta)
        for offset, number, flags, key_size in _nodes(content):
            if is_branch:
                pages.append(number | flags << 32)
            elif flags & _VALUE_ELSEWHERE:
                start = _place_elsewhere(content, offset, key_size, meta)
                if start + number > size:
                    return False
    return True


class Places(NamedTuple):
    """Where the values lie, in the order of their keys: first byte in the file, and length."""

    begins: np.ndarray
    sizes: np.ndarray


def find_places(stream: BinaryIO) -> Places:
    """Where the values of a whole LMDB lie in its file. Reads the pages of keys, not the values.

    Sub-databases and several values of one key, which Caffe does not make, are left out.
    """
    meta = _newest_meta(stream)
    assert meta is not None
    places = []
    pages = [meta.root] if meta.entries else []
    while pages:
        page = pages.pop()
        content, is_branch = _read_page(stream, page, meta)
        children = []
        for offset, number, flags, key_size in _nodes(content):
            if is_branch:
                children.append(number | flags << 32)
            elif flags == _VALUE_ELSEWHERE:
                places.append((_place_elsewhere(content, offset, key_size, meta), number))
            elif not flags:
                start = page * meta.page_size + offset + _NODE.size + key_size
                places.append((start, number))
        pages += reversed(children)
    return Places(*np.array(places, np.int64).reshape(-1, 2).T.copy())


def _read_page(stream: BinaryIO, page: int, meta: _Meta) -> tuple[bytes, bool]:
    """A page of keys, and whether it is a branch: its nodes are pages then, not records."""
    stream.seek(page * meta.page_size)
    content = stream.read(meta.page_size)
    return content, bool(_PAGE.unpack_from(content)[1] & _BRANCH)


def _nodes(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Of each node of a page: its offset, size of the value or page, flags, size of the key."""
    lower = _PAGE.unpack_from(content)[2]
    for (offset,) in struct.iter_unpack("<H", content[_PAGE.size : lower]):
        yield offset, *_NODE.unpack_from(content, offset)


def _place_elsewhere(content: bytes, offset: int, key_size: int, meta: _Meta) -> int:
    """Where a value begins that has pages of its own."""
    (page,) = struct.unpack_from("<Q", content, offset + _NODE.size + key_size)
    # The value follows the header of the first of its pages, without further ones.
    return page * meta.page_size + _PAGE.size
