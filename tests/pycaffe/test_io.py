"""Blobs, datums, images and what Transformer makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

import osucaffe.pycaffe as caffe
from osucaffe.errors import UserError
from osucaffe.pycaffe import io


def blob(values, **fields):
    message = caffe.proto.caffe_pb2.BlobProto(**fields)
    message.data.extend(np.ravel(values).tolist())
    return message


def random(*shape):
    return np.random.default_rng(1).random(shape, np.float32)


def test_blobs_of_old_and_new_shapes():
    data = random(10, 10)
    old = blob(data, num=1, channels=1, height=10, width=10)
    assert io.blobproto_to_array(old).shape == (1, 1, 10, 10)
    new = blob(data)
    with pytest.raises(ValueError, match="reshape"):
        io.blobproto_to_array(new)
    new.shape.dim.extend([10, 10])
    np.testing.assert_array_equal(io.blobproto_to_array(new), data)
    assert io.blobproto_to_array(blob([123])) == 123


def test_blobs_there_and_back():
    data, diff = random(2, 3), random(2, 3) + 1
    message = io.array_to_blobproto(data, diff)
    np.testing.assert_array_equal(io.blobproto_to_array(message), data)
    np.testing.assert_array_equal(io.blobproto_to_array(message, return_diff=True), diff)
    content = io.arraylist_to_blobprotovector_str([data, diff[0]])
    back = io.blobprotovector_str_to_arraylist(content)
    np.testing.assert_array_equal(back[0], data)
    np.testing.assert_array_equal(back[1], diff[0])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_datums_there_and_back(dtype):
    image = (random(3, 4, 5) * 200).astype(dtype)
    datum = io.array_to_datum(image, 7)
    assert datum.label == 7
    np.testing.assert_array_equal(io.datum_to_array(datum), image)
    assert len(io.array_to_datum(image).SerializeToString()) < len(datum.SerializeToString())
    with pytest.raises(ValueError, match="3 axes"):
        io.array_to_datum(image[0])


def test_names_that_scripts_find_in_io(tmp_path):
    """scikit-image's resize, and itself where it is installed; an open file."""
    image = random(6, 8, 3)
    np.testing.assert_array_equal(io.resize(image, (3, 4)), io.resize_image(image, (3, 4)))
    gray = (random(6, 8) * 255).astype(np.uint8)
    small = io.resize(gray, (3, 4, 1)[:2])
    assert small.shape == (3, 4)
    np.testing.assert_allclose(small, io.resize(gray[:, :, None] / 255, (3, 4))[:, :, 0])
    file = tmp_path / "a.jpg"
    file.write_bytes(simplejpeg.encode_jpeg(np.full((4, 5, 3), 7, np.uint8)))
    with file.open("rb") as opened:
        np.testing.assert_array_equal(io.load_image(opened), io.load_image(file))
    with pytest.raises((ModuleNotFoundError, AttributeError), match=r"skimage|none"):
        _ = io.skimage.none
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = io.other


def test_images_are_rgb_from_0_to_1(tmp_path):
    pixels = np.zeros((8, 6, 3), np.uint8)
    pixels[..., 0] = 255
    path = tmp_path / "red.jpg"
    path.write_bytes(simplejpeg.encode_jpeg(pixels, quality=98))
    image = caffe.io.load_image(str(path))
    assert image.shape == (8, 6, 3)
    assert image.dtype == np.float32
    np.testing.assert_allclose(image[4, 3], [1, 0, 0], atol=0.02)
    gray = caffe.io.load_image(str(path), color=False)
    assert gray.shape == (8, 6, 1)
    np.testing.assert_allclose(gray, 0.2125, atol=0.01)
    path.write_bytes(simplejpeg.encode_jpeg(pixels[..., :1] // 2, 98, "GRAY", "Gray"))
    np.testing.assert_allclose(caffe.io.load_image(str(path)), np.full((8, 6, 3), 0.5), atol=0.01)
    assert caffe.io.load_image(str(path), color=False).shape == (8, 6, 1)
    image_module = pytest.importorskip("PIL.Image")
    cover = np.dstack([pixels, np.full((8, 6), 99, np.uint8)])
    image_module.fromarray(cover).save(tmp_path / "red.png")
    found = caffe.io.load_image(str(tmp_path / "red.png"))
    np.testing.assert_array_equal(found, pixels / np.float32(255))
    path.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"cannot read image .*red\.jpg"):
        caffe.io.load_image(str(path))
    with pytest.raises(UserError, match=r"cannot read image .*none\.jpg"):
        caffe.io.load_image(str(tmp_path / "none.jpg"))


RESIZED = np.load(Path(__file__).parents[1] / "fixtures" / "pycaffe_resize.npz")
"""What pycaffe's resize_image gave with scikit-image 0.26: channels_height_width_order."""


@pytest.mark.parametrize("name", RESIZED.files)
def test_resizing_is_pycaffes(name):
    channels, height, width, order = map(int, name.split("_"))
    y, x, c = np.mgrid[:5, :7, :channels]
    image = ((y * 7 + x * x * 3 + c * 5 + y * x * c) % 17).astype(np.float32)
    found = io.resize_image(image, (height, width), interp_order=order)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, RESIZED[name], atol=1e-5)


def test_resizing():
    constant = np.full((4, 4, 3), 7, np.float32)
    np.testing.assert_allclose(io.resize_image(constant, (2, 9)), 7, rtol=1e-6)
    with pytest.raises(ValueError, match="interp_order"):
        io.resize_image(constant, (8, 8), interp_order=3)


def test_a_mean_of_another_size_is_resized(caplog):
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    mean = random(3, 8, 9) * 100
    transformer.set_mean("data", mean)
    wanted = io.resize_image(mean.transpose(1, 2, 0), (4, 5)).transpose(2, 0, 1)
    np.testing.assert_allclose(transformer.mean["data"], wanted)
    assert "resized to the input's, (3, 4, 5)" in caplog.text
    transformer.set_mean("data", mean[:, :4, :5])
    np.testing.assert_array_equal(transformer.mean["data"], mean[:, :4, :5])


def test_ten_crops():
    image = random(6, 7, 3)
    crops = io.oversample([image, image + 1], (4, 5))
    assert crops.shape == (20, 4, 5, 3)
    np.testing.assert_array_equal(crops[0], image[:4, :5])
    np.testing.assert_array_equal(crops[3], image[2:, 2:])
    np.testing.assert_array_equal(crops[4], image[1:5, 1:6])
    odd = io.oversample([image], (3, 4))  # a half is cut off, not rounded
    np.testing.assert_array_equal(odd[4], image[1:4, 1:5])
    np.testing.assert_array_equal(crops[5:10], crops[:5, :, ::-1])
    np.testing.assert_allclose(crops[10:], crops[:10] + 1, rtol=1e-6)


def test_transformer_there_and_back():
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (2, 1, 0))
    transformer.set_raw_scale("data", 255)
    transformer.set_mean("data", np.array([104.0, 117.0, 123.0]))
    transformer.set_input_scale("data", 0.5)
    image = random(4, 5, 3)
    there = transformer.preprocess("data", image)
    expected = (image[:, :, ::-1].transpose(2, 0, 1) * 255 - [[[104]], [[117]], [[123]]]) * 0.5
    np.testing.assert_allclose(there, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(transformer.deprocess("data", there), image, atol=1e-5)
    assert transformer.preprocess("data", random(9, 9, 3)).shape == (3, 4, 5)


def test_transformer_refuses_what_does_not_fit():
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    with pytest.raises(Exception, match="data2 is not one of the net inputs"):
        transformer.set_raw_scale("data2", 1)
    for call, message in [
        (lambda: transformer.set_transpose("data", (1, 0)), "axes"),
        (lambda: transformer.set_channel_swap("data", (1, 0)), "channels"),
        (lambda: transformer.set_mean("data", np.zeros(2)), "2 mean values for 3 channels"),
        (lambda: transformer.set_mean("data", np.zeros((2, 4, 5))), "shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    transformer.set_mean("data", random(3, 4, 5))
