"""Owns lists of image files: reading the list, and the stream of its images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import UserError
from ...files import read_lines
from ..pictures.image import read_image
from ..pictures.transform import Transform
from .images import ImageStream, Labelled


class Entry(NamedTuple):
    """A line of a list: the file's name as it stands there, and its label."""

    name: str
    label: int


def read_list(path: str) -> list[Entry]:
    """The lines `NAME LABEL` of a file; a name may hold blanks. Bad lines raise UserError."""
    entries = []
    for number, line in enumerate(read_lines(path, "the list of images"), 1):
        if not line.strip():
            continue
        name, _, label = line.rstrip().rpartition(" ")
        try:
            entries.append(Entry(name.strip(), int(label)))
            good = name and -(1 << 31) <= entries[-1].label < 1 << 31
        except ValueError:
            good = False
        if not good:
            raise UserError(
                f'{path}, line {number}: "{line}" is not an image\'s name, a blank, and a label '
                "(a whole number of 32 bits)"
            )
    if not entries:
        raise UserError(f"the list of images {path} is empty: a line is NAME LABEL")
    return entries


def check_root(root: str, entries: Sequence[Entry]) -> None:
    """UserError for a folder that lacks its last slash, so that no name of the list follows it."""
    first = root + entries[0].name
    if root and not root.endswith("/") and Path(root).is_dir() and not Path(first).exists():
        raise UserError(
            f"there is no image {first}: {root} is put before each name as it "
            f"stands, so end it with a slash ({root}/)"
        )


class ImageListSource(ImageStream):
    """The images of a list, resized and transformed.

    root: put before each name as it is. size: (height, width) of all images (None: their own).
    shuffle: another order in each epoch. The rest is as in ImageStream.
    """

    def __init__(
        self,
        path: str,
        transform: Transform,
        *,
        root: str = "",
        colour: bool = True,
        size: tuple[int, int] | None = None,
        shuffle: bool = False,
        **options: Any,
    ) -> None:
        self._path, self._root, self._size, self._colour = path, root, size, colour
        self._entries = read_list(path)
        check_root(root, self._entries)
        none = f"the list {path} has no image that can be used"
        super().__init__(len(self._entries), none, transform, block=int(shuffle), **options)

    def load(self, record: int) -> Labelled:
        name, label = self._entries[record]
        try:
            image = read_image(self._root + name, self._colour, self._size)
        except UserError as error:
            raise UserError(f"{error} (image {record + 1} of the list {self._path})") from error
        return Labelled(image.transpose(2, 0, 1), label)

    def name(self, record: int) -> str:
        name = self._root + self._entries[record].name
        return f"image {name} (image {record + 1} of the list {self._path})"
