"""Owns reading one record of a database: what messages call it, and its pixels."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from .datum import Datum, parse_datum, pixels
from .record_database import Database


def record_name(database: Database, key: memoryview | bytes) -> str:
    """How messages call a record."""
    return f'record "{bytes(key).decode(errors="replace")}" of {database.path}'


def read_record(
    database: Database,
    key: memoryview,
    value: memoryview,
    colour: bool | None = None,
    memory: np.ndarray | None = None,
) -> tuple[Datum, np.ndarray]:
    """A record's fields and its image (channels, height, width); see `datum.pixels`.

    memory: where to decode an image that fits. UserError names a record that is damaged.
    """
    try:
        datum = parse_datum(value)
        return datum, pixels(datum, colour, memory)
    except ValueError as error:
        raise UserError(f"{record_name(database, key)} cannot be read: {error}") from error
