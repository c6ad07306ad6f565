"""Window files: reading one, cutting windows out of images, and the stream of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...backends.tensor import Shape
from ...errors import UserError, listed
from ...files import read_lines
from ...labels import Labels
from ...parsing import as_float, as_int
from ..pictures.image import decode_content, read_content, resize, whole
from ..pictures.transform import Transform
from .stream import RecordStream


class Window(NamedTuple):
    """A box in an image: the pixels x1 .. x2 and y1 .. y2, both included."""

    image: int
    label: int
    overlap: float
    box: tuple[int, int, int, int]


class WindowFile(NamedTuple):
    """The images' names, their channels (one number for all), and the windows."""

    images: list[str]
    channels: int
    windows: list[Window]


def read_windows(path: str) -> WindowFile:
    """Read a window file: for each image `# NUMBER`, its name, channels, height, width, number of
    windows, and a line `CLASS OVERLAP X1 Y1 X2 Y2` for each. Bad lines raise UserError.
    """
    lines = enumerate(read_lines(path, "the window file"), 1)
    parts = ((number, line.strip()) for number, line in lines if line.strip())
    images, windows, channels = [], [], set()
    number = 0

    def take(what: str) -> str:
        nonlocal number
        number, line = next(parts, (number + 1, ""))
        if not line:
            raise ValueError(f"expected {what}, found the end of the file")
        return line

    try:
        for number, line in parts:  # noqa: B007 (the messages below name it)
            if not line.startswith("#"):
                raise ValueError(f'expected "# NUMBER" of an image, found "{line}"')
            images.append(take("an image's name"))
            depth, _, _ = (as_int(take(what)) for what in ("channels", "a height", "a width"))
            channels.add(depth)
            for _ in range(as_int(take("the number of windows"))):
                words = take("a window").split()
                if len(words) != 6:
                    raise ValueError(f'"{" ".join(words)}" is not CLASS OVERLAP X1 Y1 X2 Y2')
                x1, y1, x2, y2 = map(as_int, words[2:])
                if x2 < x1 or y2 < y1:
                    raise ValueError(f"the window {x1} {y1} {x2} {y2} ends before it begins")
                box = (x1, y1, x2, y2)
                # In float32, as the thresholds are that it is held to.
                overlap = float(np.float32(as_float(words[1])))
                windows.append(Window(len(images) - 1, as_int(words[0]), overlap, box))
    except ValueError as error:
        raise UserError(f"{path}, line {number}: {error}") from error
    if len(channels) != 1 or not channels <= {1, 3}:
        present = listed(sorted(channels)) or "no image"
        raise UserError(f"{path}: all images need 1 channel, or 3: found {present}")
    return WindowFile(images, channels.pop(), windows)


class Cut(NamedTuple):
    """The source and target of a window: slices (rows, columns) of the image and the output."""

    source: tuple[slice, slice]
    target: tuple[slice, slice]


def plan_cut(
    box: tuple[int, int, int, int],
    extent: tuple[int, int],
    crop: int,
    *,
    context: int = 0,
    square: bool = False,
    mirror: bool = False,
) -> Cut:
    """How a box of an image (height, width) fills a square of `crop` pixels.

    context: pixels of the square that show the box's surroundings, on each side. square: the box
    grows to a square about its centre first, instead of being stretched. What lies outside of the
    image stays empty. This is R-CNN's cropping (Girshick et al. 2014, appendix A), in Caffe's
    rounding.
    """
    rows, columns = box[1::2], box[::2]
    if context or square:
        scale = crop / (crop - 2 * context)
        halves = [(last - first + 1) / 2 for first, last in (rows, columns)]
        middles = [first + half for first, half in zip((rows[0], columns[0]), halves, strict=True)]
        if square:
            halves = [max(halves)] * 2
        rows, columns = (
            (whole(middle - half * scale), whole(middle + half * scale))
            for middle, half in zip(middles, halves, strict=True)
        )
    down = _plan_axis(rows, extent[0], crop, flipped=False)
    across = _plan_axis(columns, extent[1], crop, flipped=mirror)
    return Cut((down[0], across[0]), (down[1], across[1]))


def _plan_axis(
    span: tuple[int, int], extent: int, crop: int, *, flipped: bool
) -> tuple[slice, slice]:
    first, last = span
    before, after = max(0, -first), max(0, last - extent + 1)
    scale = crop / (last - first + 1)
    first, last = first + before, last - after
    size = whole((last - first + 1) * scale)
    start = whole((after if flipped else before) * scale)
    return slice(first, last + 1), slice(start, start + min(size, crop - start))


class Sample(NamedTuple):
    """A window's pixels (channels, height, width), where they go in the output, and its label."""

    pixels: np.ndarray
    target: tuple[slice, slice, slice]
    label: int


class WindowSource(RecordStream[Sample]):
    """Samples of windows: background first in each batch, then foreground.

    A foreground window overlaps an object by `foreground` or more, a background one by less than
    `background`; it has label 0. Both are drawn with replacement; what is drawn depends on the
    seed and the position in the stream. `shape` is (channels, crop, crop). A batch is data and
    labels.
    """

    def __init__(
        self,
        path: str,
        transform: Transform,
        *,
        batch_size: int,
        foreground: float,
        background: float,
        fraction: float,
        context: int = 0,
        square: bool = False,
        cache: bool = False,
        root: str = "",
        seed: int = 0,
    ) -> None:
        self._file, self._path, self._root = read_windows(path), path, root
        self._transform = transform
        self._context, self._square = context, square
        windows = self._file.windows
        self._foreground = [window for window in windows if window.overlap >= foreground]
        self._background = [window for window in windows if window.overlap < background]
        wrong = [window for window in self._foreground if window.label <= 0]
        if wrong:
            name = self._file.images[wrong[0].image]
            raise UserError(f"{path}: a foreground window of {name} has label {wrong[0].label}")
        self._batch_size = batch_size
        self._first_foreground = batch_size - int(np.float32(batch_size) * np.float32(fraction))
        for kind, drawn, needed in (
            ("foreground", self._foreground, batch_size - self._first_foreground),
            ("background", self._background, self._first_foreground),
        ):
            if needed and not drawn:
                raise UserError(f"{path} has no {kind} windows, and a batch needs {needed}")
        count = len(self._foreground) + len(self._background)  # to draw from
        super().__init__(count, f"{path} has no windows", seed=seed)
        self.shape: Shape = (self._file.channels, transform.crop, transform.crop)
        self._mean = transform.centre_mean(self._file.channels)
        self._content: Callable[[int], bytes] = lru_cache(None)(self._load) if cache else self._load

    def check_labels(self, labels: Labels) -> None:
        """Reject a foreground window with an invalid label."""
        for window in self._foreground:
            name = self._root + self._file.images[window.image]
            labels.check(window.label, f"{self._path}: a foreground window of {name}")

    @property
    def arrangement(self) -> None:
        return None

    def order(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros_like(positions), positions  # there are no epochs

    def read(self, record: int, draw: int) -> Sample:
        is_foreground = record % self._batch_size >= self._first_foreground
        windows = self._foreground if is_foreground else self._background
        window = windows[(draw >> 1) % len(windows)]
        image = self._image(window.image)
        mirror = self._transform.mirror and bool(draw & 1)
        cut = plan_cut(
            window.box,
            (image.shape[0], image.shape[1]),
            self._transform.crop,
            context=self._context,
            square=self._square,
            mirror=mirror,
        )
        source = image[cut.source]
        height, width = (part.stop - part.start for part in cut.target)
        if not source.size or height < 1 or width < 1:
            name = self._root + self._file.images[window.image]
            raise UserError(
                f"{self._path}: the window {' '.join(map(str, window.box))} lies outside of {name}"
            )
        warped = resize(source, height, width)[:, :: -1 if mirror else 1].transpose(2, 0, 1)
        return Sample(warped, (slice(None), *cut.target), window.label if is_foreground else 0)

    def write(self, item: Sample, draw: int, arrays: Sequence[np.ndarray]) -> None:
        data, label = arrays
        mean = 0 if self._mean is None else self._mean[item.target]
        data[...] = 0
        data[item.target] = (item.pixels.astype(np.float32) - mean) * self._transform.scale
        label[...] = item.label

    def _load(self, index: int) -> bytes:
        try:
            return read_content(self._root + self._file.images[index])
        except UserError as error:
            raise UserError(f"{error} (image {index} of {self._path})") from error

    def _image(self, index: int) -> np.ndarray:
        path, content = self._root + self._file.images[index], self._content(index)
        try:
            return decode_content(path, content, self._file.channels == 3)
        except UserError as error:
            raise UserError(f"{error} (image {index} of {self._path})") from error
