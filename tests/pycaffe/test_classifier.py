"""Classifier and Detector: what enters the net, and the scores that come out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

import osucaffe.pycaffe as caffe
from osucaffe.errors import UserError
from osucaffe.pycaffe import io

from .nets import DEPLOY, write

MEAN = np.array([10.0, 20.0, 30.0])


@pytest.fixture
def files(tmp_path):
    path = write(tmp_path, DEPLOY)
    caffe.Net(path, caffe.TEST).save(str(tmp_path / "model"))
    return path, str(tmp_path / "model")


def image(height=6, width=6, seed=1):
    return np.random.default_rng(seed).random((height, width, 3), np.float32)


def by_hand(net, pictures):
    data = [(p[:, :, ::-1].transpose(2, 0, 1) * 255 - MEAN[:, None, None]) for p in pictures]
    other = caffe.Net.forward_all(net, data=np.array(data, np.float32))
    return other["prob"].reshape(len(pictures), -1)


def settings():
    return {"mean": MEAN, "raw_scale": 255, "channel_swap": (2, 1, 0)}


def test_predictions(files):
    net = caffe.Classifier(*files, **settings())
    pictures = [image(seed=seed) for seed in range(6)]
    scores = net.predict(pictures, oversample=False).reshape(6, -1)
    assert scores.shape == (6, 5)
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(scores, by_hand(net, pictures), rtol=1e-5)


def test_images_smaller_than_the_input_are_refused(files):
    with pytest.raises(UserError, match=r"image_dims \(10, 5\) must not be smaller"):
        caffe.Classifier(*files, image_dims=(10, 5), **settings())


def test_images_are_scaled_and_cropped(files):
    net = caffe.Classifier(*files, image_dims=(10, 8), **settings())
    scaled = io.resize_image(image(20, 16), (10, 8))
    one = net.predict([image(20, 16)], oversample=False).reshape(1, -1)
    np.testing.assert_allclose(one, by_hand(net, [scaled[2:8, 1:7]]), rtol=1e-4)
    ten = net.predict([image(20, 16)])
    expected = by_hand(net, list(io.oversample([scaled], (6, 6)))).mean(axis=0)
    np.testing.assert_allclose(ten[0], expected, rtol=1e-4)


def test_the_default_arguments_of_caffes_script(files):
    """classify.py gives a mean image as large as images_dim, of which the net takes a part."""
    mean = np.random.default_rng(2).random((3, 10, 10)) * 255
    net = caffe.Classifier(
        *files, image_dims=[10, 10], mean=mean, input_scale=None, raw_scale=255.0,
        channel_swap=[2, 1, 0],
    )  # fmt: skip
    fitted = io.resize_image(mean.transpose(1, 2, 0), (6, 6)).transpose(2, 0, 1)
    crops = io.oversample([io.resize_image(image(20, 16), (10, 10))], (6, 6))
    data = np.array([crop[:, :, ::-1].transpose(2, 0, 1) * 255 - fitted for crop in crops])
    wanted = net.forward_all(data=data.astype(np.float32))["prob"].mean(axis=0).ravel()
    found = net.predict([image(20, 16)], True)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-7)


def test_windows_are_found_in_files(files, tmp_path):
    pixels = (image(12, 18) * 255).astype(np.uint8)
    path = str(tmp_path / "picture.jpg")
    (tmp_path / "picture.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, quality=95))
    net = caffe.Detector(*files, **settings())
    windows = np.array([[0, 0, 12, 18], [2, 3, 8, 9]])
    found = net.detect_windows([(path, windows)])
    assert [each["filename"] for each in found] == [path, path]
    picture = io.load_image(path)
    expected = by_hand(net, [io.resize_image(picture, (6, 6)), picture[2:8, 3:9]])
    for each, scores in zip(found, expected, strict=True):
        np.testing.assert_allclose(each["prediction"], scores, rtol=1e-4)


def test_nets_of_one_channel_detect_too(tmp_path):
    path = write(tmp_path, DEPLOY.replace("dim: 3", "dim: 1"))
    caffe.Net(path, caffe.TEST).save(str(tmp_path / "grey"))
    net = caffe.Detector(path, str(tmp_path / "grey"), mean=np.array([30.0]), raw_scale=255)
    picture = str(tmp_path / "picture.jpg")
    pixels = (image(12, 12)[:, :, :1] * 255).astype(np.uint8)
    Path(picture).write_bytes(simplejpeg.encode_jpeg(pixels, colorspace="GRAY"))
    (found,) = net.detect_windows([(picture, np.array([[2, 3, 8, 9]]))])
    window = io.load_image(picture, color=False)[2:8, 3:9].transpose(2, 0, 1) * 255 - 30
    expected = net.forward_all(data=window[None])["prob"].ravel()
    np.testing.assert_allclose(found["prediction"], expected, rtol=1e-4)


def test_context_is_shown_and_what_lies_outside_is_the_mean(files):
    net = caffe.Detector(*files, context_pad=1, **settings())
    picture = image(12, 12)
    inside = net.crop(picture, (4, 4, 8, 8))  # four pixels, and one around them
    np.testing.assert_allclose(inside, picture[3:9, 3:9], rtol=1e-5)
    corner = net.crop(picture, (0, 0, 4, 4))
    np.testing.assert_allclose(corner[1:, 1:], picture[:5, :5], rtol=1e-5)
    np.testing.assert_allclose(corner[0], np.tile(MEAN[::-1] / 255, (6, 1)), rtol=1e-4)
    net.configure_crop(3)
    with pytest.raises(ValueError, match="context_pad 3 leaves nothing"):
        net.crop(picture, (0, 0, 4, 4))


def test_a_net_without_an_input_is_refused(files, tmp_path):
    text = """layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 1 } } }
              layer { name: "s" type: "Power" bottom: "d" top: "s" }"""
    weights = files[1]
    with pytest.raises(UserError, match="one input, not 0: give its deploy"):
        caffe.Classifier(write(tmp_path, text), weights)


def test_a_mean_of_the_images_size_is_made_to_fit_the_crop(files):
    """As Caffe's classify.py has it by default: images of 256, their mean, a smaller input."""
    large = caffe.Classifier(*files, image_dims=(8, 8), mean=np.full((3, 8, 8), 5.0))
    small = caffe.Classifier(*files, image_dims=(8, 8), mean=np.full((3, 6, 6), 5.0))
    np.testing.assert_allclose(large.predict([image()]), small.predict([image()]), rtol=1e-6)


def test_a_script_without_a_gpu_is_told_in_its_own_words(files, monkeypatch, caplog):
    def missing(device, precision):
        raise UserError("no GPU is there")

    monkeypatch.setattr("osucaffe.backends.cuda.Cuda", missing)
    caffe.set_device(99)  # no other test has made its backend
    caffe.set_mode_gpu()
    try:
        with pytest.raises(UserError, match=r"set_mode_gpu\(\) \(set_mode_cpu\(\) is .* no GPU is"):
            caffe.Net(files[0], caffe.TEST)
        monkeypatch.setenv("OSUCAFFE_CPU_FALLBACK", "1")
        caffe.Net(files[0], caffe.TEST).forward()
        assert "CPU, as OSUCAFFE_CPU_FALLBACK allows: no GPU is there" in caplog.text
    finally:
        caffe.set_mode_cpu()
        caffe.set_device(0)
