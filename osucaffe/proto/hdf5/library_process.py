"""Owns how objects of HDF5 files whose form we do not read are made plain: the library reads them
in a process of its own, which a damaged file may end.

    python -m osucaffe.proto.hdf5.library_process PATH OBJECT FILE_NUMBER
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..blobs import MOST_VALUES

if TYPE_CHECKING:
    import h5py

PLAIN = "plain"
"""The name of the object in the file that is made."""
_MOST_SECONDS = 5
"""Of computing, until it is known how much is to be read."""
_MOST_MEMORY = 1 << 30
_BYTES_A_SECOND = 10_000_000
"""At least so quick is the library: some filters are slow."""
_MOST_LINKS = 8
"""One after the other."""


class _NoNumbers(ValueError):
    """A data set of another type of values."""


@contextlib.contextmanager
def make_plain(path: str | Path, name: str) -> Iterator[str]:
    """The path of a file that has, meanwhile, a copy of the object in a form that is read here.
    ValueError where the library cannot read it."""
    file = os.memfd_create("osucaffe-hdf5")
    try:
        command = [sys.executable, "-P", "-m", __spec__.name, os.fspath(path), name or "/"]
        done = subprocess.run(
            [*command, str(file)], pass_fds=(file,), capture_output=True, check=False
        )
        if done.returncode < 0:
            told = signal.Signals(-done.returncode).name
            raise ValueError(f"the HDF5 library ended with {told} at {name or '/'}")
        if done.returncode:
            lines = done.stderr.decode(errors="replace").splitlines() or ["the library failed"]
            raise ValueError(f"{name}: {lines[-1]}" if name else lines[-1])
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def main() -> int:
    """Make an object plain. Returns the exit code; the last line of stderr says what is wrong."""
    import h5py

    path, name, number = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_CPU, _MOST_SECONDS)
    _limit(resource.RLIMIT_DATA, _MOST_MEMORY)
    try:
        with (
            h5py.File(path, "r") as source,
            open(int(number), "r+b", closefd=False) as file,
            h5py.File(file, "w") as made,
        ):
            _copy(_opened(source, name), made, PLAIN, ())
    except Exception as error:  # of any kind: the file is damaged
        print(error or type(error).__name__, file=sys.stderr)
        return 1
    return 0


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _opened(group: h5py.Group, path: str, most: int = _MOST_LINKS) -> Any:
    """What a path leads to, if that is in this file."""
    import h5py

    found = group.file["/"] if path.startswith("/") else group
    for part in filter(None, path.split("/")):
        link = found.get(part, getlink=True)
        if isinstance(link, h5py.HardLink):
            found = found[part]
        elif isinstance(link, h5py.SoftLink) and most:
            found = _opened(found, link.path, most - 1)
        else:
            raise ValueError(f"{part} is a link into another file, or to nothing")
    return found


def _copy(found: Any, to: h5py.Group, name: str, above: tuple[h5py.Group, ...]) -> None:
    """Copy an object to a group; above: those that it lies in."""
    import h5py

    if isinstance(found, h5py.Dataset):
        to.create_dataset(name, data=_values(found))
    elif not isinstance(found, h5py.Group) or found in above:
        raise ValueError(f"{name} is neither a group nor a data set, or lies in itself")
    else:
        made = to.create_group(name)
        for key in found:
            with contextlib.suppress(_NoNumbers):  # nobody may want it
                _copy(_opened(found, key), made, key, (*above, found))


def _values(dataset: h5py.Dataset) -> Any:
    import h5py

    if dataset.is_virtual or dataset.external:
        raise ValueError("its values lie in another file")
    if dataset.shape is None or math.prod(dataset.shape) > MOST_VALUES:
        raise ValueError(f"it has shape {dataset.shape}")
    size = math.prod(dataset.shape) * max(dataset.dtype.itemsize, 8)
    seconds = sum(os.times()[:2]) + _MOST_SECONDS + size / _BYTES_A_SECOND
    _limit(resource.RLIMIT_CPU, int(seconds))
    _limit(resource.RLIMIT_DATA, _MOST_MEMORY + 4 * size)
    kind = dataset.dtype.kind
    if kind == "S" or h5py.check_string_dtype(dataset.dtype):
        return np.asarray(dataset[()], "S")
    if kind not in "fiub":
        raise _NoNumbers("its values are no numbers")
    if kind == "b":
        return dataset.astype(np.int8)[()]
    return dataset.astype(np.float64)[()] if dataset.dtype.itemsize > 8 else dataset[()]


if __name__ == "__main__":
    sys.exit(main())
