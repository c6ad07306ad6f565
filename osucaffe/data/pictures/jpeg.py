"""The headers of JPEGs: which files all decoders, also those of GPUs, decode alike."""

from __future__ import annotations

from collections.abc import Iterator

from ...backends.tensor import Shape
from ..databases.image_file import jpeg_orientation

_BEGIN, _END = b"\xff\xd8", b"\xff\xd9"
_BASELINE, _SCAN, _JFIF, _APP1, _ADOBE = 0xC0, 0xDA, 0xE0, 0xE1, 0xEE
_HUFFMAN, _QUANTIZATION = 0xC4, 0xDB
_PASSED = {0xDD, 0xFE, *range(0xE0, 0xF0)}
"""Segments before the pixels that are not looked at: comments, applications', restarts."""
_SAMPLINGS = {(0x11, 0x11, 0x11), (0x21, 0x11, 0x11), (0x22, 0x11, 0x11), (0x12, 0x11, 0x11)}
"""Of the three components."""
_MAX_PIXELS = 1 << 24
"""A limit that lets a batch of such images fit on a GPU."""


def plain_shape(data: memoryview, colour: bool | None) -> Shape | None:
    """The (channels, height, width) that decode_image gives a plain JPEG; None for any other.

    Plain ones are baseline, gray or YCbCr, in one scan, from the first to the last byte, with one
    frame header, and lie upright. So decoders agree on their extents, whatever is damaged after the
    header. They have the tables that they use: nvJPEG decodes others with those of an image before,
    and says nothing. colour: as for decode_image.
    """
    if bytes(data[:2]) != _BEGIN or bytes(data[-2:]) != _END:
        return None
    frame, adobe, jfif, at = memoryview(b""), -1, False, 2
    tables: set[tuple[int, int]] = set()
    try:
        while True:
            if data[at] != 0xFF:
                return None
            marker, size = data[at + 1], data[at + 2] << 8 | data[at + 3]
            segment = data[at + 4 : at + 2 + size]
            if marker == _SCAN:
                break
            if marker == _BASELINE:
                if frame:
                    return None
                frame = segment
            elif marker in (_HUFFMAN, _QUANTIZATION):
                tables.update(_defined(marker, segment))
            elif marker not in _PASSED or (marker == _APP1 and jpeg_orientation(data) != 1):
                return None
            elif marker == _JFIF:
                jfif = jfif or bytes(segment[:5]) == b"JFIF\0"
            elif marker == _ADOBE and bytes(segment[:5]) == b"Adobe":
                adobe = segment[11]
            at += 2 + size
        count = frame[5]
        height, width = frame[1] << 8 | frame[2], frame[3] << 8 | frame[4]
        names, samplings = tuple(frame[6::3]), tuple(frame[7::3])
    except IndexError:
        return None
    if frame[0] != 8 or not 0 < height * width <= _MAX_PIXELS or len(frame) != 6 + 3 * count:
        return None
    if len(segment) != 4 + 2 * count or segment[0] != count or tuple(segment[1:-3:2]) != names:
        return None
    # Those of a component's mean values, and of the others, which are numbered from 16 on.
    codes = {(_HUFFMAN, code) for each in segment[2:-3:2] for code in (each >> 4, 16 | each & 15)}
    if not tables >= codes | {(_QUANTIZATION, each) for each in frame[8::3]}:
        return None
    if count == 1:
        return (3 if colour else 1, height, width) if samplings == (0x11,) else None
    is_ycc = adobe == 1 or (adobe < 0 and (jfif or names == (1, 2, 3)))
    if not is_ycc or samplings not in _SAMPLINGS:
        return None
    return 1 if colour is False else 3, height, width


def _defined(marker: int, segment: memoryview) -> Iterator[tuple[int, int]]:
    """The tables of a segment: its marker, and the number by which components name it. IndexError
    where one is cut short."""
    at = 0
    while at < len(segment):
        first = segment[at]
        yield marker, first if marker == _HUFFMAN else first & 15
        at += 17 + sum(segment[at + 1 : at + 17]) if marker == _HUFFMAN else 65 + 64 * (first >> 4)
    if at > len(segment):
        raise IndexError
