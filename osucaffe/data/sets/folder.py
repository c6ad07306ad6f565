"""Photographs in class folders: finding them, and those of a split that the folder has."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...errors import UserError, listed
from ...files import read_bytes
from ..pictures.image import decode_content, resize
from ..streams.image_list import Entry

logger = logging.getLogger("osucaffe")

FITS = ("crop", "squash")
SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif",
    ".jfif", ".jpe", ".jp2", ".j2k", ".jpx", ".apng", ".dib", ".pbm", ".pgm", ".ppm", ".pnm",
    ".ras",
)  # fmt: skip
"""Of the image files in a folder."""
_SYSTEM_FILES = ("thumbs.db", "desktop.ini")
_PARTS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
"""The parts of a split, and what folders of them are called (ImageFolder, Keras, fastai)."""


def images_in(folder: Path, *, log_others: bool = True) -> list[Path]:
    """The image files anywhere in a folder, in order, except hidden ones and what is in hidden
    folders (macOS adds a ._NAME to each NAME). UserError if there are none, OSError if it cannot be
    read.

    log_others: whether the log counts the other files by suffix, and names one of each.
    """
    os.scandir(folder).close()
    images: list[Path] = []
    others: dict[str, list[str]] = {}
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).as_posix()
        if "/." in f"/{inside}":
            continue
        if path.suffix.lower() in SUFFIXES:
            images.append(path)
        elif path.is_file() and path.name.lower() not in _SYSTEM_FILES:
            others.setdefault(path.suffix.lower() or "without a suffix", []).append(inside)
    if others and log_others:
        kinds = sorted(others.items(), key=lambda kind: -len(kind[1]))
        logger.warning(
            "%s: left out %s files that are not images: %s",
            folder,
            f"{sum(map(len, others.values())):,}",
            listed([f"{len(names):,} {kind} ({min(names)})" for kind, names in kinds], 6),
        )
    if not images:
        raise UserError(f"{folder}: no images in this folder ({', '.join(SUFFIXES)})")
    return sorted(images)


def find_photos(folder: str) -> tuple[dict[str, list[Entry]], list[str]]:
    """The photographs of a folder by part, and the classes' names, by label.

    The folder has a folder for each class: then all photographs are of the part "train". Or it is
    a split: train/CLASS and val/CLASS or test/CLASS (see _PARTS), and its parts are given as they
    are. Names are relative to the folder. Labels count the classes in the order of their names.
    Folders without images (`images_in`) are left out, with a warning. UserError without two
    classes, for what looks like a split and is none, and for names that no list can hold.
    """
    root = Path(folder)
    try:
        folders = _folders(root)
    except OSError as error:
        raise UserError(f"{folder}: cannot read this folder: {error.strerror}") from None
    parts = _find_split(root, folders) or {"train": root}
    images = {part: _by_class(inner, root) for part, inner in parts.items()}
    classes = sorted(images["train"])
    if len(classes) < 2:
        raise UserError(
            f"{parts['train']}: needs a folder of images for each of two or more classes "
            f"({folder}/cat, {folder}/dog ...), but there {'is one' if classes else 'is none'}"
        )
    for part, found in images.items():
        if unknown := found.keys() - set(classes):
            raise UserError(
                f"{parts[part]}: has classes that {parts['train']} does not have: "
                f"{listed(sorted(unknown), 6)}: folders of one class have the same name"
            )
        if absent := sorted(set(classes) - found.keys()):
            logger.warning("%s: has no image of %s", parts[part], listed(absent, 6))
    labels = {name: label for label, name in enumerate(classes)}
    entries = {
        part: [Entry(name, labels[each]) for each in sorted(found) for name in found[each]]
        for part, found in images.items()
    }
    for name in (*classes, *(entry.name for part in entries.values() for entry in part)):
        if name.lstrip() != name or len(name.splitlines()) > 1:
            raise UserError(f"{folder}: rename {name!r}: lists, one name per line, cannot hold it")
    return entries, classes


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]


def _find_split(root: Path, folders: list[Path]) -> dict[str, Path] | None:
    """The folders of a split's parts; None if there is a class in each folder.

    A class may be called "train" as well: its images lie in its folder, not in folders of classes.
    """
    known = {name: part for part, names in _PARTS.items() for name in names}
    marked = [path for path in folders if path.name.lower() in known]
    rest = [path for path in folders if path not in marked]
    inner = [path for path in marked if _folders(path)]
    if not marked or (rest and all(len(_folders(path)) < 2 for path in inner)):
        return None
    parts = {known[path.name.lower()]: path for path in inner}
    if rest or len(inner) < len(folders) or len(parts) < len(inner) or "train" not in parts:
        raise UserError(
            f"{root}: has {listed(sorted(path.name for path in folders), 8)}, which looks like a "
            "split but is not one: give train/CLASS, with val/CLASS or test/CLASS or both, and "
            "nothing else; or one folder for each class"
        )
    return {part: parts[part] for part in _PARTS if part in parts}


def _by_class(folder: Path, root: Path) -> Mapping[str, list[str]]:
    """The names of the images, relative to root, in each class folder that has some."""
    found = {}
    for inner in sorted(_folders(folder)):
        try:
            found[inner.name] = [path.relative_to(root).as_posix() for path in images_in(inner)]
        except UserError as error:
            logger.warning("%s: not taken as a class", error)
    return found


def read_photo(path: str, size: int, fit: str = "crop") -> np.ndarray:
    """A photograph as uint8 (size, size, 3), blue first, upright as EXIF says.

    Grey ones get three equal channels, and transparent pixels become white. fit: one of FITS,
    the middle square or all of it. UserError for a file that cannot be read.
    """
    return fit_photo(decode_content(path, read_bytes(path)), size, fit)


def fit_photo(image: np.ndarray, size: int, fit: str = "crop") -> np.ndarray:
    """The same of an image that has been read: uint8 (height, width, channels), blue first."""
    image = _in_colour(image)
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
