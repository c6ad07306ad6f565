"""Videos as folders of frames: a list of them, clips of their frames, and TSN's crops.

Wang et al. 2016, Temporal Segment Networks: a video is cut into segments, and of each a clip of
neighbouring frames is taken, at random in training and from its middle else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...backends.tensor import Shape
from ...data.pictures.image import read_image, resize
from ...data.pictures.transform import Transform, shape_text
from ...data.streams.image_list import read_entries
from ...data.streams.stream import RecordStream
from ...errors import UserError
from ...parsing import as_int

NEAR = 3
"""Crops whose extent is this close to the net's use that: no resizing by a pixel or two."""


class Video(NamedTuple):
    """A line of a list: the folder of the frames, how many there are, and the label."""

    folder: str
    frames: int
    label: int


def read_videos(path: str, root: str = "") -> list[Video]:
    """The lines `FOLDER FRAMES LABEL` of a file. Bad lines raise UserError."""

    def parse(line: str) -> Video:
        folder, frames, label = line.rsplit(maxsplit=2)
        return Video(root + folder.strip(), as_int(frames, 1), as_int(label))

    meaning = "the folder of a video's frames, how many they are, and a label"
    return read_entries(path, "videos", "FOLDER FRAMES LABEL", meaning, parse)


class Crops(NamedTuple):
    """How crops are drawn in training: TSN's fields of transform_param.

    ratios: of the smaller extent of a frame, what crops measure (none: all have the net's size);
    distort: how far apart those of height and width may stand in their list. fixed: crops stand in
    the corners or the centre; more: at eight further places.
    """

    size: int
    ratios: tuple[float, ...] = ()
    distort: int = 1
    fixed: bool = False
    more: bool = False

    def sizes(self, extents: Shape) -> list[tuple[int, int]]:
        """Heights and widths to draw from."""
        lengths = [int(min(extents) * ratio) for ratio in self.ratios] or [self.size]
        lengths = [self.size if abs(length - self.size) < NEAR else length for length in lengths]
        return [
            (height, width)
            for i, height in enumerate(lengths)
            for j, width in enumerate(lengths)
            if abs(i - j) <= self.distort
        ]

    def corners(self, margin: tuple[int, int]) -> list[tuple[int, int]]:
        """The fixed corners to draw from; margin: the greatest first row and column."""
        down, across = margin[0] // 4, margin[1] // 4
        quarters = [(0, 0), (0, 4), (4, 0), (4, 4), (2, 2)]
        if self.more:
            quarters += [(0, 2), (4, 2), (2, 0), (2, 4), (1, 1), (1, 3), (3, 1), (3, 3)]
        return [(i * down, j * across) for i, j in quarters]

    def draw(self, extents: Shape, draw: np.random.Generator) -> tuple[slice, slice]:
        """Rows and columns of a crop."""
        sizes = self.sizes(extents)
        height, width = sizes[draw.integers(len(sizes))]
        margin = extents[0] - height, extents[1] - width
        if self.fixed:
            corners = self.corners(margin)
            top, left = corners[draw.integers(len(corners))]
        else:
            top, left = (int(draw.integers(extent + 1)) for extent in margin)
        return slice(top, top + height), slice(left, left + width)


class Clips(NamedTuple):
    """The frames of a video's clips: uint8 (channels, height, width), and its label. generator:
    draws what is left to be drawn for it."""

    frames: np.ndarray
    label: int
    generator: np.random.Generator


class VideoFrameSource(RecordStream[Clips]):
    """Clips of the videos of a list, cropped and mirrored.

    pattern: the name of a frame from its number, or for optical flow from "x" or "y" and its
    number. flow: frames are pairs of gray images. invert: every second channel, from the first on,
    is inverted where it is mirrored: horizontal flow. segments, length: how many clips, of how many
    frames. crops: how they are drawn (None: whole frames); random: in training. The rest is as in
    ImageListSource. A batch is data (N, *shape) and labels (N,).
    """

    def __init__(
        self,
        path: str,
        transform: Transform,
        *,
        pattern: str,
        flow: bool,
        segments: int = 1,
        length: int = 1,
        root: str = "",
        size: tuple[int, int] | None = None,
        crops: Crops | None = None,
        mirror: bool = False,
        invert: bool = False,
        random: bool = False,
        **options: Any,
    ) -> None:
        self._transform, self._videos = transform, read_videos(path, root)
        none = f"the list {path} has no video that can be used"
        super().__init__(len(self._videos), none, **options)
        self._pattern, self._flow = pattern, flow
        self._segments, self._length = segments, length
        self._size, self._crops, self._mirror = size, crops, mirror
        self._invert, self._random = invert, random
        first, _ = self.bad.usable(
            0, len(self), lambda at: self._load(self._videos[at], [1] * segments), none
        )
        self.record_shape: Shape = first.shape
        channels, *extents = first.shape
        self.shape: Shape = (channels, crops.size, crops.size) if crops else first.shape
        for height, width in crops.sizes(tuple(extents)) if crops else []:
            if height > extents[0] or width > extents[1]:
                raise UserError(
                    f"a crop of {height}x{width} does not fit the frames, which are "
                    f"{shape_text(tuple(extents))}"
                )
        transform.prepare(self.shape)

    def starts(self, frames: int, generator: np.random.Generator) -> list[int]:
        """The number of the first frame of each clip, from 1, in a video of `frames`."""
        share = frames // self._segments
        margin = share - self._length
        if margin < 0:
            return [1] * self._segments
        middle = (margin + 1) // 2
        return [
            i * share + 1 + (int(generator.integers(margin + 1)) if self._random else middle)
            for i in range(self._segments)
        ]

    def read(self, record: int, draw: int) -> Clips:
        video, generator = self._videos[record], np.random.default_rng(draw)
        self.labels.check(video.label, f"video {video.folder}")
        frames = self._load(video, self.starts(video.frames, generator))
        if frames.shape != self.record_shape:
            raise UserError(
                f"frames of {video.folder} are {shape_text(frames.shape[1:])}, but those "
                f"of the first video are {shape_text(self.record_shape[1:])}: set "
                "new_height and new_width"
            )
        return Clips(frames, video.label, generator)

    def write(self, item: Clips, draw: int, arrays: Sequence[np.ndarray]) -> None:
        """Crop, resize, mirror and transform the frames of a video."""
        (frames, label, generator), (data, labels) = item, arrays
        labels[...] = label
        if self._crops:
            extents, size = frames.shape[1:], self._crops.size
            if self._random:
                rows, columns = self._crops.draw(extents, generator)
            else:
                top, left = ((extent - size) // 2 for extent in extents)
                rows, columns = slice(top, top + size), slice(left, left + size)
            frames = frames[:, rows, columns]
            if frames.shape[1:] != (size, size):
                frames = resize(frames.transpose(1, 2, 0), size, size).transpose(2, 0, 1)
        if self._mirror and generator.integers(2):
            frames = frames[..., ::-1].copy()
            if self._invert:
                np.subtract(255, frames[::2], out=frames[::2])
        self._transform.apply(frames, data)

    def _load(self, video: Video, starts: Sequence[int]) -> np.ndarray:
        """The frames of the clips, concatenated: uint8 (channels, height, width)."""
        numbers = [start + i for start in starts for i in range(self._length)]
        arguments = [(axis, n) for n in numbers for axis in "xy"] if self._flow else numbers
        parts = [
            read_image(f"{video.folder}/{self._pattern % frame}", not self._flow, self._size)
            for frame in arguments
        ]
        if len({part.shape for part in parts}) > 1:
            raise UserError(f"frames of {video.folder} differ in size")
        return np.concatenate(parts, axis=2).transpose(2, 0, 1)
