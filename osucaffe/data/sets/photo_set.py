"""The settings file of `data folder`: how photographs became records."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import UserError, reason
from ...files import read_bytes, read_file, write_bytes
from ...parsing import from_json, lines_of
from ..databases.database import open_database
from ..databases.image_file import decode_image
from ..pictures.image import decode_content
from .convert import ENCODINGS, encode_image
from .folder import FITS, fit_photo
from .mean import first_shape

SETTINGS = "photos.json"
LABELS = "labels.txt"
MEAN = "mean.binaryproto"


@dataclass(frozen=True)
class PhotoSettings:
    """How a photograph becomes a record. size, fit: see `read_photo`. encoding: of the record, one
    of ENCODINGS or ""."""

    size: int
    fit: str = "crop"
    encoding: str = ""

    def read(self, path: str) -> np.ndarray:
        """The pixels of the record of a file, uint8 (size, size, 3), blue first."""
        return self.record(decode_content(path, read_bytes(path)))

    def record(self, image: np.ndarray) -> np.ndarray:
        """The same of an image, uint8 (height, width, channels), blue first."""
        image = fit_photo(image, self.size, self.fit)
        if not self.encoding:
            return image
        return decode_image(memoryview(encode_image(image, self.encoding)), None)

    def write(self, folder: Path) -> None:
        """Write them to the file of a folder that `find_settings` reads."""
        write_bytes(folder / SETTINGS, (json.dumps(asdict(self)) + "\n").encode())


def find_settings(folder: Path) -> PhotoSettings | None:
    """The settings in a folder; None if it has none."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    try:
        settings = PhotoSettings(**from_json(read_bytes(path)))
        known = settings.fit in FITS and settings.encoding in ("", *ENCODINGS)
        if not known or not isinstance(settings.size, int) or settings.size < 1:
            raise ValueError("unknown size, fit or encoding")
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path}: cannot read it ({reason(error)}): write it again with osucaffe data folder"
        ) from None
    return settings


def read_labels(path: Path) -> list[str]:
    """The names of classes in a file, one a line."""
    try:
        lines = lines_of(read_file(path))
    except OSError as error:
        raise UserError(f"{path}: cannot read the labels: {reason(error)}") from None
    return [line for line in lines if line.strip()]


class PhotoSet(NamedTuple):
    """A folder of databases. train, val, test: their records; test: 0 without photographs that
    neither train a net nor choose one. size: height and width of all."""

    folder: Path
    classes: list[str]
    train: int
    val: int
    test: int
    size: int


def open_photo_set(folder: str) -> PhotoSet:
    """The databases that `osucaffe data folder` made there. UserError if anything is missing."""
    root = Path(folder)
    try:
        train, val = (open_database(root / f"{part}_lmdb") for part in ("train", "val"))
        classes = read_labels(root / LABELS)
    except UserError as error:
        raise UserError(
            f"{str(error).rstrip('.')}; --data takes what `osucaffe data folder PHOTOS --out "
            f"{folder}` makes"
        ) from None
    test = root / "test_lmdb"
    unseen = len(open_database(test)) if test.exists() else 0
    channels, height, width = first_shape(train)
    if channels != 3 or height != width:
        raise UserError(
            f"{root / 'train_lmdb'}: its records are {channels}x{height}x{width}, and must be "
            "square with three channels, as osucaffe data folder makes them"
        )
    return PhotoSet(root, classes, len(train), len(val), unseen, height)
