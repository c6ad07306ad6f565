"""CIFAR-10: reading its binary and Python files, and making its databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import UserError
from ...files import read_file
from ..databases.database import write_database
from ..databases.datum import make_datum
from .pickled import PickledArray, read_pickle

_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = ("test_batch",)
_SHAPE = (3, 32, 32)
_BYTES = 3 * 32 * 32


class Batch(NamedTuple):
    """images: uint8 (N, 3, 32, 32), red first, as CIFAR's files are. labels: N numbers 0 to 9."""

    images: np.ndarray
    labels: list[int]


def convert_cifar(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, int]:
    """Make cifar10_train_lmdb and cifar10_test_lmdb in `output`; return their numbers of records.

    folder: holds the six files of CIFAR-10, in the binary form (data_batch_1.bin ...) or the
    Python form (data_batch_1 ...). advance is called after each file. Raises UserError.
    """
    counts = {}
    for name, files in (("cifar10_test_lmdb", _TEST), ("cifar10_train_lmdb", _TRAIN)):

        def records(files: tuple[str, ...] = files) -> Iterator[tuple[bytes, bytes]]:
            index = 0
            for file in files:
                batch = read_batch(Path(folder), file)
                for image, label in zip(batch.images, batch.labels, strict=True):
                    yield f"{index:05d}".encode(), make_datum(image, label)
                    index += 1
                advance()

        counts[name] = write_database(Path(output) / name, records())
    return counts


def read_batch(folder: Path, name: str) -> Batch:
    """One of CIFAR-10's files, in whichever form the folder has it."""
    binary, python = folder / f"{name}.bin", folder / name
    path = binary if binary.is_file() else python
    try:
        content = read_file(path)
    except OSError as error:
        raise UserError(
            f"{folder} has neither {binary.name} nor {python.name}: give the folder that the "
            "archive of CIFAR-10 (binary or Python version) was unpacked to"
        ) from error
    try:
        return _read_binary(content) if path == binary else _read_python(content)
    except ValueError as error:
        raise UserError(f"{path} is not a file of CIFAR-10: {error}") from error


def _read_binary(content: bytes) -> Batch:
    """Records of a label and 3 x 32 x 32 bytes."""
    if not content or len(content) % (1 + _BYTES):
        raise ValueError(f"its {len(content)} bytes are not records of {1 + _BYTES}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _BYTES)
    return _batch(rows[:, 1:], rows[:, 0].tolist())


def _read_python(content: bytes) -> Batch:
    parts = read_pickle(content)
    data, labels = (
        parts.get(key) if isinstance(parts, dict) else None for key in ("data", "labels")
    )
    if not isinstance(data, PickledArray) or not isinstance(labels, list):
        raise ValueError("it has no array data and no list labels")
    if not all(isinstance(label, int) for label in labels):
        raise ValueError("a label is not a number")
    return _batch(data.uint8(), labels)


def _batch(pixels: np.ndarray, labels: list[int]) -> Batch:
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _BYTES):
        raise ValueError(f"{len(labels)} labels, pixels {pixels.dtype} {pixels.shape}")
    if labels and not 0 <= min(labels) <= max(labels) <= 9:
        raise ValueError("a label is not in 0..9")
    return Batch(pixels.reshape(-1, *_SHAPE), labels)
