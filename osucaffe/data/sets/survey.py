"""The survey of a database: what it holds, and which records are bad."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import simplejpeg

from ... import plugins
from ...backends.tensor import Shape
from ..ahead.parallel_map import map_ahead
from ..databases.datum import Datum, parse_datum, pixels
from ..databases.record_database import Database

_BLOCK = 64


@dataclass
class Survey:
    """A summary of a database's records. `bad`: the bad ones, with the reason."""

    records: int = 0
    nbytes: int = 0
    shapes: Counter[Shape] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    labels: Counter[int] = field(default_factory=Counter)
    bad: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: Survey) -> None:
        """Add the results of another survey."""
        self.records += other.records
        self.nbytes += other.nbytes
        self.shapes += other.shapes
        self.forms += other.forms
        self.labels += other.labels
        self.bad += other.bad


def survey(
    database: Database,
    *,
    decode: bool = False,
    classes: int | None = None,
    threads: int = 1,
    advance: Callable[[int], object] = lambda count: None,
) -> Survey:
    """Examine all records, in key order.

    decode: decode every image, to be sure that it is intact; else read headers only. classes:
    labels must be 0 to classes - 1. advance(n) is called when n more records are done.
    """
    result = Survey()
    starts = range(0, len(database), _BLOCK)
    for part in map_ahead(lambda at: _look(database, at, decode, classes), starts, threads):
        result.add(part)
        advance(part.records)
    return result


def _look(database: Database, start: int, decode: bool, classes: int | None) -> Survey:
    result = Survey()
    records = database.read(start, min(start + _BLOCK, len(database)))
    for key, value in records:
        result.records += 1
        result.nbytes += len(value)
        try:
            datum, labels, form = _parse(value)
            shape = pixels(datum).shape if decode else _shape(datum)
            for label in labels:
                if classes is not None and not 0 <= label < classes:
                    raise ValueError(f"label {label} is not in 0..{classes - 1}")
        except ValueError as error:
            result.bad.append((bytes(key).decode(errors="replace"), str(error)))
            continue
        result.shapes[shape] += 1
        result.forms[_form(datum) + form] += 1
        result.labels.update(labels)
    return result


def _parse(value: memoryview) -> tuple[Datum, list[int], str]:
    """A record's image, its label, or the labels of its objects, and what its form is called."""
    for name in plugins.names(plugins.RECORDS):
        if found := plugins.find(plugins.RECORDS, name)(value):
            return *found, f" {name}"
    datum = parse_datum(value)
    return datum, [datum.label], ""


def _form(datum: Datum) -> str:
    if not datum.encoded:
        return "raw bytes" if datum.values is None else "raw floats"
    start = bytes(datum.data[:8])
    known = {b"\xff\xd8": "JPEG", b"\x89P": "PNG", b"BM": "BMP", b"GI": "GIF", b"RI": "WebP"}
    return known.get(start[:2], "encoded")


def _shape(datum: Datum) -> Shape:
    """The (channels, height, width) of a record, without decoding a JPEG."""
    if not datum.encoded or _form(datum) != "JPEG":
        return pixels(datum).shape
    height, width, space = simplejpeg.decode_jpeg_header(datum.data)[:3]
    return 1 if space == "Gray" else 3, height, width


def sample(database: Database, count: int) -> list[tuple[np.ndarray, int]]:
    """The pixels and labels (the number of objects, where it is not 1) of `count` records, fewer if
    there are no more or some are bad.

    Drawn at random, the same ones each time: of classes that take turns in a database, evenly
    spaced records might show only some.
    """
    samples = []
    chosen = random.Random(0).sample(range(len(database)), min(count, len(database)))
    for number in sorted(chosen):
        [(_, value)] = database.read(number, number + 1)
        try:
            datum, labels, _ = _parse(value)
            samples.append((pixels(datum).copy(), labels[0] if len(labels) == 1 else len(labels)))
        except ValueError:
            continue
    return samples
