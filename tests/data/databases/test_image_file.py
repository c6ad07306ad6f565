"""Images whose EXIF says that they do not lie upright, by everything that reads image files."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from PIL import Image, ImageOps

from osucaffe.data.databases.image_file import IGNORE_EXIF, decode_image
from osucaffe.data.pictures.jpeg import plain_shape

VALUES = np.random.default_rng(2).integers(0, 256, (6, 4, 3), np.uint8).repeat(8, 0).repeat(8, 1)


def lying(kind: str, orientation: int, mode: str = "RGB") -> bytes:
    """An image file of this EXIF orientation."""
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(VALUES).convert(mode).save(stream, kind, exif=exif)
    return stream.getvalue()


def as_pillow(content: bytes) -> np.ndarray:
    """What Pillow makes of it, upright, blue first."""
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))[:, :, ::-1]


@pytest.mark.parametrize("orientation", range(1, 10))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_each_orientation(kind: str, orientation: int) -> None:
    content = lying(kind, orientation)
    image = decode_image(memoryview(content))
    np.testing.assert_array_equal(image, as_pillow(content))


def test_gray_and_cmyk() -> None:
    assert decode_image(memoryview(lying("JPEG", 6, "CMYK"))).shape == (32, 48, 3)
    assert decode_image(memoryview(lying("PNG", 6)), False).shape == (32, 48, 1)
    assert decode_image(memoryview(lying("PNG", 6, "RGBA"))).shape == (32, 48, 4)


def test_memory_is_used_for_what_lies_upright() -> None:
    out = np.zeros((48, 32, 3), np.uint8)
    decode_image(memoryview(lying("JPEG", 3)), True, out)
    assert not out.any()
    np.testing.assert_array_equal(decode_image(memoryview(lying("JPEG", 1)), True, out), out)
    assert out.any()


def test_gpus_get_what_lies_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their decoders do not look at EXIF."""
    assert plain_shape(memoryview(lying("JPEG", 1)), None) == (3, 48, 32)
    assert plain_shape(memoryview(lying("JPEG", 3)), None) is None
    monkeypatch.setenv(IGNORE_EXIF, "1")
    assert plain_shape(memoryview(lying("JPEG", 3)), None) == (3, 48, 32)


def test_it_can_be_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    content = lying("JPEG", 6)
    monkeypatch.setenv(IGNORE_EXIF, "1")
    stored = np.asarray(Image.open(io.BytesIO(content)))[:, :, ::-1]
    np.testing.assert_array_equal(decode_image(memoryview(content)), stored)


def test_avif_and_heic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phones' formats: Pillow's own, and that of pillow-heif, whose absence is told."""
    from PIL import features

    colour = np.full((24, 40, 3), (30, 120, 200), np.uint8)
    if features.check("avif"):
        file = io.BytesIO()
        Image.fromarray(colour).save(file, "AVIF", quality=95)
        decoded = decode_image(memoryview(file.getvalue()), True)
        np.testing.assert_allclose(decoded, colour[:, :, ::-1], atol=3)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    head = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    with pytest.raises(ValueError, match="it is a HEIC image: pip install pillow-heif to read it"):
        decode_image(memoryview(head + bytes(99)))
    with pytest.raises(ValueError, match="not an image of a known format"):
        decode_image(memoryview(head.replace(b"heic", b"isom").replace(b"mif1", b"mp42")))
