"""Owns HDF5 files: what is read must lie in the file itself; what is written is written whole."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import unreadable, write_bytes
from .blobs import MOST_VALUES
from .checksum import check_hdf5, foot

if TYPE_CHECKING:
    import h5py

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FAULTS = (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, SystemError)
"""What h5py raises for a file that is damaged, or lacks something."""


def is_hdf5(path: str | Path) -> bool:
    """Whether the file begins as HDF5 does. Raises UserError when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError as error:
        raise unreadable(path, error) from None


@contextmanager
def reading_hdf5(path: str | Path, what: str) -> Iterator[h5py.File]:
    """An open HDF5 file; one that is damaged, or lacks something, becomes a UserError, and so does
    one whose data lie in another file: it could name any that the user may read."""
    import h5py  # 0.1 s, so only for who needs it

    check_hdf5(path)
    try:
        with h5py.File(path, "r") as file:
            _check(file)
            yield file
    except (FileNotFoundError, PermissionError) as error:
        error.strerror = os.strerror(error.errno or 0)  # the library's own has the path as well
        raise unreadable(path, error) from None
    except _FAULTS as error:
        raise UserError(f"{path}: not a {what}, or damaged or cut short ({error})") from None


def _check(file: h5py.File) -> None:
    """ValueError where it leads into other files, or has a data set that no blob can hold."""
    from h5py import h5d, h5l, h5o

    def fault(name: bytes, link: Any) -> str | None:  # the first that is not None ends the visit
        place = name.decode(errors="replace")
        if link.type == h5l.TYPE_EXTERNAL:
            return f"{place} is a link into another file"
        found = h5o.open(file.id, name) if link.type == h5l.TYPE_HARD else None
        if isinstance(found, h5d.DatasetID):
            made = found.get_create_plist()
            if made.get_external_count() or made.get_layout() == h5d.VIRTUAL:
                return f"the values of {place} lie in another file"
            if math.prod(found.shape) > MOST_VALUES:
                return f"{place} has shape {found.shape}"
        return None

    if found := file.id.links.visit(fault, info=True):
        raise ValueError(found)


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
