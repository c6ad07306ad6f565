"""The file format of an LMDB: it is read page by page, and each page is checked.

The LMDB library trusts the pages that it maps: one that is damaged, or beyond the end of a
truncated file, ends the process with a signal. Here it is an error message. A file is a
B+ tree of keys (struct MDB_page, MDB_node and MDB_meta in LMDB's mdb.c): leaves hold the records,
or the page numbers of large ones.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np

from ...errors import UserError

# A meta page: page header (below), then magic, version, address, map size, two tree descriptions of
# 48 bytes (the first begins with the page size; the second ends with the number of entries and the
# root page), the last page in use, and the transaction that wrote it.
_META = struct.Struct("<Q 2x H 4x I I 16x I 44x 32x Q Q Q Q")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
# A page: its number (8 bytes), and in 16-bit words padding, flags, where its free space begins and
# ends; then the offsets of its nodes.
HEADER = 16
_FLAGS, _LOWER, _UPPER, _OFFSETS = 5, 6, 7, 8
_BRANCH, _LEAF, _VALUE, _META_PAGE = 0x01, 0x02, 0x04, 0x08
# A node, in 16-bit words: size of the value (or number of the child page), two words; flags (or the
# number's third word), size of the key; then the key and the value, or the page where that is.
_NODE = 8
_VALUE_ELSEWHERE = 0x01
_GAP = 1 << 16
"""Unneeded bytes that are read if that saves a system call."""
_SMALLEST_PAGE, _LARGEST_PAGE = 256, 1 << 15
_DEEPEST = 32
"""Of any tree: LMDB's limit."""
_REMEDY = "Make it again (osucaffe data, convert_imageset), or correct the path."
COPY_AGAIN = (
    "do not write to the LMDB of a training that runs; copy it again from where it was made"
)


class _Meta(NamedTuple):
    number: int
    flags: int
    magic: int
    version: int
    page_size: int
    entries: int
    root: int
    last_page: int
    transaction: int

    @property
    def is_one(self) -> bool:
        """Whether it is a meta page at all."""
        size = self.page_size
        known = (self.flags, self.magic, self.version) == (_META_PAGE, _MAGIC, _VERSION)
        return known and _SMALLEST_PAGE <= size <= _LARGEST_PAGE and not size & (size - 1)


class _Nodes(NamedTuple):
    """The nodes of pages, one row each: place of the page among them, offset in it, 48 bits of size
    or number, size of the key."""

    row: np.ndarray
    offset: np.ndarray
    number: np.ndarray
    key_size: np.ndarray


class Leaves(NamedTuple):
    """The records of some leaves: where keys and values begin in the file, and their sizes."""

    keys: np.ndarray
    key_sizes: np.ndarray
    values: np.ndarray
    sizes: np.ndarray
    elsewhere: np.ndarray
    """Whether a value has overflow pages."""


class LmdbTree:
    """The tree of keys in a folder's data.mdb.

    Raises UserError where the folder is missing or no LMDB, or the file empty, cut short or damaged
    (here, and wherever it is read).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "data.mdb"
        try:
            if not folder.exists():
                raise UserError(f"LMDB {folder} does not exist (looked in {Path.cwd()}). {_REMEDY}")
            if not folder.is_dir() or not file.is_file():
                raise UserError(
                    f"{folder} is not an LMDB (a folder with a file data.mdb). {_REMEDY}"
                )
            self.stream: BinaryIO = file.open("rb", buffering=0)
            self._check()
        except OSError as error:
            raise UserError(
                f"cannot read {file}: {error.strerror}. Check its permissions."
            ) from error
        self.entries = self._meta.entries
        self.page_size = self._meta.page_size
        self._transactions = self._read_transactions()

    def _check(self) -> None:
        size = os.fstat(self.stream.fileno()).st_size
        if size == 0:
            raise UserError(
                f"LMDB {self.folder}: data.mdb is empty, nothing was written to it. {_REMEDY}"
            )
        first = self._read_meta(0)
        if first is None:
            raise UserError(f"{self.folder}/data.mdb is not an LMDB file, or is damaged. {_REMEDY}")
        # Two meta pages take turns; the one with the later transaction counts.
        second = self._read_meta(first.page_size) or first
        self._meta = meta = max(first, second, key=lambda meta: meta.transaction)
        self._pages = min(meta.last_page + 1, size // meta.page_size)
        needed = (meta.last_page + 1) * meta.page_size
        # Pages at the end that were freed before they were ever written may be missing rightly.
        if size < 2 * meta.page_size or (size < needed and not self._is_whole()):
            raise UserError(
                f"LMDB {self.folder} is truncated: data.mdb has {size:,} bytes, its own meta page "
                f"says {needed:,}. Copy it again from where it was made."
            )
        # Without one of the two, the other would be an earlier state, that lacks records.
        between = abs(first.transaction - second.transaction)
        if (first.number, second.number) != (0, 1) or between > 1:
            self.damaged("its two meta pages do not belong together")
        if meta.entries == 0:
            raise UserError(f"LMDB {self.folder} has no records. {_REMEDY}")
        if meta.entries > size // _NODE:
            self.damaged(f"{meta.entries:,} records cannot lie in {size:,} bytes")

    def _read_meta(self, at: int) -> _Meta | None:
        content = os.pread(self.stream.fileno(), _META.size, at)
        meta = _Meta(*_META.unpack(content)) if len(content) == _META.size else None
        return meta if meta and meta.is_one else None

    def _read_transactions(self) -> list[int | None]:
        """The transactions that the two meta pages are of."""
        metas = [self._read_meta(at) for at in (0, self._meta.page_size)]
        return [meta and meta.transaction for meta in metas]

    def changed(self) -> bool:
        """Whether it has been written to since this was made."""
        return self._read_transactions() != self._transactions

    def _is_whole(self) -> bool:
        """Whether all pages that hold keys or values are within the file."""
        try:
            # The last keys first: where records were appended, these are what a short file lacks.
            count = 0
            for leaves in self.leaves(backwards=True):
                count += len(leaves.keys)
                if count > self._meta.entries:
                    break
        except UserError:
            return False
        return count == self._meta.entries

    def damaged(self, why: str) -> NoReturn:
        raise UserError(f"LMDB {self.folder} is damaged: {why}. {_REMEDY}")

    # -- the tree of keys ------------------------------------------------------------------------

    def leaves(self, *, backwards: bool = False) -> Iterator[Leaves]:
        """The records, in the order of their keys (or from the last ones on), some at a time: those
        below one page."""
        if not self._meta.entries:
            return
        pending = [(np.array([self._meta.root], np.uint64), 1)]
        while pending:
            numbers, depth = pending.pop()
            if depth > _DEEPEST or not ((numbers >= 2) & (numbers < self._pages)).all():
                self.damaged("its pages of keys lead out of the file, or in a circle")
            pages, kind = self._read_pages(numbers)
            nodes = self._nodes(pages, kind)
            if kind == _LEAF:
                yield self._records(numbers.astype(np.int64), pages, nodes)
                continue
            ends = np.flatnonzero(np.diff(nodes.row)) + 1
            below = [(children, depth + 1) for children in np.split(nodes.number, ends)]
            pending += below if backwards else below[::-1]

    def _read_pages(self, numbers: np.ndarray) -> tuple[np.ndarray, int]:
        """Pages of keys, one a row, and what they are: branches or leaves."""
        size = self._meta.page_size
        begins = numbers.astype(np.int64) * size
        data, offsets = self.fetch(begins, np.full_like(begins, size))
        pages = data.reshape(-1, size)[offsets // size]
        words = pages.view("<u2")
        kinds = words[:, _FLAGS] & (_BRANCH | _LEAF | _VALUE)
        lower, upper = words[:, _LOWER], words[:, _UPPER]
        good = (pages[:, :8].copy().view("<u8")[:, 0] == numbers) & (kinds == kinds[0])
        good &= (lower > HEADER + 1) & (lower <= upper) & (upper <= size)
        if kinds[0] not in (_BRANCH, _LEAF) or not good.all():
            wrong = numbers[np.argmin(good)]
            self.damaged(f"its page {wrong} is not the page of keys that it should be")
        return pages, int(kinds[0])

    def _nodes(self, pages: np.ndarray, kind: int) -> _Nodes:
        size = self._meta.page_size
        words = pages.view("<u2")
        counts = (words[:, _LOWER].astype(np.int64) - HEADER) // 2
        row = np.repeat(np.arange(len(pages)), counts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        offset = words[row, _OFFSETS + nth].astype(np.int64)
        if (offset % 2).any() or (offset < HEADER).any() or (offset > size - _NODE).any():
            self.damaged("a node lies outside of its page of keys")
        at = (row * size + offset) // 2
        flat = words.reshape(-1)
        low, middle, high, key_size = (flat[at + i].astype(np.int64) for i in range(4))
        after: np.ndarray | int = 0
        if kind == _LEAF:
            after = np.where(high == _VALUE_ELSEWHERE, 8, low | middle << 16)
        # They are contiguous, each at an even byte, from the free space to the page's end.
        begins = row * size + offset
        order = np.argsort(begins)
        ends = (begins + (_NODE + key_size + after + 1) // 2 * 2)[order]
        free = begins[order] - np.append(0, ends[:-1])
        free[np.cumsum(counts) - counts] -= words[:, _UPPER]
        if free.any() or ends[-1] != pages.size:
            self.damaged("nodes of its pages of keys overlap, or lie apart")
        return _Nodes(row, offset, low | middle << 16 | high << 32, key_size)

    def _records(self, numbers: np.ndarray, pages: np.ndarray, nodes: _Nodes) -> Leaves:
        """The locations of the records of leaves."""
        size = self._meta.page_size
        row, offset, number, key_size = nodes
        flags, sizes = number >> 32, number & 0xFFFFFFFF
        if (flags > _VALUE_ELSEWHERE).any():
            raise UserError(f"LMDB {self.folder} is not one as Caffe's tools write them")
        elsewhere = flags == _VALUE_ELSEWHERE
        value = offset + _NODE + key_size
        keys = numbers[row] * size + offset + _NODE
        values = keys + key_size
        if elsewhere.any():
            at = (row * size + value)[elsewhere, None] + np.arange(8)
            overflow = pages.reshape(-1)[at].view("<u8")[:, 0]
            last = self._pages - -(-(HEADER + sizes[elsewhere]) // size)
            if ((overflow < 2) | (overflow > np.maximum(last, 0).astype(np.uint64))).any():
                self.damaged("a record lies on pages outside of the file")
            values[elsewhere] = overflow.astype(np.int64) * size + HEADER
        return Leaves(keys, key_size, values, sizes, elsewhere)

    def fetch(self, begins: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pieces of the file, in few calls: bytes that hold them, and the offset of each."""
        ends = begins + sizes
        first = int(begins.min())
        length = int(ends.max()) - first
        if length <= 2 * int(sizes.sum()) + _GAP:
            data = np.empty(length, np.uint8)
            self._read(data, first)
            return data, begins - first
        order = np.argsort(begins, kind="stable")
        furthest = np.maximum.accumulate(ends[order])
        new = np.ones(len(order), bool)
        new[1:] = begins[order][1:] > furthest[:-1] + _GAP
        runs = np.flatnonzero(new)
        firsts = begins[order][runs]
        lengths = np.append(furthest[runs[1:] - 1], furthest[-1]) - firsts
        starts = np.cumsum(lengths) - lengths
        data = np.empty(int(lengths.sum()), np.uint8)
        for at, length, first in zip(
            starts.tolist(), lengths.tolist(), firsts.tolist(), strict=True
        ):
            self._read(data[at : at + length], first)
        offsets = np.empty(len(order), np.int64)
        offsets[order] = begins[order] + np.repeat(
            starts - firsts, np.diff(runs, append=len(order))
        )
        return data, offsets

    def _read(self, into: np.ndarray, first: int) -> None:
        """Fill bytes from the file, from offset `first` on."""
        left = memoryview(into.data)
        while left:
            if not (count := os.preadv(self.stream.fileno(), [left], first)):
                raise UserError(
                    f"LMDB {self.folder} has become shorter while it was read: {COPY_AGAIN}"
                )
            left, first = left[count:], first + count
