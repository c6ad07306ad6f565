"""Which JPEGs all decoders read alike, by their heads."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import simplejpeg

from osucaffe.data.databases.image_file import decode_image
from osucaffe.data.pictures.jpeg import plain_shape

GENERATOR = np.random.default_rng(3)
IMAGE = GENERATOR.integers(0, 255, (37, 50, 3)).astype(np.uint8)
SOI, EOI = b"\xff\xd8", b"\xff\xd9"


def saved(mode: str = "RGB", image: np.ndarray = IMAGE, **options: Any) -> bytes:
    pillow = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    pillow.fromarray(image).convert(mode).save(stream, "JPEG", **options)
    return stream.getvalue()


def segments(jpeg: bytes) -> list[bytes]:
    """From one marker to the next; the last with all that follows it."""
    found, at = [], 2
    while jpeg[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        found.append(jpeg[at:end])
        at = end
    return [*found, jpeg[at:]]


def changed(change: Any, mode: str = "RGB") -> bytes:
    parts = segments(saved(mode))
    return SOI + b"".join(change(parts) or parts)


def frame(parts: list[bytes]) -> int:
    return next(number for number, part in enumerate(parts) if part[1] == 0xC0)


def with_frame(at: int, value: int) -> bytes:
    def change(parts: list[bytes]) -> None:
        number = frame(parts)
        parts[number] = parts[number][:at] + bytes([value]) + parts[number][at + 1 :]

    return changed(change)


def named(names: bytes, *, drop: bool = True, extra: bytes = b"") -> bytes:
    """Components of other names, without the JFIF marker, with a segment in its place."""

    def change(parts: list[bytes]) -> list[bytes]:
        number, found = frame(parts), list(parts)
        for index, name in enumerate(names):
            at = 10 + 3 * index
            found[number] = found[number][:at] + bytes([name]) + found[number][at + 1 :]
            scan = 5 + 2 * index
            found[-1] = found[-1][:scan] + bytes([name]) + found[-1][scan + 1 :]
        return [extra, *(found[1:] if drop else found)]

    return changed(change)


def adobe(transform: int) -> bytes:
    return b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([transform])


PLAIN = {
    "usual": lambda: saved(),
    "444": lambda: saved(subsampling=0),
    "422": lambda: saved(subsampling=1),
    "gray": lambda: saved("L"),
    "simplejpeg's": lambda: simplejpeg.encode_jpeg(IMAGE, colorspace="RGB"),
    "EXIF with a picture": lambda: saved(exif=b"Exif\0\0" + saved()),
    "a comment": lambda: saved(comment=b"\xff\xc0 nothing"),
    "restarts": lambda: saved(restart_marker_blocks=1),
    "Adobe's": lambda: named(b"\1\2\3", extra=adobe(1)),
    "without a marker": lambda: named(b"\1\2\3"),
    "one pixel": lambda: saved(image=IMAGE[:1, :1]),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("colour", [None, True, False])
def test_plain_ones_have_the_shape_that_is_decoded(name: str, colour: bool | None) -> None:
    jpeg = PLAIN[name]()
    height, width, channels = decode_image(memoryview(jpeg), colour).shape
    assert plain_shape(memoryview(jpeg), colour) == (channels, height, width)


OTHERS = {
    "progressive": lambda: saved(progressive=True),
    "CMYK": lambda: saved("CMYK"),
    "RGB": lambda: named(b"RGB"),
    "Adobe's RGB": lambda: named(b"\1\2\3", extra=adobe(0)),
    "JFIF and Adobe's RGB": lambda: named(b"\1\2\3", drop=False, extra=adobe(0)),
    "12 bits": lambda: with_frame(4, 12),
    "no rows": lambda: (
        with_frame(5, 0)[:0]
        or changed(lambda parts: [p[:5] + b"\0\0" + p[7:] if p[1] == 0xC0 else p for p in parts])
    ),
    "vast": lambda: changed(
        lambda parts: [p[:5] + b"\xff\xff\xff\xff" + p[9:] if p[1] == 0xC0 else p for p in parts]
    ),
    "another sampling": lambda: with_frame(11, 0x41),
    "two heads": lambda: changed(lambda parts: [parts[frame(parts)], *parts]),
    "no head": lambda: changed(lambda parts: [p for p in parts if p[1] != 0xC0]),
    "a scan of one component": lambda: changed(
        lambda parts: [*parts[:-1], b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + parts[-1][14:]]
    ),
    "no tables of numbers": lambda: changed(lambda parts: [p for p in parts if p[1] != 0xDB]),
    "no tables of codes": lambda: changed(lambda parts: [p for p in parts if p[1] != 0xC4]),
    "one table less": lambda: changed(lambda parts: [p for p in parts if p[1:5] != b"\xdb\0C\1"]),
    "a table cut short": lambda: changed(
        lambda parts: [p if p[1] != 0xC4 else p[:3] + bytes([p[3] - 1]) + p[4:-1] for p in parts]
    ),
    "a scan of others": lambda: changed(
        lambda parts: [*parts[:-1], parts[-1][:5] + b"\4" + parts[-1][6:]]
    ),
    "bytes between": lambda: changed(lambda parts: [parts[0], b"\0\0", *parts[1:]]),
    "bytes behind": lambda: saved() + b"\0",
    "cut short": lambda: saved()[:-100],
    "a head only": lambda: saved()[:100] + EOI,
    "a length beyond": lambda: SOI + b"\xff\xe0\xff\xff" + EOI,
    "PNG": lambda: b"\x89PNG\r\n\x1a\n" + bytes(50),
    "nothing": lambda: b"",
    "two bytes": lambda: SOI,
    "begin and end": lambda: SOI + EOI,
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_to_the_readers(name: str) -> None:
    assert plain_shape(memoryview(OTHERS[name]()), None) is None


def test_no_damage_raises() -> None:
    jpeg = saved()
    for _ in range(3000):
        bad = bytearray(jpeg)
        for at in GENERATOR.integers(0, 700, 3):
            bad[at] = GENERATOR.integers(256)
        shape = plain_shape(memoryview(bad), None)
        assert shape is None or (shape[0] in (1, 3) and min(shape) > 0)
    for length in range(700):
        plain_shape(memoryview(jpeg[:length] + EOI), None)
