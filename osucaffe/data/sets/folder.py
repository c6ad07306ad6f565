"""Owns photographs in class folders: finding, splitting and reading them."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...files import read_bytes
from ..pictures.image import decode_content, resize
from ..streams.image_list import Entry

logger = logging.getLogger("osucaffe")

FITS = ("crop", "squash")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
"""Of the image files in a folder."""


def images_in(folder: Path) -> list[Path]:
    """The image files anywhere in a folder, in order, but for hidden ones and what is in hidden
    folders (macOS adds a ._NAME to each NAME). UserError if there are none, OSError if it cannot be
    read."""
    os.scandir(folder).close()
    inside = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES]
    shown = [path for path in inside if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    if not shown:
        raise UserError(f"{folder}: there is no image in this folder ({', '.join(SUFFIXES)})")
    return sorted(shown)


def find_photos(folder: str) -> tuple[list[Entry], list[str]]:
    """The photographs below the class folders of a folder, and the classes' names, by label.

    Names are relative to the folder. Labels count the class folders in the order of their names.
    Folders without images (`images_in`) are left out, with a warning. UserError without two
    classes, and for names that no list can hold.
    """
    root = Path(folder)
    try:
        folders = [path for path in root.iterdir() if path.is_dir() and path.name[0] != "."]
    except OSError as error:
        raise UserError(f"{folder}: cannot read this folder: {error.strerror}") from None
    entries: list[Entry] = []
    classes: list[str] = []
    for name in sorted(folder.name for folder in folders):
        try:
            paths = images_in(root / name)
        except UserError as error:
            logger.warning("%s: it is no class", error)
            continue
        entries += [Entry(path.relative_to(root).as_posix(), len(classes)) for path in paths]
        classes.append(name)
    if len(classes) < 2:
        raise UserError(
            f"{folder}: needs a folder of images for each of two or more classes ({folder}/cat, "
            f"{folder}/dog ...), but there {'is one' if classes else 'is none'}"
        )
    for name in (*classes, *(entry.name for entry in entries)):
        if name.lstrip() != name or len(name.splitlines()) > 1:
            raise UserError(f"{folder}: rename {name!r}: lists, a name a line, cannot hold it")
    return entries, classes


def split(entries: list[Entry], share: float) -> tuple[list[Entry], list[Entry]]:
    """The photographs for training and, about this share of them, for validation.

    A hash of each name decides, and orders them, so that classes mix: the same on every machine,
    and whatever photographs come or go, the others stay where they are.
    """
    ordered = sorted((_hash(entry.name), entry) for entry in entries)
    bound = int(share * (1 << 64))
    parts = (
        [entry for at, entry in ordered if at >= bound],
        [entry for at, entry in ordered if at < bound],
    )
    for part, what in zip(parts, ("training", "validation"), strict=True):
        if not part:
            raise UserError(
                f"none of {len(entries)} photographs is for {what}: add some, or change --val_share"
            )
    return parts


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8])


def read_photo(path: str, size: int, fit: str = "crop") -> np.ndarray:
    """A photograph as uint8 (size, size, 3), blue first, upright as EXIF says.

    Grey ones get three equal channels, and transparent pixels become white. fit: one of FITS,
    the middle square or all of it. UserError for a file that cannot be read.
    """
    image = _in_colour(decode_content(path, read_bytes(path)))
    if fit == "squash":
        return resize(image, size, size)
    scale = size / min(image.shape[:2])
    height, width = (max(size, round(extent * scale)) for extent in image.shape[:2])
    top, left = (height - size) // 2, (width - size) // 2
    return resize(image, height, width)[top : top + size, left : left + size]


def _in_colour(image: np.ndarray) -> np.ndarray:
    if image.shape[2] == 1:
        return image.repeat(3, axis=2)
    if image.shape[2] == 3:
        return image
    colours, cover = image[:, :, :3].astype(np.uint32), image[:, :, 3:].astype(np.uint32)
    mixed: np.ndarray = (colours * cover + 255 * (255 - cover) + 127) // 255
    return mixed.astype(np.uint8)
