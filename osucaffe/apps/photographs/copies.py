"""Copies of one picture among photographs: files with equal bytes, and pictures that look equal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from ...data.ahead.parallel_map import map_ahead
from ...data.databases.image_file import decode_thumbnail
from ...data.pictures.resample import resample
from ...errors import UserError
from ...files import read_bytes

_SIDE = 16
_MIN_CORRELATION = 0.995
"""Of the thumbnails of two copies: JPEG quality 50 or less light leave more of 50 photographs; of
796 different ones three pairs have more (letters on one toy), of 8,000 digits none."""
_MIN_CONTRAST = 4.0
"""Standard deviation of a thumbnail, of 255, below which noise decides what looks equal."""
_ROWS = 1024
"""Thumbnails that are compared with all others at once."""


def find_copies(
    paths: Sequence[str], threads: int, advance: Callable[[], object] = lambda: None
) -> list[int]:
    """For each file the index of the first one that is a copy of the same picture: its own, if
    there is none before it.

    Copies have the same bytes, or grey thumbnails of 16 x 16 pixels whose correlation is at least
    0.995: the same picture compressed again, scaled or brightened. n files take n^2 / 2 products
    of 256 values: a second for 20,000. What cannot be read has no copies. advance is called after
    each file.
    """
    same_bytes: dict[bytes, int] = {}
    first = list(range(len(paths)))
    thumbnails = np.zeros((len(paths), _SIDE * _SIDE), np.float32)
    for at, (digest, thumbnail) in enumerate(map_ahead(_look, paths, threads)):
        advance()
        if thumbnail is not None:
            first[at] = same_bytes.setdefault(digest, at)
            thumbnails[at] = thumbnail
    for start in range(0, len(paths), _ROWS):
        block = thumbnails[start : start + _ROWS]
        near = np.argwhere(block @ thumbnails[: start + len(block)].T >= _MIN_CORRELATION)
        for row, other in near[near[:, 1] < near[:, 0] + start].tolist():
            _join(first, start + row, other)
    for at, before in enumerate(first):  # each points to one before it, or to itself
        first[at] = first[before]
    return first


def _join(first: list[int], one: int, other: int) -> None:
    """Let the sets of two files be one, whose first file both lead to."""
    while first[one] != one:
        one = first[one]
    while first[other] != other:
        other = first[other]
    first[max(one, other)] = min(one, other)


def _look(path: str) -> tuple[bytes, np.ndarray | None]:
    """A file's digest, and its thumbnail, with mean 0 and length 1; zeros for one almost without
    contrast, None for a file that cannot be read."""
    try:
        content = read_bytes(path)
        image = decode_thumbnail(memoryview(content), _SIDE * 16)
        grey = resample(image, _SIDE, _SIDE, "AREA").astype(np.float32).ravel()
    except (UserError, ValueError, OSError):
        return b"", None
    grey -= grey.mean()
    length = float(np.linalg.norm(grey))
    flat = length < _MIN_CONTRAST * _SIDE
    return hashlib.sha256(content).digest(), grey * 0 if flat else grey / length
