"""The mean image of a database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ...backends.tensor import Shape
from ...errors import UserError
from ..ahead.parallel_map import BadRecords, map_ahead
from ..databases.record_database import Database
from ..pictures.transform import unlike_first

_BLOCK = 64


class _Sum(NamedTuple):
    total: np.ndarray
    images: int
    errors: list[tuple[int, UserError]]


def compute_mean(
    database: Database,
    *,
    threads: int = 1,
    bad: BadRecords | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> np.ndarray:
    """The mean of all images, float64 (channels, height, width), summed exactly.

    bad: what to do about records that cannot be read or have another size than the first one.
    advance(n) is called when n more records are done. Raises UserError.
    """
    bad = bad or BadRecords()
    none = f"{database.path} has no record that can be read"
    shape, _ = bad.usable(0, len(database), partial(_shape, database), none)
    total, count = np.zeros(shape), 0
    starts = range(0, len(database), _BLOCK)
    for part in map_ahead(lambda start: _sum(database, start, shape), starts, threads):
        for number, error in part.errors:
            bad.report(error, number)
        total += part.total
        count += part.images
        advance(part.images + len(part.errors))
    return total / count


def first_shape(database: Database) -> Shape:
    """The (channels, height, width) of the first record."""
    return _shape(database, 0)


def _shape(database: Database, number: int) -> Shape:
    [(key, value)] = database.read(number, number + 1)
    return database.decode(key, value)[1].shape


def _sum(database: Database, start: int, shape: Shape) -> _Sum:
    errors: list[tuple[int, UserError]] = []
    total, count = np.zeros(shape), 0
    records = database.read(start, min(start + _BLOCK, len(database)))
    for number, (key, value) in enumerate(records, start):
        try:
            _, image = database.decode(key, value)
            if image.shape != shape:
                name, remedy = database.name(key), "give all images one size"
                raise unlike_first(name, image.shape, shape, remedy)
        except UserError as error:
            errors.append((number, error))
            continue
        total += image  # float64: exact for bytes
        count += 1
    return _Sum(total, count, errors)
