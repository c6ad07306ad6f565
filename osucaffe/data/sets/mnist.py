"""The MNIST digits: from files, from the public mirrors, or the subset that is packaged.

MNIST is by Yann LeCun and Corinna Cortes, CC BY-SA 3.0; see LICENSE-MNIST.md next to this file.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import lzma
import math
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import UserError
from ...files import read_bytes
from ..databases.database import record_key, write_database
from ..databases.datum import make_datum

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_SHA256 = """
0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971  train-images-idx3-ubyte.gz
1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203  train-labels-idx1-ubyte.gz
1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be  t10k-images-idx3-ubyte.gz
b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b  t10k-labels-idx1-ubyte.gz
"""
FILES = {name: digest for digest, name in map(str.split, _SHA256.strip().splitlines())}
"""The four files and their SHA-256."""

SOURCES = ("auto", "files", "download", "packaged")
PACKAGED = Path(__file__).with_name("mnist_subset.xz")
PACKAGED_TRAIN, PACKAGED_TEST = 10_000, 2_000  # every 6th and every 5th: a fair sample
_SIDE = 28
_PATIENCE = 5.0
"""Seconds to wait for a mirror that does not answer."""
_PATIENCE_AUTO = 30.0
"""Seconds that a download may take if the packaged digits would do."""
_IMAGES, _LABELS = 0x803, 0x801


class Digits(NamedTuple):
    """images: uint8 (N, 28, 28), ink is 255. labels: uint8 (N,), 0 to 9."""

    images: np.ndarray
    labels: np.ndarray


class Mnist(NamedTuple):
    """Training and test digits, and one line on their origin."""

    train: Digits
    test: Digits
    origin: str


def make(
    output: str | os.PathLike[str],
    *,
    source: str = "auto",
    files: str | os.PathLike[str] | None = None,
) -> Mnist:
    """Make the LMDBs mnist_train_lmdb and mnist_test_lmdb in the folder `output`.

    source: "files" (the four IDX files, plain or .gz, in the folder `files`), "download",
    "packaged", or "auto": the files if a folder is given, else the mirrors, else the packaged
    subset. Prints which it was. LMDBs of these names are replaced. Raises UserError.
    """
    digits = load(source, files)
    folder = Path(output)
    print(f"MNIST {digits.origin}", flush=True)
    # Where the training digits stand, both stand: a Makefile may look for them alone.
    for name, part in (("mnist_test_lmdb", digits.test), ("mnist_train_lmdb", digits.train)):
        count = write_database(folder / name, records(part))
        print(f"{folder / name}: {count:,} digits", flush=True)
    return digits


def convert(images: str, labels: str, output: str | os.PathLike[str]) -> int:
    """Make an LMDB of one pair of MNIST's files (plain or .gz); return the number of records."""
    contents = {path: read_bytes(path) for path in (images, labels)}
    return write_database(output, records(_digits(contents, images, labels)))


def load(source: str = "auto", files: str | os.PathLike[str] | None = None) -> Mnist:
    """The digits from the given source; see `make`."""
    if source not in SOURCES:
        raise UserError(f'unknown source "{source}" of MNIST: use one of {", ".join(SOURCES)}')
    if source == "files" and files is None:
        raise UserError("source files: name the folder that holds the four MNIST files")
    if files is not None and source in ("auto", "files"):
        return _from_files(Path(files))
    if source == "packaged":
        return _packaged()
    try:
        return _download(math.inf if source == "download" else _PATIENCE_AUTO)
    except UserError as error:
        if source == "download":
            raise
        print(f"{error} Taking the packaged subset instead.", flush=True)
        return _packaged()


def records(digits: Digits) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a database of them."""
    for index, (image, label) in enumerate(zip(digits.images, digits.labels.tolist(), strict=True)):
        yield record_key(index), make_datum(image[None], label)


def _from_files(folder: Path) -> Mnist:
    contents = {}
    for name in FILES:
        # The files' own names; some archives write a dot where others write a hyphen.
        plain = name.removesuffix(".gz")
        names = (name, plain, plain.replace("-idx", ".idx"))
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise UserError(f"{folder} has no file {name} (or {plain}): all four are needed")
        contents[name] = read_bytes(path)
    return _parse(contents, f"files of {folder}")


def _download(seconds: float) -> Mnist:
    problems = []
    deadline = time.monotonic() + seconds
    for mirror in MIRRORS:
        try:
            contents = {name: _fetch(mirror, name, deadline) for name in FILES}
        except (OSError, http.client.HTTPException, ValueError) as error:
            problems.append(f"{mirror}: {error}")
        else:
            return _parse(contents, f"from {mirror}")
    raise UserError(f"MNIST cannot be downloaded ({'; '.join(problems)}).")


def _fetch(mirror: str, name: str, deadline: float) -> bytes:
    chunks = []
    with urllib.request.urlopen(mirror + name, timeout=_PATIENCE) as reply:
        while chunk := reply.read(1 << 16):
            chunks.append(chunk)
            if time.monotonic() > deadline:
                raise TimeoutError("too slow")
    content = b"".join(chunks)
    if hashlib.sha256(content).hexdigest() != FILES[name]:
        raise ValueError(f"{name} has another SHA-256 than expected")
    return content


def _parse(contents: Mapping[str, bytes], origin: str) -> Mnist:
    train, test = (
        _digits(contents, f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz")
        for part in ("train", "t10k")
    )
    return Mnist(train, test, origin)


def _digits(contents: Mapping[str, bytes], images: str, labels: str) -> Digits:
    digits = Digits(_read_idx(contents, images, _IMAGES), _read_idx(contents, labels, _LABELS))
    if len(digits.images) != len(digits.labels):
        raise UserError(
            f"MNIST: {len(digits.images)} images, but {len(digits.labels)} labels, in {images} "
            f"and {labels}"
        )
    return digits


def _read_idx(contents: Mapping[str, bytes], name: str, magic: int) -> np.ndarray:
    """An IDX file: big-endian magic (its last byte counts the extents), extents, bytes."""
    content = contents[name]
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        header = np.frombuffer(content, ">u4", 1 + (magic & 0xFF))
        if header[0] != magic:
            raise ValueError(f"its magic number is {header[0]:#x}, not {magic:#x}")
        return np.frombuffer(content, np.uint8, offset=header.nbytes).reshape(header[1:])
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{name} is not a whole MNIST file: {error}") from error


def _packaged() -> Mnist:
    content = lzma.decompress(PACKAGED.read_bytes())
    count = PACKAGED_TRAIN + PACKAGED_TEST
    labels = np.frombuffer(content, np.uint8, count)
    images = np.frombuffer(content, np.uint8, offset=count).reshape(count, _SIDE, _SIDE)
    parts = slice(None, PACKAGED_TRAIN), slice(PACKAGED_TRAIN, None)
    train, test = (Digits(images[part], labels[part]) for part in parts)
    return Mnist(train, test, f"{PACKAGED_TRAIN:,} + {PACKAGED_TEST:,} digits of the package")


def pack(mnist: Mnist, path: Path = PACKAGED) -> None:
    """Write the subset that is packaged: evenly spaced digits of the whole data set."""
    train = Digits(*(part[:: len(part) // PACKAGED_TRAIN] for part in mnist.train))
    test = Digits(*(part[:: len(part) // PACKAGED_TEST] for part in mnist.test))
    content = b"".join(part.tobytes() for part in (train.labels, test.labels))
    content += b"".join(part.tobytes() for part in (train.images, test.images))
    path.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
