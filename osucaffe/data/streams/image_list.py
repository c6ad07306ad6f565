"""Lists of image files: reading the list, and the stream of its images."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import UserError
from ...files import read_lines
from ...parsing import as_int
from ..pictures.image import read_image
from ..pictures.transform import Transform, unlike_first
from .images import ImageStream, Labelled
from .stream import RecordStream


class Entry(NamedTuple):
    """A line of a list: the file's name as given, and its label."""

    name: str
    label: int


def read_entries(
    path: str, what: str, form: str, meaning: str, parse: Callable[[str], Any]
) -> list[Any]:
    """The results of `parse` for each line of a file that is not blank.

    what: the file's name in messages. form, meaning: a line's syntax, and in words. UserError
    names a line of which `parse` raises ValueError, and a file without lines.
    """
    entries = []
    for number, line in enumerate(read_lines(path, f"the list of {what}"), 1):
        try:
            if line.strip():
                entries.append(parse(line))
        except ValueError:
            raise UserError(f'{path}, line {number}: "{line}" is not {meaning}') from None
    if not entries:
        raise UserError(f"the list of {what} {path} is empty: a line is {form}")
    return entries


def read_list(path: str) -> list[Entry]:
    """The lines `NAME LABEL` of a file; a name may hold blanks. Bad lines raise UserError."""

    def parse(line: str) -> Entry:
        name, _, label = line.rstrip().rpartition(" ")
        if not name:
            raise ValueError
        return Entry(name.strip(), as_int(label))

    meaning = "an image's name, a blank, and a label (a whole number of 32 bits)"
    return read_entries(path, "images", "NAME LABEL", meaning, parse)


def check_root(root: str, entries: Sequence[Entry]) -> None:
    """UserError for a folder that lacks its last slash, so that no name of the list follows it."""
    first = root + entries[0].name
    if root and not root.endswith("/") and Path(root).is_dir() and not Path(first).exists():
        raise UserError(
            f"{first} does not exist: {root} is put before each name "
            f"unchanged, so end it with a slash ({root}/)"
        )


def _several_labels(root: str, name: str) -> str:
    """A hint where a name that cannot be read is one that can, and numbers."""
    first, _, rest = name.partition(" ")
    numbers = re.fullmatch(r"[-+\d. ]+", rest) and os.path.exists(root + first)
    return f": a line has one label, but {first} has several" if numbers else ""


class ImageListSource(ImageStream):
    """The images of a list, resized and transformed.

    root: the prefix of each name. size: (height, width) of all images (None: their own).
    The rest is as in ImageStream.
    """

    def __init__(
        self,
        path: str,
        transform: Transform,
        *,
        root: str = "",
        colour: bool = True,
        size: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        self._path, self._root, self._size, self._colour = path, root, size, colour
        self._entries = read_list(path)
        check_root(root, self._entries)
        none = f"the list {path} has no image that can be used"
        super().__init__(len(self._entries), none, transform, **options)

    def load(self, record: int) -> Labelled:
        name, label = self._entries[record]
        try:
            image = read_image(self._root + name, self._colour, self._size)
        except UserError as error:
            hint = _several_labels(self._root, name)
            raise UserError(
                f"{error} (image {record + 1} of the list {self._path}{hint})"
            ) from error
        return Labelled(image.transpose(2, 0, 1), label)

    def name(self, record: int) -> str:
        name = self._root + self._entries[record].name
        return f"image {name} (image {record + 1} of the list {self._path})"

    def file_name(self, record: int) -> str:
        return self._root + self._entries[record].name


class NumberedImageSource(RecordStream[tuple[np.ndarray, np.ndarray]]):
    """The images of a list whose lines have that many numbers after the name, which has no blank.

    maps: the prefix of each name's gray image that is one more channel (None: none). The rest is
    as in ImageListSource. A batch is data (N, *shape), the first of the numbers, as many as there
    is room for, and, if requested, the last (N).
    """

    def __init__(
        self,
        path: str,
        transform: Transform,
        *,
        numbers: int,
        root: str = "",
        maps: str | None = None,
        colour: bool = True,
        size: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        def parse(line: str) -> tuple[str, np.ndarray]:
            name, *values = line.split()
            if len(values) != numbers:
                raise ValueError
            return name, np.array(values, np.float32)

        meaning = f"an image's name and {numbers} numbers, with blanks between them"
        self._entries = read_entries(path, "images", "NAME NUMBER ...", meaning, parse)
        self._root, self._maps, self._colour, self._size = root, maps, colour, size
        self._transform = transform
        none = f"the list {path} has no image that can be used"
        super().__init__(len(self._entries), none, **options)
        image, _ = self.bad.usable(0, len(self), self._load, none)[0]
        self.record_shape = image.shape
        self.shape = transform.prepare(image.shape)

    def _load(self, record: int) -> tuple[np.ndarray, np.ndarray]:
        name, numbers = self._entries[record]
        image = read_image(self._root + name, self._colour, self._size)
        if self._maps is not None:
            size = image.shape[:2]
            image = np.dstack([image, read_image(self._maps + name, False, size)])
        return image.transpose(2, 0, 1), numbers

    def read(self, record: int, draw: int) -> tuple[np.ndarray, np.ndarray]:
        image, numbers = self._load(record)
        if image.shape != self.record_shape:
            file, remedy = self._root + self._entries[record][0], "set new_height and new_width"
            raise unlike_first(file, image.shape, self.record_shape, remedy)
        return image, numbers

    def write(
        self, item: tuple[np.ndarray, np.ndarray], draw: int, arrays: Sequence[np.ndarray]
    ) -> None:
        (image, numbers), (data, labels, *weight) = item, arrays
        self._transform.apply(image, data, draw)
        labels[...] = numbers[: len(labels)]
        for array in weight:
            array[...] = numbers[-1]
