"""Owns the forms of Caffe's binary files: messages, and HDF5, told apart by content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from google.protobuf.message import DecodeError, EncodeError, Message

from ..errors import UserError
from ..files import read_bytes, unreadable, write_bytes

if TYPE_CHECKING:
    import h5py

AnyMessage = TypeVar("AnyMessage", bound=Message)

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def read_message(path: str | Path, message_type: type[AnyMessage], what: str) -> AnyMessage:
    """The message in a binary file; `what` names its kind in errors. Raises UserError."""
    content = read_bytes(path)
    if not content:
        raise UserError(f"{path}: the file is empty, not a {what}")
    try:
        return message_type.FromString(content)
    except DecodeError:
        raise UserError(f"{path}: not a {what}, or damaged or cut short") from None


def write_message(path: str | Path, message: Message) -> None:
    """Write a message as a binary file, whole or not at all. Raises UserError."""
    try:
        content = message.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be written as a binary message, which holds 2 GiB at most; "
            f"write HDF5 (.h5) instead ({error})"
        ) from None
    write_bytes(path, content)


def is_hdf5(path: str | Path) -> bool:
    """Whether the file begins as HDF5 does. Raises UserError when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE
    except OSError as error:
        raise unreadable(path, error) from None


@contextmanager
def hdf5_file(path: str | Path, mode: Literal["r", "w"], what: str) -> Iterator[h5py.File]:
    """An open HDF5 file; a file that is damaged, or lacks something, becomes a UserError."""
    import h5py  # 0.1 s, so only for who needs it

    try:
        with h5py.File(path, mode) as file:
            yield file
    except (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        if mode == "w":
            number = getattr(error, "errno", None)
            raise OSError(number, os.strerror(number) if number else str(error)) from None
        raise UserError(f"{path}: not a {what}, or damaged or cut short ({error})") from None
