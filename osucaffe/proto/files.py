"""The files of Caffe's messages: nets and solvers as text, whatever their form and age, and
binary files of one message each, such as means."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, EncodeError, Message
from numpy.typing import NDArray

from ..errors import UserError, naming
from ..files import read_bytes, write_bytes
from .blobs import array_to_blob, blob_to_array, fields
from .caffe_pb2 import BlobProto, NetParameter, SolverParameter
from .checksum import check_message, head
from .text import read_text
from .upgrade import upgrade_net, upgrade_solver

AnyMessage = TypeVar("AnyMessage", bound=Message)


def read_net(path: str | Path) -> NetParameter:
    """The net in a prototxt file, upgraded to today's form. Raises UserError."""
    net = read_text(path, NetParameter)
    with naming(path):
        if not (net.layer or net.layers or net.input):
            raise UserError("it has no layers: is this a net's prototxt?")
        return upgrade_net(net)


def read_solver(path: str | Path) -> SolverParameter:
    """The solver in a prototxt file, upgraded to today's form. Raises UserError.

    As in Caffe, snapshots are named after the solver's file when it gives no snapshot_prefix, and
    lie in the folder when the prefix is one.
    """
    path = Path(path)
    solver = read_text(path, SolverParameter)
    with naming(path):
        if not solver.ListFields():
            raise UserError("it has no settings: is this a solver's prototxt?")
        solver = upgrade_solver(solver)
    if not solver.HasField("snapshot_prefix"):
        solver.snapshot_prefix = str(path.with_suffix(""))
    elif Path(solver.snapshot_prefix).is_dir():
        solver.snapshot_prefix = str(Path(solver.snapshot_prefix) / path.stem)
    return solver


def read_message(path: str | Path, message_type: type[AnyMessage], what: str) -> AnyMessage:
    """The message in a binary file; `what` names its kind in errors. Raises UserError."""
    content = read_bytes(path)
    if not content:
        raise UserError(f"{path}: the file is empty, not a {what}")
    content = check_message(path, content)
    try:
        return message_type.FromString(content)
    except DecodeError:
        cut = _cut_short(content)
        raise UserError(f"{path}: not a {what}, or {cut or 'damaged or cut short'}") from None


def _cut_short(content: bytes) -> str:
    """Where the bytes of a message end too early; "" if they do not, or are of no message."""
    start = end = 0
    try:
        for tag, start, _, end in fields(content):  # noqa: B007
            if not tag >> 3:
                return ""
    except IndexError:
        start, end = end, len(content) + 1
    except (DecodeError, KeyError):
        return ""
    if end <= len(content):
        return ""
    return (
        f"cut short at byte {len(content)}: what begins at byte {start} needs "
        f"{end - len(content)} more; copy it again from where it came"
    )


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


def read_mean(path: str | Path) -> NDArray[np.float32]:
    """The mean image in a .binaryproto file: channels x height x width. Raises UserError."""
    blob = read_message(path, BlobProto, "mean file (.binaryproto)")
    with naming(path):
        mean = blob_to_array(blob)
    if mean.ndim == 4 and mean.shape[0] == 1:
        mean = mean[0]
    if mean.ndim != 3 or not mean.size:
        raise UserError(
            f"{path}: a mean has channels x height x width values, this is of shape "
            f"{'x'.join(map(str, mean.shape)) or '()'}"
        )
    return mean.astype(np.float32, copy=False)


def write_mean(path: str | Path, mean: NDArray[Any]) -> None:
    """Write a mean image, channels x height x width, as a .binaryproto file. Raises UserError."""
    blob = array_to_blob(np.asarray(mean, np.float32))
    blob.ClearField("shape")  # Caffe's own tool states a mean's extents in the old way
    blob.num = 1
    blob.channels, blob.height, blob.width = mean.shape
    write_message(path, blob)
