"""Owns Caffe's binary files: messages, one a file."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, EncodeError, Message

from ..errors import UserError
from ..files import read_bytes, write_bytes
from .checksum import check_message, head

AnyMessage = TypeVar("AnyMessage", bound=Message)


def read_message(path: str | Path, message_type: type[AnyMessage], what: str) -> AnyMessage:
    """The message in a binary file; `what` names its kind in errors. Raises UserError."""
    content = read_bytes(path)
    if not content:
        raise UserError(f"{path}: the file is empty, not a {what}")
    content = check_message(path, content)
    try:
        return message_type.FromString(content)
    except DecodeError:
        raise UserError(f"{path}: not a {what}, or damaged or cut short") from None


def write_message(path: str | Path, message: Message, *, checksum: bool = False) -> None:
    """Write a message as a binary file, whole or not at all. Raises UserError.

    checksum: with one before it, as in `write_state`.
    """
    try:
        content = message.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be written as a binary message, which holds 2 GiB at most; "
            f"write HDF5 (.h5) instead ({error})"
        ) from None
    write_bytes(path, head(content) if checksum else b"", content)
