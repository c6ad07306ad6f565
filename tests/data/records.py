"""What tests of data share: databases of given records, transforms, and what C++ Caffe wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.datum import parse_datum, pixels
from osucaffe.data.pictures.transform import Transform
from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2

FORMATS = Path(__file__).parents[1] / "fixtures" / "formats"


def write_records(path: Path, values: Iterable[bytes], *, batch: int = 1000) -> Path:
    """An LMDB of these records, under the keys that Caffe's tools give them."""
    write_database(path, ((record_key(i), each) for i, each in enumerate(values)), batch=batch)
    return path


def read_records(path: Path) -> list[tuple[bytes, bytes]]:
    """All keys and values of a database."""
    database = open_database(path)
    return [(bytes(key), bytes(value)) for key, value in database.read(0, len(database))]


def read_images(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The keys, pixels and labels of all records, which are images of one size."""
    records = read_records(path)
    datums = [parse_datum(memoryview(value)) for _, value in records]
    labels = np.array([datum.label for datum in datums])
    return [key.decode() for key, _ in records], np.array([pixels(d) for d in datums]), labels


def fail(field: str, text: str) -> NoReturn:
    raise UserError(f'layer "d" (Data), {field}: {text}')


def transform(phase: str = "TRAIN", **settings: Any) -> Transform:
    """What a layer would do to its records with these settings of transform_param."""
    return Transform(caffe_pb2.TransformationParameter(**settings), phase, fail)
