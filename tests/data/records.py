"""What tests of data share: databases of given records, transforms, and what C++ Caffe wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.pictures.transform import Transform
from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2

FORMATS = Path(__file__).parents[1] / "fixtures" / "formats"


def write_records(path: Path, values: Iterable[bytes], *, batch: int = 1000) -> Path:
    """An LMDB of these records, under the keys that Caffe's tools give them."""
    write_database(path, ((record_key(i), each) for i, each in enumerate(values)), batch=batch)
    return path


def fail(field: str, text: str) -> NoReturn:
    raise UserError(f'layer "d" (Data), {field}: {text}')


def transform(phase: str = "TRAIN", **settings: Any) -> Transform:
    """What a layer would do to its records with these settings of transform_param."""
    return Transform(caffe_pb2.TransformationParameter(**settings), phase, fail)
