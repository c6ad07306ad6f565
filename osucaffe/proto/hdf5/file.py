"""Owns HDF5 files: what is read must lie in the file itself; what is written is written whole."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError
from ...files import open_file, unreadable, write_bytes
from ..checksum import check_hdf5, foot
from .format import SIGNATURE
from .tree import Group, open_hdf5

if TYPE_CHECKING:
    import h5py

_FAULTS = (LookupError, ValueError, TypeError, AttributeError, RecursionError, zlib.error)
"""What comes of a file that is damaged, or lacks something."""


def is_hdf5(path: str | Path) -> bool:
    """Whether the file begins as HDF5 does. Raises UserError when it cannot be read."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            return False  # what a pipe brings comes but once
        with open_file(path) as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except OSError as error:
        raise unreadable(path, error) from None


@contextmanager
def reading_hdf5(path: str | Path, what: str) -> Iterator[Group]:
    """The first group of an HDF5 file, as long as it is open. One that is damaged, or lacks
    something, becomes a UserError, and so does one whose data lie in another file: it could name
    any that the user may read."""
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
