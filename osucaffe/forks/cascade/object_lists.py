"""Lists of images with objects in pixels (MS-CNN's and Cascade R-CNN's window files)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...data.streams.order import permutation
from ...errors import UserError
from ...files import read_lines
from ...parsing import as_float, as_int


class Listed(NamedTuple):
    """An image of a list: its file, and what is in it."""

    path: str
    channels: int
    extents: tuple[int, int]
    """Height and width, from the list."""
    objects: np.ndarray
    """(G, 7): label, whether it is ignored, whether it is difficult, x1, y1, x2, y2."""
    regions: np.ndarray
    """(R, 4): x1, y1, x2, y2 of regions to ignore."""


def read_object_list(path: str, root: str, *, difficult: bool) -> list[Listed]:
    """Read a list: for each image `# NUMBER`, its name (root comes before it), channels, height,
    width; the number of objects, and for each LABEL IGNORED (DIFFICULT) X1 Y1 X2 Y2; the number of
    regions to ignore, and for each X1 Y1 X2 Y2. A malformed list raises UserError.
    """
    lines = read_lines(path, "the list of images")
    words = iter([word for line in lines for word in line.split()])
    images: list[Listed] = []
    try:
        for word in words:
            if word != "#":
                raise ValueError(f'expected "#" of an image, found "{word}"')
            next(words)
            name = next(words)
            channels, height, width = (as_int(next(words), 0) for _ in range(3))
            objects = _table(words, 7 if difficult else 6)
            if not difficult:
                objects = np.insert(objects, 2, 0, axis=1)
            if (objects[:, 0] < 1).any():
                raise ValueError("an object's label must be above 0")
            listed = Listed(root + name, channels, (height, width), objects, _table(words, 4))
            images.append(listed)
    except (ValueError, StopIteration, RuntimeError) as error:
        why = str(error) if isinstance(error, ValueError) else "the file ends in the middle of it"
        raise UserError(f"{path}, image {len(images)}: {why}") from error
    if not images:
        raise UserError(f"the list of images {path} is empty")
    return images


def _table(words: Iterator[str], columns: int) -> np.ndarray:
    """A count, and that many rows."""
    rows = as_int(next(words), 0)
    values = [as_float(next(words)) for _ in range(rows * columns)]
    return np.array(values, np.float64).reshape(rows, columns)


def order_of(images: list[Listed], shuffle: str, seed: int, epoch: int, group: int) -> np.ndarray:
    """The images' numbers in an epoch.

    shuffle: "" (the list's order), "random", "random_aspect" (tall ones first, or wide ones) or
    "random_mix_aspect" (groups of either in turn; the rest comes last).
    """
    if not shuffle:
        return np.arange(len(images))
    mixed = permutation(seed, epoch, len(images))
    if shuffle == "random":
        return mixed
    tall = np.array([height >= width for height, width in (image.extents for image in images)])
    kinds = [mixed[tall[mixed]], mixed[~tall[mixed]]]
    if np.random.default_rng([seed, epoch]).integers(2):
        kinds.reverse()
    if shuffle == "random_aspect":
        return np.concatenate(kinds)
    parts, at = list[np.ndarray](), [0, 0]
    while all(index < len(kind) for index, kind in zip(at, kinds, strict=True)):
        turn = len(parts) % 2
        parts.append(kinds[turn][at[turn] : at[turn] + group])
        at[turn] += group
    return np.concatenate([*parts, *(kind[index:] for kind, index in zip(kinds, at, strict=True))])
