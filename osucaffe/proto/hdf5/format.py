"""Owns the parts that HDF5 files are made of: where they lie, and the messages that describe an
object, checked before they are trusted.

Names are those of the format's specification (HDF5 File Format Specification 3.0).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import IntEnum
from typing import BinaryIO, NamedTuple

from .lookup3 import check_sum

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FIRST_OF_OTHERS = 512  # where a file may begin that has something else before it; then 1024 ...
_MOST_SUMMED = 1 << 20
"""Bytes of an object's description whose checksum we take: 64 KiB is a lot."""


class Kind(IntEnum):
    """Of messages."""

    DATASPACE = 1
    LINK_INFO = 2
    DATATYPE = 3
    OLD_FILL = 4
    FILL = 5
    LINK = 6
    EXTERNAL = 7
    LAYOUT = 8
    GROUP_INFO = 10
    FILTERS = 11
    CONTINUATION = 16
    SYMBOL_TABLE = 17


GROUP_TREE, CHUNK_TREE = 0, 1


class UnknownForm(ValueError):
    """A form of the format that is not read here, but by the library."""


class Cursor:
    """Reads little-endian numbers, one after the other; what is not there is a ValueError."""

    def __init__(self, content: bytes, address_size: int, length_size: int) -> None:
        self._content, self._at = content, 0
        self._address_size, self._length_size = address_size, length_size

    @property
    def left(self) -> int:
        return len(self._content) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise ValueError("a part of it is cut short")
        self._at += size
        return self._content[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def numbers(self, *sizes: int) -> list[int]:
        return [self.number(size) for size in sizes]

    def length(self) -> int:
        return self.number(self._length_size)

    def address(self) -> int | None:
        """None where there is none, which is written as the largest number."""
        found = self.number(self._address_size)
        return None if found == (1 << 8 * self._address_size) - 1 else found

    def part(self, size: int) -> Cursor:
        """One over the next bytes."""
        return Cursor(self.take(size), self._address_size, self._length_size)


class Storage:
    """The bytes of an open file. `root`: the address of the root group's description;
    `length_size`: the bytes of a length."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.size = file, os.fstat(file.fileno()).st_size
        self._base = 0
        while self.read(0, min(len(SIGNATURE), self.size - self._base)) != SIGNATURE:
            self._base = max(self._base * 2, _FIRST_OF_OTHERS)
            if self._base >= self.size:
                raise ValueError("it does not begin as HDF5 files do")
        self.root = self._superblock()

    def _superblock(self) -> int:
        start = self.read(0, min(self.size - self._base, 112)).ljust(112, b"\0")
        version = start[8]
        sizes = start[13:15] if version < 2 else start[9:11]
        if version > 3 or not {*sizes} <= {2, 4, 8}:
            raise ValueError("its first block is damaged, or of a version that is not known")
        self._sizes = sizes[0], sizes[1]
        self.length_size = sizes[1]
        fields = Cursor(start, *sizes)
        fields.take((24, 28)[version] if version < 2 else 12)
        fields.take(4 * sizes[0] + sizes[0] if version < 2 else 3 * sizes[0])
        root = fields.number(sizes[0])
        if version >= 2:
            end = 12 + 4 * sizes[0]
            check_sum(start[: end + 4])
        return root

    def check(self, at: int, size: int) -> None:
        """ValueError where the file does not have so many bytes there."""
        if at + size > self.size - self._base:
            raise ValueError("it is cut short, or a part of it lies behind its end")

    def read(self, at: int, size: int) -> bytes:
        """So many bytes; ValueError where the file has none."""
        self.check(at, size)
        found = os.pread(self._file.fileno(), size, self._base + at)
        if len(found) < size:
            raise ValueError("it was cut short while it was read")
        return found

    def read_into(self, at: int, place: memoryview) -> None:
        """Fill the place, which is of bytes."""
        done = 0
        while done < len(place):
            count = os.preadv(self._file.fileno(), [place[done:]], self._base + at + done)
            if not count:
                raise ValueError("it was cut short while it was read")
            done += count

    def cursor(self, at: int, size: int) -> Cursor:
        return Cursor(self.read(at, size), *self._sizes)

    def block(self, signature: bytes, at: int, size: int, *, addresses: int = 0,
              lengths: int = 0) -> Cursor:  # fmt: skip
        """Over one that begins with these four letters, and has so many bytes, addresses and
        lengths behind them."""
        found = self.cursor(at, 4 + size + addresses * self._sizes[0] + lengths * self._sizes[1])
        if found.take(4) != signature:
            raise ValueError(f'something else is where "{signature.decode()}" should be')
        return found


class Message(NamedTuple):
    """A part of an object's description."""

    kind: int
    is_shared: bool
    """What it says lies elsewhere."""
    fields: Cursor


def read_messages(storage: Storage, address: int) -> Iterator[Message]:
    """The messages of an object, of either version."""
    if storage.read(address, 4) == b"OHDR":
        yield from _read_new(storage, address)
        return
    version, _, _, _, size, _ = storage.cursor(address, 16).numbers(1, 1, 2, 4, 4, 4)
    if version != 1:
        raise ValueError("the description of an object is damaged")
    blocks = [(address + 16, size)]
    for at, block_size in _each_once(storage, blocks):
        fields = storage.cursor(at, block_size)
        while fields.left >= 8:
            kind, length, flags, _ = fields.numbers(2, 2, 1, 3)
            yield from _message(kind, flags, fields.part(length), blocks)


def _read_new(storage: Storage, address: int) -> Iterator[Message]:
    _, version, flags = storage.cursor(address, 6).numbers(4, 1, 1)
    if version != 2:
        raise ValueError("the description of an object is damaged")
    wide = 1 << (flags & 3)
    before = 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
    size = int.from_bytes(storage.read(address + before, wide), "little")
    begins = before + wide
    blocks = [(address, begins + size + 4)]
    for at, block_size in _each_once(storage, blocks):
        if block_size > _MOST_SUMMED:
            raise UnknownForm("a description of an object is very long")
        check_sum(storage.read(at, block_size))
        fields = storage.cursor(at, block_size - 4)
        if at != address and fields.take(4) != b"OCHK":
            raise ValueError("the description of an object is damaged")
        fields.take(begins if at == address else 0)
        head = (1, 2, 1, 2) if flags & 4 else (1, 2, 1)
        while fields.left >= sum(head):
            kind, length, message_flags, *_ = fields.numbers(*head)
            yield from _message(kind, message_flags, fields.part(length), blocks)


def _message(
    kind: int, flags: int, fields: Cursor, blocks: list[tuple[int, int]]
) -> Iterator[Message]:
    if kind == Kind.CONTINUATION:
        blocks.append((fields.address() or 0, fields.length()))
    else:
        yield Message(kind, bool(flags & 2), fields)


def _each_once(storage: Storage, blocks: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """These blocks and those that are added; ValueError where they cannot be so many."""
    left = storage.size
    seen = set()
    for at, size in blocks:  # which grows meanwhile
        left -= size
        if at in seen or left < 0:
            raise ValueError("the description of an object has no end")
        seen.add(at)
        yield at, size


def leaves(
    storage: Storage, root: int | None, kind: int, key_size: int
) -> Iterator[tuple[Cursor, int]]:
    """What a B-tree of a kind leads to: the keys, of so many bytes, and the addresses."""
    nodes: list[tuple[int, int | None]] = [] if root is None else [(root, None)]  # and their levels
    seen: set[int] = set()
    while nodes:
        at, expected = nodes.pop()
        found, level, count = storage.block(b"TREE", at, 4).numbers(1, 1, 2)
        if found != kind or expected not in (None, level) or at in seen:
            raise ValueError("the tree that tells where things lie is damaged")
        seen.add(at)
        entries = storage.block(b"TREE", at, 4 + count * key_size, addresses=2 + count)
        entries.take(4)
        _neighbours = entries.address(), entries.address()
        children = []
        for _ in range(count):
            key, child = entries.part(key_size), entries.address()
            if child is None:
                raise ValueError("the tree that tells where things lie has a gap")
            if level:
                children.append((child, level - 1))
            else:
                yield key, child
        nodes += reversed(children)
