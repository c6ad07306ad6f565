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


def test_draws_depend_on_seed_epoch_and_record_only():
    epochs, records = np.array([0, 0, 1, 1]), np.array([5, 6, 5, 6])
    draws = record_draws(9, epochs, records).tolist()
    assert draws[2:] == record_draws(9, epochs[2:], records[2:]).tolist()
    assert len({*draws, *record_draws(10, epochs, records).tolist()}) == 8
    # The same by Python's numbers, which know no overflow.
    assert draws[3] == mix64(mix64(mix64(1) ^ mix64(9)) ^ 6)


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
