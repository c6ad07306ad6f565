"""augmentation_param: what each field does to an image; Data draws it by seed and record."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.data.config import DataConfig
from osucaffe.data.pictures.variation import vary
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import NetParameter, caffe_pb2, parse_text

rng = np.random.default_rng(0)


def param(**fields: float) -> caffe_pb2.AugmentationParameter:
    return caffe_pb2.AugmentationParameter(**fields)


@pytest.fixture
def image() -> np.ndarray:
    """A smooth one."""
    y, x = np.mgrid[:31, :31] / 30
    return (255 * np.stack([y, x, (x + y) / 2])).astype(np.uint8)


def test_rotation_is_about_the_middle(image: np.ndarray) -> None:
    spot = np.zeros((1, 31, 31), np.uint8)
    spot[0, 15, 15] = spot[0, 15, 25] = 255
    angles = set()
    for draw in range(40):
        turned = vary(spot, param(rotation=90), draw).copy()
        assert turned[0, 15, 15] > 250
        turned[0, 13:18, 13:18] = 0
        y, x = np.unravel_index(turned[0].argmax(), turned[0].shape)
        assert np.hypot(y - 15, x - 15) == pytest.approx(10, abs=1)
        angles.add(round(float(np.degrees(np.arctan2(y - 15, x - 15)))))
    assert min(angles) < -45 < 45 < max(angles)
    assert max(map(abs, angles)) <= 93


def test_zoom_keeps_the_middle_and_goes_both_ways(image: np.ndarray) -> None:
    slopes = [float(np.diff(vary(image, param(zoom=0.5), d)[1, 15, 12:19].astype(int)).mean())
              for d in range(60)]  # fmt: skip
    slope = 255 / 30
    assert slope / 1.5 - 0.5 < min(slopes) < 0.8 * slope
    assert 1.25 * slope < max(slopes) < slope * 1.5 + 0.5


def test_colours_and_erasing(image: np.ndarray) -> None:
    means = [vary(image, param(colour=0.4), draw).mean() / image.mean() for draw in range(60)]
    assert 0.55 < min(means) < 0.75
    assert 1.2 < max(means) < 1.45
    erased = [(vary(image, param(erasing=0.5), draw) != image).any(axis=0) for draw in range(200)]
    shares = [each.mean() for each in erased if each.any()]
    assert 70 < len(shares) < 130
    assert max(shares) < 0.4
    rows, columns = np.nonzero(erased[int(np.argmax([each.mean() for each in erased]))])
    assert np.ptp(rows) > 5
    assert np.ptp(columns) > 5


def test_nothing_is_nothing_and_a_draw_says_all(image: np.ndarray) -> None:
    assert vary(image, param(), 3) is image
    all_fields = param(rotation=20, zoom=0.2, colour=0.2, erasing=0.5)
    one, again, other = (vary(image, pickle.loads(pickle.dumps(all_fields)), d) for d in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).any()
    assert one.shape == image.shape
    assert one.dtype == np.uint8


DATA = """layer {{ name: "d" type: "{kind}" top: "data" top: "label" transform_param {{
  augmentation_param {{ {fields} }} }} {reader} {{ source: "{source}" batch_size: 6 }} }}"""


def data(
    source: object, fields: str, phase: str = "TRAIN", seed: int = 1, **config: Any
) -> np.ndarray:
    text = DATA.format(kind="Data", fields=fields, reader="data_param", source=source)
    options: Any = {"phase": phase, "seed": seed, "data_config": DataConfig(**config)}
    net = Net(parse_text(text, NetParameter), backend=Cpu(), **options)
    net.forward()
    return np.array(net.read("data"))


def test_data_varies_in_training_only(fixtures) -> None:
    source = fixtures / "formats" / "mnist200_lmdb"
    plain = data(source, "")
    varied = data(source, "rotation: 30")
    assert (plain == data(source, "rotation: 30", "TEST")).all()
    assert (varied != plain).any(axis=(1, 2, 3)).all()
    assert (varied == data(source, "rotation: 30")).all()
    assert (varied == data(source, "rotation: 30", readers=6)).all()  # by processes
    assert (varied != data(source, "rotation: 30", seed=2)).any()
    with pytest.raises(UserError, match=r"augmentation_param\.colour: 2: 0 to 1"):
        data(source, "colour: 2")
    for config in {"cache": "device"}, {"decode": "gpu"}:
        assert (plain == data(source, "rotation: 0", **config)).all()
        with pytest.raises(UserError, match=r"the CPU varies images: leave out --cache device"):
            data(source, "zoom: 1", **config)
    text = DATA.format(kind="WindowData", fields="zoom: 1", reader="window_data_param", source="x")
    with pytest.raises(UserError, match=r"augmentation_param: is not supported yet"):
        Net(parse_text(text, NetParameter), backend=Cpu())
