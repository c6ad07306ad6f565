"""Tests of the Datum coding against google.protobuf and against images that C++ Caffe decoded."""

import io
import struct
import zlib

import numpy as np
import pytest
import simplejpeg

from osucaffe.data.databases.datum import make_datum, parse_datum, pixels
from osucaffe.data.databases.image_file import decode_image
from osucaffe.proto import caffe_pb2
from tests.data.records import FORMATS, read_images


def parsed(message):
    return parse_datum(memoryview(message.SerializeToString()))


@pytest.mark.parametrize("label", [0, 7, 127, 128, 300, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000])
def test_parses_as_protobuf_does(label, size):
    message = caffe_pb2.Datum(channels=3, height=256, width=1000, label=label, data=b"\x07" * size)
    datum = parsed(message)
    assert datum.shape == (3, 256, 1000)
    assert datum.label == label
    assert bytes(datum.data) == message.data
    assert not datum.encoded
    message.encoded = True
    assert parsed(message).encoded


def test_raw_pixels_are_not_copied():
    value = bytearray(make_datum(np.arange(24, dtype=np.uint8).reshape(2, 3, 4), 5))
    image = pixels(parse_datum(memoryview(value)))
    assert image.shape == (2, 3, 4)
    assert image[1, 2, 3] == 23
    value[value.index(23)] = 99
    assert image[1, 2, 3] == 99


def test_float_data():
    message = caffe_pb2.Datum(channels=1, height=1, width=3, float_data=[0.5, -1, 2], label=3)
    datum = parsed(message)
    assert pixels(datum).tolist() == [[[0.5, -1, 2]]]
    assert datum.label == 3


def test_jpegs_are_decoded_as_caffe_decodes_them():
    # The raw records are the same images at half the size: bilinear, so means of 2 x 2 pixels.
    for full, half in zip(
        *(read_images(FORMATS / name)[1] for name in ("jpeg6_lmdb", "raw6_lmdb")), strict=True
    ):
        assert full.shape == (3, 64, 96)
        mean = full.reshape(3, 32, 2, 48, 2).mean(axis=(2, 4))
        assert np.abs(mean - half).max() <= 1  # rounding


@pytest.mark.parametrize(
    ("form", "channels"),
    [(".png", 3), (".png", 4), (".bmp", 3), (".ppm", 3), (".tiff", 3), (".tiff", 4)],
)
def test_colours_read_as_gray_have_the_bits_of_opencv(form: str, channels: int):
    cv2 = pytest.importorskip("cv2")
    image = np.random.default_rng(2).integers(0, 256, (37, 53, channels), dtype=np.uint8)
    image[:, :8] = image[:, :8, :1]  # gray stays gray
    content = cv2.imencode(form, image)[1]
    expected = cv2.imdecode(content, cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(decode_image(memoryview(content), False)[..., 0], expected)


def test_jpegs_that_are_not_quite_right():
    image = np.random.default_rng(1).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    good = simplejpeg.encode_jpeg(image, colorspace="BGR")
    # Stray bytes before the end marker: every decoder reads such a file, with a warning.
    stray = good[:-2] + bytes(12) + good[-2:]
    assert (decode_image(memoryview(stray)) == decode_image(memoryview(good))).all()
    with pytest.raises(ValueError, match="Premature end"):
        decode_image(memoryview(good[:-200]))


def test_cmyk_jpeg():
    module = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    red = module.new("RGB", (16, 8), (200, 0, 0)).convert("CMYK")
    red.save(stream, "JPEG")
    found = decode_image(memoryview(stream.getvalue()))
    assert found.shape == (8, 16, 3)
    assert np.abs(found - np.array([0.0, 0.0, 200.0])).max() < 10


def test_images_that_pillow_had_better_not_open():
    pytest.importorskip("PIL.Image")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"  # runs Ghostscript
    with pytest.raises(ValueError, match="not an image of a known format"):
        decode_image(memoryview(eps))

    def chunk(kind, content):
        check = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + check

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    huge = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"x"))
    with pytest.raises(ValueError, match="exceeds limit"):
        decode_image(memoryview(huge + chunk(b"IEND", b"")))


@pytest.mark.parametrize(
    "value",
    [b"hello", b"\x08", b"\x22\x7f\x00", b"\x22\xff", b"\x32\x05ab"],
    ids=["text", "no value", "short data", "short length", "short float_data"],
)
def test_damaged_records(value):
    with pytest.raises(ValueError, match="not a Datum"):
        parse_datum(memoryview(value))


def test_records_that_contradict_themselves():
    with pytest.raises(ValueError, match="3 values, but says channels 1 x height 2 x width 2"):
        pixels(parsed(caffe_pb2.Datum(channels=1, height=2, width=2, data=b"abc")))
    with pytest.raises(ValueError, match=r"(?i)jpeg"):
        pixels(parsed(caffe_pb2.Datum(data=b"\xff\xd8\xff\xe0 no picture", encoded=True)))
