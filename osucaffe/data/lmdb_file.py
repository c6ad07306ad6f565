"""Owns the check that an LMDB's file is whole, made before LMDB maps it.

LMDB trusts its meta pages: reading a page beyond the end of a file that was cut short kills the
process (SIGBUS). So the pages are looked at here by plain reading.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

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
    first = _read_meta(stream, 0)
    if first is None or first.magic != _MAGIC:
        raise UserError(f"{path}/data.mdb is not an LMDB file, or is damaged. {_REMEDY}")
    # Two meta pages take turns; the one with the later transaction counts.
    second = _read_meta(stream, first.page_size)
    meta = first
    if second and second.magic == _MAGIC and second.transaction > first.transaction:
        meta = second
    needed = (meta.last_page + 1) * meta.page_size
    # Pages at the end that were freed before they were ever written may be missing rightly.
    if second is None or (size < needed and not _pages_in_use_exist(stream, size, meta)):
        raise UserError(
            f"LMDB {path} is truncated: data.mdb has {size:,} bytes, its own meta page says "
            f"{needed:,}. Copy it again from where it was made."
        )
    if meta.entries == 0:
        raise UserError(f"LMDB {path} has no records. {_REMEDY}")
    return needed


def _read_meta(stream: BinaryIO, at: int) -> _Meta | None:
    stream.seek(at)
    content = stream.read(_META.size)
    return _Meta(*_META.unpack(content)) if len(content) == _META.size else None


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
        stream.seek(page * meta.page_size)
        content = stream.read(meta.page_size)
        _, flags, lower = _PAGE.unpack_from(content)
        for (offset,) in struct.iter_unpack("<H", content[_PAGE.size : lower]):
            number, node_flags, key_size = _NODE.unpack_from(content, offset)
            if flags & _BRANCH:
                pages.append(number | node_flags << 32)
            elif node_flags & _VALUE_ELSEWHERE:
                (start,) = struct.unpack_from("<Q", content, offset + _NODE.size + key_size)
                # The value follows the header of the first of its pages, without further ones.
                if start * meta.page_size + _PAGE.size + number > size:
                    return False
    return True
