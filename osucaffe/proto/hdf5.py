"""HDF5 files: what is read must lie in the file itself; what is written is written whole.

The library reads them in a process of its own (hdf5_process.py), because a damaged file may end
that process or keep it busy for ever. Values that lie in the file as NumPy has them in memory are
then read here. Such processes stay, for the next files: one takes 0.1 s to start, a file with two
data sets 0.6 ms, and values that were compressed 0.8 ms a MB more than in this process.
"""

from __future__ import annotations

import io
import json
import math
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..errors import UserError
from ..files import open_file, unreadable, write_bytes
from .blobs import MAX_VALUES
from .checksum import check_hdf5, foot

if TYPE_CHECKING:
    import h5py

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_PROGRAM = Path(__file__).with_name("hdf5_process.py")
_FAULTS = (LookupError, ValueError, TypeError, AttributeError, RecursionError)
"""What comes of a file that is damaged, or lacks something."""


class Dataset:
    """An array in a file, of numbers or strings. dtype: of strings without a length."""

    def __init__(
        self, file: _File, path: str, shape: Sequence[int], dtype: str, offset: int | None
    ) -> None:
        self._file, self._path, self._offset = file, path, offset
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)

    def read(self, dtype: DTypeLike | None = None) -> Any:
        """Its values, as a dtype if one is given: an array, or a scalar if it has no axes."""
        if self._offset is None:
            values = self._file.library.read(self._path)
        else:
            self._file.content.seek(self._offset)
            values = np.fromfile(self._file.content, self.dtype, math.prod(self.shape))
            values = values.reshape(self.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # of another type's range
            return values.astype(dtype or values.dtype, copy=False)[()]


class Group(Mapping[str, "Group | Dataset"]):
    """What lies in it, by name, in the names' order. A name may be a path. ValueError for what is
    there and cannot be read."""

    def __init__(self, file: _File, path: str, tree: Mapping[str, Any]) -> None:
        self._file, self._path, self._tree = file, path, tree

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)

    def __getitem__(self, name: str) -> Group | Dataset:
        first, _, rest = name.strip("/").partition("/")
        path = f"{self._path}/{first}".lstrip("/")
        match self._tree[first]:
            case str(problem):
                raise ValueError(f"{path}: {problem}")
            case dict(tree):
                group = Group(self._file, path, tree)
                return group[rest] if rest else group
            case shape, dtype, offset if not rest:
                return Dataset(self._file, path, shape, dtype, offset)
        raise KeyError(name)

    def array(self, name: str, dtype: DTypeLike | None = None) -> Any:
        """The values of the data set of this name."""
        found = self.get(name)
        if not isinstance(found, Dataset):
            raise ValueError(f"it has no data set {f'{self._path}/{name}'.lstrip('/')}")
        return found.read(dtype)


class _Library:
    """The process. It ends with its standard input, and so with this process."""

    def __init__(self) -> None:
        self._memory = io.FileIO(os.memfd_create("osucaffe-hdf5"), "r+")
        number = self._memory.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), str(number), str(MAX_VALUES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            pass_fds=[number],
            env=os.environ | {"HDF5_USE_FILE_LOCKING": "FALSE"},  # some file systems have no locks
            start_new_session=True,  # an interrupt from the terminal is for this process
        )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def ask(self, *question: object) -> Any:
        """What it answers; ValueError for what is wrong with the file, or where it has ended."""
        assert self._process.stdin
        assert self._process.stdout
        line = ""
        with suppress(BrokenPipeError):
            print(json.dumps(question), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise ValueError(f"the HDF5 library ended with {how}")
        answer = json.loads(line)
        if isinstance(answer, str):
            raise ValueError(answer)
        return answer

    def read(self, path: str) -> np.ndarray:
        """The values of a data set of the file that is open."""
        try:
            shape, dtype = self.ask("read", path)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        self._memory.seek(0)
        values = np.fromfile(self._memory, dtype, math.prod(shape))
        self._memory.truncate(0)
        return values.reshape(shape)

    def close(self) -> None:
        """End it; in a process that was forked, let go of it."""
        for file in self._process.stdin, self._process.stdout, self._memory:
            assert file
            with suppress(BrokenPipeError):
                file.close()


class _File(NamedTuple):
    """A file that is open, here and in the library's process."""

    content: BinaryIO
    library: _Library


_idle: list[_Library] = []
_MAX_IDLE = 4
"""Threads that read at the same time have one each."""


def _forget() -> None:
    while _idle:
        _idle.pop().close()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[Group]:
    """The first group of a file, as long as it is open. ValueError where the file is damaged, also
    when something in it is looked at; OSError where it cannot be read."""
    with open_file(path) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        try:
            library = _idle.pop()
        except IndexError:
            library = _Library()
        try:
            tree = library.ask("open", os.path.abspath(path))
            yield Group(_File(file, library), "", tree)
        finally:
            with suppress(ValueError):
                library.ask("close")
            if library.runs and len(_idle) < _MAX_IDLE:
                _idle.append(library)
            else:  # Popen keeps what is dropped while it runs
                library.close()


def is_hdf5(path: str | Path) -> bool:
    """Whether the file begins as HDF5 does. Raises UserError when it cannot be read."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            return False  # what a pipe brings comes but once
        with open_file(path) as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError as error:
        raise unreadable(path, error) from None


@contextmanager
def reading_hdf5(path: str | Path, what: str) -> Iterator[Group]:
    """`open_hdf5`, whose errors become a UserError. So does a file whose data lie in another one:
    it could name any that the user may read."""
    check_hdf5(path)
    try:
        with open_hdf5(path) as root:
            yield root
    except OSError as error:
        raise unreadable(path, error) from None
    except _FAULTS as error:
        raise UserError(f"{path}: not a {what}, or damaged or cut short ({error})") from None


def write_hdf5(
    path: str | Path, fill: Callable[[h5py.File], None], *, checksum: bool = False
) -> None:
    """Write an HDF5 file that `fill` fills, whole or not at all; checksum: with one. UserError.

    It is made in memory: where a disk is full, the library may end the process.
    """
    import h5py

    with h5py.File(str(path), "w", driver="core", backing_store=False) as file:
        fill(file)
        file.flush()
        content = file.id.get_file_image()
    write_bytes(path, content, foot(content) if checksum else b"")
