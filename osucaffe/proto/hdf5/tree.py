"""Owns the groups and data sets of HDF5 files, read by ourselves: what the library reads of a
damaged file may end the process, or have no end.

What Caffe, MATLAB and h5py write by default is known here. Forms that are seldom met are made plain
first by the library, in a process of its own (library_process.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...files import open_file
from ..blobs import MOST_VALUES
from .chunks import Chunks, read_filters
from .format import (
    GROUP_TREE,
    Cursor,
    Kind,
    Storage,
    UnknownForm,
    leaves,
    read_messages,
)
from .library_process import PLAIN, make_plain
from .types import dtype_of, fill_of, shape_of

_COMPACT, _CONTIGUOUS, _CHUNKED, _VIRTUAL = range(4)
_FIRST = "its first group"
_HARD = 0
_SOFT_ENTRY = 2
_BEST_GZIP = 1040
"""Times as many bytes become of some, at most."""
_SPARSE = 1 << 26
"""Bytes of values that may be there without any that were written."""
_OF_DATASETS = {Kind.DATASPACE, Kind.DATATYPE, Kind.LAYOUT}
_NEEDED = {*_OF_DATASETS, Kind.OLD_FILL, Kind.FILL, Kind.FILTERS}


class Dataset:
    """An array in a file, of numbers or strings of fixed length."""

    def __init__(self, storage: Storage, path: str, messages: Mapping[int, Cursor]) -> None:
        self.path, self._storage = path, storage
        self.shape = shape_of(messages[Kind.DATASPACE])
        self.dtype = dtype_of(messages[Kind.DATATYPE])
        count = math.prod(self.shape)
        self._size = count * self.dtype.itemsize
        if count > MOST_VALUES or self._size > _BEST_GZIP * storage.size + _SPARSE:
            raise ValueError(f"it has shape {self.shape}")
        if Kind.EXTERNAL in messages:
            raise ValueError("its values lie in another file")
        fill, old = messages.get(Kind.FILL), messages.get(Kind.OLD_FILL)
        self._fill = fill_of(self.dtype, fill or old, is_old=fill is None)
        self._place = self._read_layout(messages[Kind.LAYOUT], messages.get(Kind.FILTERS))

    def _read_layout(self, fields: Cursor, filters: Cursor | None) -> bytes | int | Chunks | None:
        """Its values, or where they lie; None where nobody wrote them."""
        version, kind = fields.numbers(1, 1)
        if version in (1, 2) or (version > 3 and kind == _CHUNKED):
            raise UnknownForm("its values lie in a way that is not known")
        if not 3 <= version <= 5 or kind > _VIRTUAL:
            raise ValueError("where its values lie is damaged")
        if kind == _VIRTUAL:
            raise ValueError("its values lie in another file")
        if kind == _COMPACT:
            return fields.take(fields.number(2))
        if kind == _CONTIGUOUS:
            return fields.address()
        rank = fields.number(1) - 1
        index = fields.address()
        *shape, itemsize = fields.numbers(*[4] * (rank + 1)) if rank >= 0 else [0]
        if rank != len(self.shape) or itemsize != self.dtype.itemsize or 0 in shape:
            raise ValueError("the shape of its chunks is damaged")
        return Chunks(index, tuple(shape), [] if filters is None else read_filters(filters))

    def read(self, dtype: DTypeLike | None = None) -> Any:
        """Its values, as a dtype if one is given: an array, or a scalar if it has no axes."""
        wanted = np.dtype(dtype or self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # of another type's range
            return self._values(wanted).astype(wanted, copy=False)[()]

    def _values(self, dtype: np.dtype) -> np.ndarray:
        """Of this type, or of their own."""
        place = self._place
        if isinstance(place, bytes):
            return np.frombuffer(place, self.dtype, math.prod(self.shape)).reshape(self.shape)
        if isinstance(place, int):
            self._storage.check(place, self._size)
            values = np.empty(self.shape, self.dtype)
            if self._size:
                self._storage.read_into(place, values.reshape(-1).view(np.uint8).data)
            return values
        if place is None:
            return np.full(self.shape, self._fill, dtype)
        return place.read(self._storage, self.shape, self._fill, dtype)


class Group(Mapping[str, "Group | Dataset"]):
    """What lies in it, by name, in the names' order. A name may be a path."""

    def __init__(self, file: _Objects, path: str, links: Mapping[str, int | None]) -> None:
        self.path, self._file = path, file
        self._links = dict(sorted(links.items()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, name: str) -> Group | Dataset:
        first, _, rest = name.strip("/").partition("/")
        found = self._file.open(self._inner(first), self._links[first])
        if not rest:
            return found
        if isinstance(found, Dataset):
            raise KeyError(name)
        return found[rest]

    def array(self, name: str, dtype: DTypeLike | None = None) -> Any:
        """The values of the data set of this name."""
        found = self.get(name)
        if not isinstance(found, Dataset):
            raise ValueError(f"it has no data set {self._inner(name)}")
        return found.read(dtype)

    def _inner(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[Group]:
    """The group of all others of a file, as long as it is open. Damage is a ValueError, also when
    something in it is looked at."""
    with open_file(path) as file, ExitStack() as plain:
        found = _Objects(path, Storage(file), plain).root()
        if isinstance(found, Dataset):
            raise ValueError("it has no groups")
        yield found


class _Objects:
    """Those of an open file. plain: what keeps open what the library has read."""

    def __init__(self, path: str | Path, storage: Storage, plain: ExitStack) -> None:
        self._path, self._storage, self._made = path, storage, plain
        self._objects: dict[int, Group | Dataset] = {}

    def root(self) -> Group | Dataset:
        return self.open("", self._storage.root)

    def open(self, path: str, address: int | None) -> Group | Dataset:
        """The object whose description lies there, or that only the library can find."""
        found = None if address is None else self._objects.get(address)
        if address is None:
            return self._plain(path)
        if found is None:
            try:
                found = self._read(path, address)
            except UnknownForm:
                found = self._plain(path)
            except ValueError as error:
                raise ValueError(f"{path or _FIRST}: {error}") from None
            self._objects[address] = found
        elif isinstance(found, Group) and found.path != path:
            raise ValueError(
                f"{path or _FIRST}: it is {found.path or _FIRST}, too"
            )  # there may be no end
        return found

    def _read(self, path: str, address: int) -> Group | Dataset:
        messages: dict[int, Cursor] = {}
        links: dict[str, int | None] = {}
        for message in read_messages(self._storage, address):
            if message.is_shared and message.kind in _NEEDED:
                raise UnknownForm("a part of its description lies elsewhere")
            if message.kind == Kind.LINK:
                links.update([_read_link(message.fields)])
            else:
                messages[message.kind] = message.fields
        if messages.keys() >= _OF_DATASETS:
            return Dataset(self._storage, path, messages)
        if Kind.SYMBOL_TABLE in messages:
            links.update(_read_entries(self._storage, messages[Kind.SYMBOL_TABLE]))
        elif Kind.LINK_INFO in messages:
            _check_is_small(messages[Kind.LINK_INFO])
        elif not links and Kind.GROUP_INFO not in messages:
            raise ValueError("it is neither a group nor a data set")
        return Group(self, path, links)

    def _plain(self, path: str) -> Group | Dataset:
        plain = self._made.enter_context(make_plain(self._path, path))
        return self._made.enter_context(open_hdf5(plain))[PLAIN]


def _read_link(fields: Cursor) -> tuple[str, int | None]:
    """A name, and where the object is; None where the link is of another kind."""
    version, flags = fields.numbers(1, 1)
    if version != 1:
        raise ValueError("a link in it is damaged")
    kind = fields.number(1) if flags & 8 else _HARD
    fields.take((8 if flags & 4 else 0) + (1 if flags & 16 else 0))
    name = fields.take(fields.number(1 << (flags & 3)))
    return _decode(name), fields.address() if kind == _HARD else None


def _check_is_small(fields: Cursor) -> None:
    """UnknownForm where a group's links lie in a heap of the newer kind."""
    _, flags = fields.numbers(1, 1)
    fields.take(8 if flags & 1 else 0)
    if fields.address() is not None:
        raise UnknownForm("it holds many objects")


def _read_entries(storage: Storage, fields: Cursor) -> Iterator[tuple[str, int | None]]:
    """The same of all links of a group of the older form."""
    tree, heap = fields.address(), fields.address()
    if tree is None or heap is None:
        raise ValueError("the list of what it holds is damaged")
    head = storage.block(b"HEAP", heap, 4, addresses=1, lengths=2)
    head.take(4)
    size, _free, segment = head.length(), head.length(), head.address()
    names = storage.read(segment or 0, size)
    for _, at in leaves(storage, tree, GROUP_TREE, storage.length_size):
        _version, count = storage.block(b"SNOD", at, 4).numbers(2, 2)
        entries = storage.block(b"SNOD", at, 4 + count * 24, addresses=2 * count)
        entries.take(4)
        for _ in range(count):
            name, address = entries.address(), entries.address()
            kind, _ = entries.numbers(4, 20)
            end = names.find(b"\0", name or 0)
            if name is None or end < name:
                raise ValueError("a name in it is damaged")
            yield _decode(names[name:end]), None if kind == _SOFT_ENTRY else address


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
