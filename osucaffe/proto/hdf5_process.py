"""What the HDF5 library reads of files, in a process of its own: a damaged file may end it.

    python hdf5_process.py MEMORY_FILE_NUMBER MAX_VALUES

It answers each line of standard input by a line, both JSON, until the input ends. A string says
what is wrong. It imports nothing of the package, to start quickly.

    ["open", path]  -> the tree: groups as objects, data sets as [shape, type, offset in the file],
                       where the offset is null if the values do not lie there as numpy has them
    ["read", name]  -> [shape, type] of a data set, whose values then are in the memory file
    ["close"]       -> null
"""

from __future__ import annotations

import io
import json
import math
import os
import resource
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_MAX_SECONDS = 5
"""Of computing, until it is known how much is to be read."""
_MAX_MEMORY = 1 << 30
_BYTES_A_SECOND = 10_000_000
"""At least so quick is the library: some filters are slow."""
_MAX_LINKS = 8
"""One after the other."""
_BEST_GZIP = 1040
"""Times as many bytes become of some, at most."""
_SPARSE = 1 << 26
"""Bytes of values that may be there without any that were written."""


class _File:
    """An open file, where names lead to objects of this file only."""

    def __init__(self, path: str, most_values: int) -> None:
        self._file = h5py.File(path, "r")
        self._most_values = most_values
        self._size = Path(path).stat().st_size

    def close(self) -> None:
        self._file.close()

    def tree(self) -> Any:
        """What the whole file holds."""
        return self._describe(self._file["/"], ())

    def _describe(self, found: Any, above: tuple[h5py.Group, ...]) -> Any:
        """An object: a group's by name, a data set's shape and type, or what is wrong with it."""
        if isinstance(found, h5py.Dataset):
            dtype = self._type(found)
            return [found.shape, dtype.str, self._offset(found, dtype)]
        if not isinstance(found, h5py.Group):
            raise ValueError("it is neither a group nor a data set")
        if found in above:
            raise ValueError("it lies in itself")
        inner: dict[str, Any] = {}
        for name in sorted(found):
            try:
                inner[name] = self._describe(self._follow(found, name), (*above, found))
            except Exception as error:  # of any kind: the file is damaged
                inner[name] = str(error)
        return inner

    def _type(self, dataset: h5py.Dataset) -> np.dtype:
        """The type that the values have when they are read. ValueError where they cannot be."""
        if dataset.is_virtual or dataset.external:
            raise ValueError("its values lie in another file")
        dtype, shape = dataset.dtype, dataset.shape
        if (
            shape is None
            or math.prod(shape) > self._most_values
            or math.prod(shape) * dtype.itemsize > _BEST_GZIP * self._size + _SPARSE
        ):
            raise ValueError(f"it has shape {shape}")
        if dtype.kind == "S" or h5py.check_string_dtype(dtype):
            return np.dtype("S")
        if dtype.kind not in "fiub":
            raise ValueError("its values are not numbers")
        if dtype.kind == "b":
            return np.dtype(np.int8)
        return np.dtype(np.float64) if dtype.itemsize > 8 else dtype

    def _offset(self, dataset: h5py.Dataset, dtype: np.dtype) -> int | None:
        """Where the values lie in one piece and as this type, if they do."""
        offset: int | None = dataset.id.get_offset()
        if (
            offset is None
            or dtype.kind == "S"
            or h5py.h5t.py_create(dtype) != dataset.id.get_type()
        ):
            return None
        if offset + dataset.nbytes > self._size:
            raise ValueError("its values lie beyond the end of the file")
        return offset

    def _follow(self, group: h5py.Group, path: str, most: int = _MAX_LINKS) -> Any:
        """What a path leads to, if that is in this file."""
        found = self._file["/"] if path.startswith("/") else group
        for part in filter(None, path.split("/")):
            link = found.get(part, getlink=True)
            if isinstance(link, h5py.HardLink):
                found = found[part]
            elif isinstance(link, h5py.SoftLink) and most:
                found = self._follow(found, link.path, most - 1)
            else:
                raise ValueError(f"{part} is a link into another file, or to nothing")
        return found

    def read(self, name: str, memory: io.FileIO) -> Any:
        """Write a data set's values to the memory file."""
        dataset = self._follow(self._file, name)
        dtype = self._type(dataset)
        size = math.prod(dataset.shape) * max(dataset.dtype.itemsize, 8)
        _limit(_MAX_SECONDS + size // _BYTES_A_SECOND, _MAX_MEMORY + 4 * size)
        values = np.asarray(dataset[()], dtype, "C")
        values.tofile(memory)
        return values.shape, values.dtype.str


def _limit(seconds: int, memory: int) -> None:
    """Bounds from now on: of computing, and of memory."""
    used = math.ceil(sum(os.times()[:2]))
    for what, most in (resource.RLIMIT_CPU, used + seconds), (resource.RLIMIT_DATA, memory):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, hard))


def main() -> None:
    """Answer questions until there are no more."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number, most_values = map(int, sys.argv[1:])
    memory = io.FileIO(number, "r+")
    file: _File | None = None
    for line in sys.stdin:
        _limit(_MAX_SECONDS, _MAX_MEMORY)
        question, *arguments = json.loads(line)
        answer = None
        try:
            if question == "read":
                assert file is not None
                memory.seek(0)
                answer = file.read(arguments[0], memory)
            elif file is not None:
                file.close()
            if question == "open":
                file = _File(arguments[0], most_values)
                answer = file.tree()
        except Exception as error:  # of any kind: the file is damaged
            answer = str(error) or type(error).__name__
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
