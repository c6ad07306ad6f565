"""The checksums in the files of snapshots, which other programs read past.

A binary message begins with its checksum, as a field of a number that nobody uses: readers of
protobuf leave it alone, and a program that changes the message writes such fields last, where it
no longer counts. At the beginning it also reveals a file that was cut short between two fields. An
HDF5 file has it after its end, where the library does not look; a program that changes the file
cuts it off.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import BinaryIO

from ..errors import UserError
from ..files import open_file, unreadable

_TAG = bytes.fromhex("85a0f8fa05")
"""Field 200,000,000, of four bytes (fixed32)."""
_HEAD = len(_TAG) + 4
_FOOT = len(b"\nosucaffe crc32 01234567\n")
_FOOT_FORM = re.compile(rb"\nosucaffe crc32 ([0-9a-f]{8})\n")
_AT_ONCE = 1 << 24


def head(message: bytes) -> bytes:
    """What to write before a binary message."""
    return _TAG + zlib.crc32(message).to_bytes(4, "little")


def foot(content: bytes) -> bytes:
    """What to write after an HDF5 file."""
    return b"\nosucaffe crc32 %08x\n" % zlib.crc32(content)


def check_message(path: str | Path, content: bytes) -> bytes:
    """The message in a file's content, without its checksum. UserError where that tells of damage;
    other programs' files have none."""
    if not content.startswith(_TAG):
        return content
    message = content[_HEAD:]
    if head(message) != content[:_HEAD]:
        raise _damaged(path)
    return message


def check_hdf5(path: str | Path) -> None:
    """UserError where the checksum after an HDF5 file, if there is one, tells of damage."""
    try:
        with open_file(path) as file:
            stated = _read_foot(file)
            if stated is None:
                return
            left = file.seek(-_FOOT, 2)
            file.seek(0)
            found = 0
            while left and (part := file.read(min(left, _AT_ONCE))):
                found = zlib.crc32(part, found)
                left -= len(part)
    except OSError as error:
        raise unreadable(path, error) from None
    if left or found != stated:
        raise _damaged(path)


def stated_checksum(path: str | Path) -> int | None:
    """The checksum that a file states, of either form; None if it has none. UserError."""
    try:
        with open_file(path) as file:
            start = file.read(_HEAD)
            if start.startswith(_TAG):
                return int.from_bytes(start[len(_TAG) :], "little")
            return _read_foot(file) if file.seekable() else None
    except OSError as error:
        raise unreadable(path, error) from None


def _read_foot(file: BinaryIO) -> int | None:
    if file.seek(0, 2) < _FOOT:
        return None
    file.seek(-_FOOT, 2)
    form = _FOOT_FORM.fullmatch(file.read(_FOOT))
    return int(form[1], 16) if form else None


def _damaged(path: str | Path) -> UserError:
    return UserError(
        f"{path}: damaged or cut short: it is not what its checksum says; copy it again from where "
        "it was made, or take an older snapshot"
    )
