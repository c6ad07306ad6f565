"""Owns the values of HDF5 data sets that lie in chunks: where they are, and what filters did.

Known filters are gzip, shuffle, fletcher32 (a checksum) and lzf; others are the library's.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .format import CHUNK_TREE, Cursor, Storage, UnknownForm, leaves

Undo = Callable[[bytes, Sequence[int], int], bytes]
"""Undoes what a filter did to these bytes, with its settings; a chunk has so many in the end."""
_SUM = 4
_BEST_LZF = 100
"""Times as many bytes become of some, at most."""


class Filter(NamedTuple):
    """A step that the bytes of a chunk went through when they were written."""

    undo: Undo
    settings: list[int]


class Chunks(NamedTuple):
    """Those of a data set. tree: the address of the B-tree that tells where they lie, if there is
    one; shape: of a chunk."""

    tree: int | None
    shape: tuple[int, ...]
    filters: list[Filter]

    def read(
        self, storage: Storage, shape: tuple[int, ...], fill: np.ndarray, dtype: np.dtype
    ) -> np.ndarray:
        """The data set's values, as this dtype. fill: one, of the type that they have in the file:
        what those are that lie in no chunk."""
        found = list(self._each(storage, shape))
        is_whole = len(found) == self._count(shape)
        values = np.empty(shape, dtype) if is_whole else np.full(shape, fill, dtype)
        for start, mask, at, size in found:
            content = self._decode(storage.read(at, size), mask, fill.itemsize)
            block = np.frombuffer(content, fill.dtype).reshape(self.shape)
            ends = map(min, map(sum, zip(start, self.shape, strict=True)), shape)
            place = tuple(map(slice, start, ends))
            values[place] = block[tuple(slice(each.stop - each.start) for each in place)]
        return values

    def _count(self, shape: tuple[int, ...]) -> int:
        return math.prod(-(-size // chunk) for size, chunk in zip(shape, self.shape, strict=True))

    def _each(
        self, storage: Storage, shape: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], int, int, int]]:
        """Where each begins, which filters it went past (bits), its address and size."""
        seen = set()
        key_size = 8 + 8 * (len(shape) + 1)
        for key, at in leaves(storage, self.tree, CHUNK_TREE, key_size):
            size, mask = key.numbers(4, 4)
            start = tuple(key.numbers(*[8] * len(shape)))
            if start in seen or any(
                begin % chunk or begin >= extent
                for begin, chunk, extent in zip(start, self.shape, shape, strict=True)
            ):
                raise ValueError("it has a chunk too many")
            seen.add(start)
            yield start, mask, at, size

    def _decode(self, raw: bytes, mask: int, itemsize: int) -> bytes:
        size = math.prod(self.shape) * itemsize
        for number in reversed(range(len(self.filters))):
            if not mask >> number & 1:
                undo, settings = self.filters[number]
                raw = undo(raw, settings, size)
        if len(raw) != size:
            raise ValueError(f"it has a chunk of {len(raw)} bytes in place of {size}")
        return raw


def read_filters(fields: Cursor) -> list[Filter]:
    """What a message says of the filters of a data set. UnknownForm where one is not known."""
    version, count = fields.numbers(1, 1)
    if version not in (1, 2):
        raise ValueError("the list of its filters is damaged")
    fields.take(6 if version == 1 else 0)
    found = []
    for _ in range(count):
        code = fields.number(2)
        has_name = version == 1 or code >= 256
        name_size = fields.number(2) if has_name else 0
        _, settings = fields.numbers(2, 2)
        fields.take(-(-name_size // 8) * 8 if version == 1 else name_size)
        numbers = fields.numbers(*[4] * settings)
        fields.take(4 if version == 1 and settings % 2 else 0)
        if code not in _KNOWN:
            raise UnknownForm(f"its chunks went through filter {code}")
        found.append(Filter(_KNOWN[code], numbers))
    return found


def _inflate(raw: bytes, settings: Sequence[int], size: int) -> bytes:
    stream = zlib.decompressobj()
    values = stream.decompress(raw, size + 2 * _SUM)  # no more, whatever it would become
    if not stream.eof:
        raise ValueError("a chunk is cut short")
    return values


def _unshuffle(raw: bytes, settings: Sequence[int], size: int) -> bytes:
    """First came the first byte of each value, then the second of each, and so on."""
    width = max(settings[0] if settings else 1, 1)
    count = len(raw) // width
    if not count:
        return raw
    parts = np.frombuffer(raw, np.uint8, count * width).reshape(width, count)
    values = np.empty((count, width), np.uint8)
    for number in range(width):  # much faster than turning the array
        values[:, number] = parts[number]
    return b"".join((values.data, raw[count * width :]))


def _check_sum(raw: bytes, settings: Sequence[int], size: int) -> bytes:
    """Fletcher's, of 16-bit words: the sum of them, and of what that sum was at each."""
    data, stated = raw[:-_SUM], int.from_bytes(raw[-_SUM:], "little")
    words = np.frombuffer(data + bytes(len(data) % 2), ">u2").astype(np.uint64)
    times = (len(words) - np.arange(len(words))).astype(np.uint64) % 65535
    sums = int(words.sum()) % 65535, int((words * times % 65535).sum()) % 65535
    if sums != ((stated & 65535) % 65535, (stated >> 16) % 65535) or len(raw) < _SUM:
        raise ValueError("a chunk is not what its checksum says")
    return data


def _unpack_lzf(raw: bytes, settings: Sequence[int], size: int) -> bytes:
    """By the library, from a file whose other parts are whole."""
    import h5py

    if size > _BEST_LZF * len(raw):
        raise ValueError("a chunk is cut short")
    with h5py.File("chunk", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("x", (size,), np.uint8, chunks=(size,), compression="lzf")
        dataset.id.write_direct_chunk((0,), raw)
        return dataset[()].tobytes()


_KNOWN: dict[int, Undo] = {1: _inflate, 2: _unshuffle, 3: _check_sum, 32000: _unpack_lzf}
