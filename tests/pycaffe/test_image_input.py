"""Images enter Classifier and Detector as they did in training, where scripts say nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

import osucaffe.pycaffe as caffe
from osucaffe.backends.cpu import Cpu
from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import NetParameter, parse_text, write_mean, write_weights
from osucaffe.pycaffe import io

from .nets import DEPLOY, write

DATA = """
layer {{ name: "images" type: "Data" top: "data" top: "label" include {{ phase: {phase} }}
  transform_param {{ {transform} }}
  data_param {{ source: "{folder}/lmdb" batch_size: 3 backend: LMDB }} }}
"""
BODY = DEPLOY[DEPLOY.index("layer") :]
TRANSFORMS = {
    "nothing": ((6, 6), ""),
    "scale": ((6, 6), "scale: 0.00390625"),
    "values": ((6, 6), "mean_value: 10 mean_value: 20 mean_value: 30 scale: 0.5"),
    "one value": ((9, 8), "mean_value: 77 crop_size: 6"),
    "cropped": ((10, 7), "mean_value: 10 mean_value: 20 mean_value: 30 crop_size: 6 scale: 2"),
    "mean image": ((6, 6), 'mean_file: "{folder}/mean.binaryproto" scale: 0.1'),
    "cropped mean image": ((9, 8), 'mean_file: "{folder}/mean.binaryproto" crop_size: 6'),
}
random = np.random.default_rng(3)


def train(folder: Path, name: str, extents: tuple[int, int], form: str = "caffemodel"):
    """Write images, their mean and a model; returns deploy net, model, images, and what enters
    the net in the TEST phase."""
    images = random.integers(0, 256, (3, 3, *extents), np.uint8)
    values = [make_datum(image, label) for label, image in enumerate(images)]
    write_database(folder / "lmdb", [(record_key(i), value) for i, value in enumerate(values)])
    write_mean(folder / "mean.binaryproto", images.mean(0))
    transform = TRANSFORMS[name][1].format(folder=folder)
    phases = {"TRAIN": f"{transform} mirror: true", "TEST": transform}
    text = BODY
    for phase, each in phases.items():
        text = DATA.format(phase=phase, transform=each, folder=folder) + text
    (folder / "train_val.prototxt").write_text(text)
    param = parse_text(text, NetParameter)
    write_weights(folder / f"net.{form}", Net(param, backend=Cpu(), seed=1).to_proto())
    net = Net(param, backend=Cpu(), phase="TEST", inspectable=True)
    net.forward()
    pictures = [image[::-1].transpose(1, 2, 0).astype(np.float32) / 255 for image in images]
    return write(folder, DEPLOY), str(folder / f"net.{form}"), pictures, net.read("data")


def entered(net: caffe.Net, pictures) -> np.ndarray:
    """What enters the net for these images."""
    seen = []
    net.after_forward(lambda layer: seen.append(net.blobs["data"].data.copy()) if not layer else 0)
    net.predict(pictures, oversample=False)
    return np.concatenate(seen)[: len(pictures)]


@pytest.mark.parametrize("form", ["caffemodel", "caffemodel.h5"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_entered_in_training_enters_again(name: str, form: str, tmp_path: Path) -> None:
    *files, pictures, wanted = train(tmp_path, name, TRANSFORMS[name][0], form)
    net = caffe.Classifier(*files)
    found = entered(net, pictures)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert tuple(net.image_dims) == TRANSFORMS[name][0]
    assert np.array_equal(entered(net, pictures), found)


def test_scripts_that_say_something_say_all(tmp_path: Path) -> None:
    *files, pictures, _ = train(tmp_path, "values", (6, 6))
    plain = np.array([picture.transpose(2, 0, 1) for picture in pictures])
    net = caffe.Classifier(*files, input_scale=2)
    np.testing.assert_allclose(entered(net, pictures), 2 * plain, rtol=1e-6)
    net = caffe.Classifier(*files)
    net.transformer.set_raw_scale("data", 7)
    np.testing.assert_allclose(entered(net, pictures), 7 * plain, rtol=1e-6)


def test_images_that_a_script_has_prepared_enter_as_they_are(tmp_path: Path) -> None:
    *files, pictures, _ = train(tmp_path, "values", (6, 6))
    prepared = [200 * picture - 100 for picture in pictures]
    found = entered(caffe.Classifier(*files), prepared)
    np.testing.assert_array_equal(found, [each.transpose(2, 0, 1) for each in prepared])


def test_where_nothing_is_known_that_is_told(tmp_path: Path, caplog) -> None:
    path = write(tmp_path, DEPLOY)
    caffe.Net(path, caffe.TEST).save(str(tmp_path / "model"))
    net = caffe.Classifier(path, str(tmp_path / "model"))
    picture = random.random((6, 6, 3), np.float32)
    found = entered(net, [picture])
    assert np.array_equal(found[0], picture.transpose(2, 0, 1))
    (told,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert told.startswith("How images were preprocessed in training is unknown: they")


def test_a_mean_that_has_moved(tmp_path: Path) -> None:
    """It is found beside the model; where it is not, that is an error unless another is given."""
    *files, pictures, wanted = train(tmp_path, "mean image", (6, 6))
    (tmp_path / "moved").mkdir()
    for name in ("net.caffemodel", "mean.binaryproto"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    files[1] = str(tmp_path / "moved" / "net.caffemodel")
    np.testing.assert_allclose(entered(caffe.Classifier(*files), pictures), wanted, atol=1e-4)
    (tmp_path / "moved" / "mean.binaryproto").unlink()
    with pytest.raises(
        UserError, match=r'layer "images" \(Data\): the mean in ".*" was subtracted'
    ):
        caffe.Classifier(*files).predict(pictures)
    caffe.Classifier(*files, mean=np.zeros(3)).predict(pictures)


def test_the_log_says_how_images_enter(tmp_path: Path, caplog) -> None:
    *files, pictures, _ = train(tmp_path, "values", (6, 6))
    net = caffe.Classifier(*files)
    caplog.clear()
    with caplog.at_level("INFO", "osucaffe"):
        net.predict(pictures)
        net.predict(pictures)
    assert caplog.messages == [
        f'Images are preprocessed as in training ({files[1]}, layer "images" (Data)): blue, green, '
        "red, 0..255, less the mean 10, 20, 30, times 0.5"
    ]


def test_a_detector_does_the_same(tmp_path: Path) -> None:
    *files, pictures, _ = train(tmp_path, "values", (6, 6))
    path = str(tmp_path / "picture.jpg")
    pixels = (np.tile(pictures[0], (2, 2, 1)) * 255).astype(np.uint8)
    Path(path).write_bytes(simplejpeg.encode_jpeg(pixels, quality=95))
    windows = np.array([[0, 0, 12, 12], [2, 3, 8, 9]])
    given = {
        "mean": np.array([10, 20, 30]),
        "raw_scale": 255,
        "channel_swap": (2, 1, 0),
        "input_scale": 0.5,
    }
    found, wanted = (
        [each["prediction"] for each in net.detect_windows([(path, windows)])]
        for net in (
            caffe.Detector(*files, context_pad=1),
            caffe.Detector(*files, context_pad=1, **given),
        )
    )
    np.testing.assert_array_equal(found, wanted)
    assert io.load_image(path).shape == (12, 12, 3)
