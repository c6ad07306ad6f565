"""AnnotatedData against batches of C++ Caffe (its branch ssd), and what its figures do not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.data.config import DataConfig
from osucaffe.data.databases.database import write_database
from osucaffe.errors import UserError
from osucaffe.forks.augment import satisfying
from osucaffe.forks.ssd.make_annotated import annotated_record
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2, parse_text
from tests.layers.nets import build
from tests.layers.test_fixtures import FOLDER

FIGURES = sorted((FOLDER / "forks").glob("anno_*.npz"))


def unpack(path: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """The arrays of a figure; its prototxt, with the LMDB that it needs."""
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    records = []
    while (key := f"lmdb:key:{len(records)}") in arrays:
        value = arrays[key.replace("key", "value")].tobytes()
        records.append((str(arrays[key]).encode(), value))
    write_database(folder / "lmdb", iter(records))
    return arrays, str(arrays["prototxt"]).replace("LMDB", str(folder / "lmdb"), 1)


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_batches_are_caffes(path: Path, tmp_path: Path) -> None:
    arrays, text = unpack(path, tmp_path)
    net = build(text, Cpu(), phase=str(arrays["phase"]))
    number = 0
    while f"batch{number + 1}:data" in arrays:
        number += 1
        net.forward()
        # OpenCV's arithmetic of whole numbers is a step off for some interpolations.
        step = 0 if "LINEAR" in text or "NEAREST" in text else 1
        np.testing.assert_allclose(net.read("data"), arrays[f"batch{number}:data"], atol=step)
        np.testing.assert_allclose(net.read("label"), arrays[f"batch{number}:label"], atol=1e-6)
    assert number
    close(net)


def close(net: Net) -> None:
    for layer in net.layers:
        layer.close()  # type: ignore[attr-defined]


def train_net(folder: Path, settings: str, sampler: str = "") -> Net:
    _, text = unpack(FIGURES[-2], folder)
    start = text.index("transform_param")
    stop = text.index("data_param", start)
    text = text[:start] + f"transform_param {{ {settings} }} " + text[stop:]
    text = text.replace("annotated_data_param {", f"annotated_data_param {{ {sampler}")
    return build(text, Cpu(), phase="TRAIN")


RESIZE = "resize_param { height: 20 width: 20 interp_mode: LINEAR interp_mode: CUBIC }"
VARIED = (
    f"{RESIZE} mirror: true mean_value: 100 expand_param {{ prob: 0.7 max_expand_ratio: 3 }}"
    "distort_param { brightness_prob: 1 brightness_delta: 30 contrast_prob: 1 contrast_lower: 0.5 "
    "contrast_upper: 1.5 hue_prob: 1 hue_delta: 18 saturation_prob: 1 saturation_lower: 0.5 "
    "saturation_upper: 1.5 random_order_prob: 0.5 } emit_constraint { emit_type: CENTER }"
)
SAMPLER = (
    "batch_sampler { max_sample: 1 max_trials: 1 } batch_sampler { sampler { min_scale: 0.3 "
    "max_scale: 1 min_aspect_ratio: 0.5 max_aspect_ratio: 2 } sample_constraint { "
    "min_jaccard_overlap: 0.1 } max_sample: 1 max_trials: 50 } "
)


def test_what_is_drawn_depends_on_seed_epoch_and_record_only(tmp_path: Path) -> None:
    net = train_net(tmp_path, VARIED, SAMPLER)
    assert net.layers[0].records > 0
    batches = []
    for _ in range(6):
        net.forward()
        batches.append((net.read("data"), net.read("label")))
    assert len({data.tobytes() for data, _ in batches}) == 6
    for _, label in batches:
        boxes = label[0, 0, label[0, 0, :, 0] >= 0, 3:7]
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert boxes.min(initial=0) >= 0
        assert boxes.max(initial=0) <= 1
    net.layers[0].position = 4 * 3  # type: ignore[attr-defined]
    for data, label in batches[4:]:
        net.forward()
        np.testing.assert_array_equal(net.read("data"), data)
        np.testing.assert_array_equal(net.read("label"), label)
    close(net)


def test_one_of_several_sizes_is_drawn_for_ten_batches(tmp_path: Path) -> None:
    sizes = [
        f"resize_param {{ height: {height} width: {width} prob: {prob} }}"
        for height, width, prob in ((20, 20, 0.25), (30, 25, 0.75))
    ]
    alone = [
        train_net(tmp_path / str(i), f"mirror: true {each.split('prob')[0]} }}", SAMPLER)
        for i, each in enumerate(sizes)
    ]
    net = train_net(tmp_path, "mirror: true " + " ".join(sizes), SAMPLER)
    shapes = []
    for _ in range(60):
        for each in (net, *alone):
            each.forward()
        shapes.append(net.read("data").shape)
        same = alone[shapes[-1][2:] == (30, 25)]
        for blob in "data", "label":
            np.testing.assert_array_equal(net.read(blob), same.read(blob))
    assert all(len(set(shapes[i : i + 10])) == 1 for i in range(0, 60, 10))
    assert len(set(shapes)) == 2
    net.layers[0].position = 3 * 35  # type: ignore[attr-defined]
    net.forward()
    assert net.read("data").shape == shapes[35]
    for each in (net, *alone):
        close(each)


def test_boxes_follow_their_pixels(tmp_path: Path) -> None:
    """On a canvas of two colours the box stays on its colour, however the image is varied."""
    image = np.full((3, 40, 50), 50, np.uint8)
    image[:, 10:30, 15:40] = 250
    box = np.array([[15 / 50, 10 / 40, 40 / 50, 30 / 40]])
    write_database(tmp_path / "lmdb", iter([(b"0", annotated_record(image, np.array([3]), box))]))
    text = (
        'layer { type: "AnnotatedData" top: "data" top: "label" data_param { source: "'
        f'{tmp_path / "lmdb"}" batch_size: 8 backend: LMDB }} annotated_data_param {{ {SAMPLER} }} '
        "transform_param { resize_param { height: 64 width: 64 interp_mode: NEAREST } mirror: true "
        "mean_value: 0 expand_param { max_expand_ratio: 2 } } }"
    )
    net = build(text, Cpu(), phase="TRAIN")
    seen = 0
    for _ in range(3):
        net.forward()
        data, label = net.read("data"), net.read("label")
        for row in label[0, 0]:
            found = np.argwhere(data[int(row[0]), 0] == 250) / 64
            low, high = found.min(axis=0), found.max(axis=0) + 1 / 64
            np.testing.assert_allclose(row[3:7], [*low[::-1], *high[::-1]], atol=0.06)
            seen += row[1] == 3
    assert seen > 10
    close(net)


def test_bad_settings_name_the_layer(tmp_path: Path) -> None:
    for settings, words in (
        ("resize_param { height: 3 }", "resize_param: needs height and width"),
        ("resize_param { height: 3 width: 3 resize_mode: FIT_SMALL_SIZE }", "batch_size must be 1"),
        (RESIZE.replace("{", "{ prob: 0.5"), "prob: must sum up to 1, not 0.5"),
        (f"{RESIZE} crop_h: 4", "give both crop_h and crop_w"),
        (f"{RESIZE} crop_size: 40", "larger than the image"),
        ("noise_param { prob: 1 }", "not supported yet"),
    ):
        with pytest.raises(UserError, match=words):
            train_net(tmp_path, settings)


@pytest.mark.parametrize("shape", ["min_scale: 0", "min_scale: 0.9 max_scale: 0.5", "max_scale: 2",
                                   "min_aspect_ratio: 2 max_aspect_ratio: 1"])  # fmt: skip
def test_a_sampler_out_of_range_is_refused(shape: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"batch_sampler\.sampler: needs 0 < min_"):
        train_net(tmp_path, RESIZE, f"batch_sampler {{ sampler {{ {shape} }} }} ")


@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        ("min_jaccard_overlap: 0.5", [True, False, False]),
        ("min_sample_coverage: 0.9", [False, True, False]),
        ("min_object_coverage: 0.9 max_object_coverage: 1", [True, False, False]),
        ("max_object_coverage: 0", [False, False, True]),
        ("min_jaccard_overlap: 0.1 min_sample_coverage: 0.9", [True, True, False]),
        ("min_jaccard_overlap: 0.5 max_object_coverage: 0.3", [True, False, False]),
        ("min_sample_coverage: 0.5 min_object_coverage: 0.9", [True, True, False]),
        ("", [True, True, True]),
    ],
)
def test_constraints_of_samplers(constraint: str, allowed: list[bool]) -> None:
    """Of a box about the object, of one within it and of one beside it; the first one counts."""
    boxes = np.array([[0.2, 0.2, 0.7, 0.7], [0.3, 0.3, 0.5, 0.5], [0.8, 0.8, 1, 1]])
    text = f"sample_constraint {{ {constraint} }}"
    sampler = parse_text(text, caffe_pb2.BatchSampler).sample_constraint
    objects = np.array([[0.2, 0.2, 0.6, 0.6]])
    np.testing.assert_array_equal(satisfying(sampler, objects, boxes), allowed)


@pytest.mark.usefixtures("readers_are")
@pytest.mark.parametrize(("bad", "found"), [(1, [10, 30, 30]), (0, [20, 20, 30])])
def test_bad_records_stop_or_are_skipped(bad: int, found: list[int], tmp_path: Path) -> None:
    images = [np.full((1, 4, 4), value, np.uint8) for value in (10, 20, 30)]
    values = [annotated_record(each, np.ones(1), np.array([[0, 0, 1, 1]])) for each in images]
    values[bad] = values[bad][:-20]
    write_database(tmp_path / "lmdb", ((b"%d" % i, value) for i, value in enumerate(values)))
    text = (
        'layer { type: "AnnotatedData" top: "data" top: "label" data_param { batch_size: 3 '
        f'source: "{tmp_path / "lmdb"}" }} }}'
    )
    with pytest.raises(UserError, match=rf'record "{bad}" of .* cannot be read'):
        build(text, Cpu()).forward()
    net = build(text, Cpu(), data_config=DataConfig(skip_bad=True))
    net.forward()
    np.testing.assert_array_equal(net.read("data")[:, 0, 0, 0], found)
    close(net)
