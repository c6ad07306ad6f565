"""Tests of transform_param: each setting against a direct NumPy formula."""

import numpy as np
import pytest

from osucaffe.backends.random import mix64
from osucaffe.data.pictures.transform import record_draws
from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2
from tests.data import records

IMAGE = np.random.default_rng(0).integers(0, 256, (3, 9, 11), dtype=np.uint8)
MEAN = np.random.default_rng(1).uniform(90, 140, (3, 9, 11)).astype(np.float32)


def transform(phase="TRAIN", shape=IMAGE.shape, **settings):
    made = records.transform(phase, **settings)
    return made, made.prepare(shape)


def apply(draw=0, phase="TEST", **settings):
    made, shape = transform(phase, **settings)
    out = np.full(shape, np.nan, np.float32)
    made.apply(IMAGE, out, draw)
    return out


@pytest.fixture
def mean_file(tmp_path):
    blob = caffe_pb2.BlobProto(num=1, channels=3, height=9, width=11, data=MEAN.ravel().tolist())
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(blob.SerializeToString())
    return str(path)


def test_scale_and_mean_value():
    assert (apply() == IMAGE).all()
    assert (apply(scale=0.00390625) == IMAGE * np.float32(0.00390625)).all()
    assert (apply(mean_value=[10.5]) == IMAGE - np.float32(10.5)).all()
    means = np.array([104, 117, 123.5], np.float32)
    wanted = (IMAGE - means[:, None, None]) * np.float32(0.1)
    assert (apply(mean_value=means.tolist(), scale=0.1) == wanted).all()


def test_mean_file_is_cropped_with_the_image_and_not_mirrored_before_it(mean_file):
    wanted = ((IMAGE - MEAN) * np.float32(0.5))[:, 2:7, 3:8]  # (9 - 5) / 2, (11 - 5) / 2
    settings = {"mean_file": mean_file, "crop_size": 5, "scale": 0.5, "mirror": True}
    assert (apply(draw=0, **settings) == wanted).all()
    assert (apply(draw=1, **settings) == wanted[:, :, ::-1]).all()


def test_random_crops_reach_every_place_equally_and_mirror_half():
    made, shape = transform("TRAIN", crop_size=7, mirror=True)
    assert made.random
    windows = {}
    for top in range(3):
        for left in range(5):
            window = IMAGE[:, top : top + 7, left : left + 7]
            windows[window.tobytes()] = (top, left, False)
            windows[window[:, :, ::-1].tobytes()] = (top, left, True)
    out = np.empty(shape, np.float32)
    counts = dict.fromkeys(windows.values(), 0)
    for draw in record_draws(3, np.zeros(6000, int), np.arange(6000)).tolist():
        made.apply(IMAGE, out, draw)
        counts[windows[out.astype(np.uint8).tobytes()]] += 1
    assert len(counts) == 30
    assert min(counts.values()) > 130
    assert max(counts.values()) < 270


def test_the_test_phase_crops_the_centre():
    made, _ = transform("TEST", crop_size=7)
    assert not made.random
    assert (apply(draw=2**64 - 1, crop_size=7) == IMAGE[:, 1:8, 2:9]).all()


def test_draws_depend_on_seed_epoch_and_record_only():
    epochs, records = np.array([0, 0, 1, 1]), np.array([5, 6, 5, 6])
    draws = record_draws(9, epochs, records).tolist()
    assert draws[2:] == record_draws(9, epochs[2:], records[2:]).tolist()
    assert len({*draws, *record_draws(10, epochs, records).tolist()}) == 8
    # The same by Python's numbers, which know no overflow.
    assert draws[3] == mix64(mix64(mix64(1) ^ mix64(9)) ^ 6)


def test_a_whole_batch_at_once():
    made, shape = transform("TEST", crop_size=7, mean_value=[1, 2, 3], scale=0.3)
    images = np.stack([IMAGE, IMAGE[::-1]])
    batch = np.empty((2, *shape), np.float32)
    made.apply(images, batch)
    for image, found in zip(images, batch, strict=True):
        one = np.empty(shape, np.float32)
        made.apply(image, one)
        assert (one == found).all()


def test_bad_settings_name_layer_and_field(mean_file, tmp_path):
    (tmp_path / "text").write_text("hello")
    for message, settings in (
        (".*force_color and force_gray", {"force_color": True, "force_gray": True}),
        (".*mean_file and mean_value", {"mean_file": mean_file, "mean_value": [1]}),
        (r"\.mean_value: 2 values for 3 channels", {"mean_value": [1, 2]}),
        (r"\.crop_size: 10 is larger .* 3x9x11", {"crop_size": 10}),
        (
            r"\.mean_file: .* is 3x9x11, .* are 3x8x11",
            {"mean_file": mean_file, "shape": (3, 8, 11)},
        ),
        (r"\.mean_file: .*nowhere: cannot read it", {"mean_file": str(tmp_path / "nowhere")}),
        (r"\.mean_file: .*text: not a mean file", {"mean_file": str(tmp_path / "text")}),
    ):
        with pytest.raises(UserError, match=r'layer "d" \(Data\), transform_param' + message):
            transform(**settings)
