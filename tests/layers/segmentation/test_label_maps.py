"""Tests of ImageSegData and ImageLabelmapData: what they bring, and bad input."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from osucaffe.backends.cpu.backend import Cpu

from .. import nets
from ..reading.test_data_files import batches, build, refuse

SIZES = [(6, 8), (9, 5), (12, 12)]


@pytest.fixture
def pairs(tmp_path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Three PNGs of different sizes, whose blue is ten times the label of each pixel."""
    generator = np.random.default_rng(0)
    found, lines = [], []
    for i, size in enumerate(SIZES):
        label = generator.integers(0, 12, size).astype(np.uint8)
        image = generator.integers(0, 256, (*size, 3)).astype(np.uint8)
        image[..., 2] = 10 * label
        Image.fromarray(image).save(tmp_path / f"image{i}.png")
        Image.fromarray(label).save(tmp_path / f"label{i}.png")
        Image.fromarray(20 * label).save(tmp_path / f"edges{i}.png")
        lines.append(f"/image{i}.png /label{i}.png")
        found.append((image[..., ::-1].transpose(2, 0, 1).astype(float), label))
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "edges.txt").write_text("\n".join(lines).replace("label", "edges"))
    (tmp_path / "classes.txt").write_text("/image0.png 3\n/image2.png 7\n")
    return found


def layer(folder: Path, settings: str, transform: str = "", *, batch: int = 3, tops: int = 2,
          kind: str = "ImageSegData", source: str = "list.txt") -> str:  # fmt: skip
    names = "".join(f' top: "{name}"' for name in ("data", "label", "filled")[:tops])
    return f"""type: "{kind}" {names} transform_param {{ {transform} }} image_data_param {{
        source: "{folder}/{source}" root_folder: "{folder}" batch_size: {batch} {settings} }}"""


def test_small_images_are_padded(tmp_path: Path, pairs: list) -> None:
    text = layer(tmp_path, "label_type: PIXEL", "crop_size: 9 mean_value: [7, 8, 9] scale: 0.5",
                 tops=3)  # fmt: skip
    data, label, filled = batches(build(text, phase="TEST"), 1, "data", "label", "filled")
    assert data.shape == (3, 3, 9, 9)
    mean = np.array([7, 8, 9.0])[:, None, None]
    np.testing.assert_allclose(data[0, :, :6, :8], (pairs[0][0] - mean) / 2)
    np.testing.assert_array_equal(label[0, 0, :6, :8], pairs[0][1])
    assert not data[0, :, 6:].any()
    assert not data[0, :, :, 8:].any()
    assert (label[0, 0, 6:] == 255).all()
    assert (label[1, 0, :, 5:] == 255).all()
    # The crop of a larger one is from its centre.
    np.testing.assert_array_equal(label[2, 0], pairs[2][1][1:10, 1:10])
    np.testing.assert_array_equal(filled[:, 0, 0], [[6, 8], [9, 5], [9, 9]])


def test_sizes_crops_and_mirrors_are_drawn(tmp_path: Path, pairs: list) -> None:
    transform = "crop_height: 5 crop_width: 7 mirror: true scale_factors: [0.5, 1, 1.5]"
    text = layer(tmp_path, "label_type: PIXEL shuffle: true ignore_label: 99", transform)
    data, label = batches(build(text), 30, "data", "label")
    assert data.shape == (90, 3, 5, 7)
    assert set(np.unique(label)) == {*range(12), 99}
    assert not data[:, 0][label[:, 0] == 99].any()
    exact = np.abs(data[:, 0] - 10 * label[:, 0]) < 1e-3
    exact = (exact | (label[:, 0] == 99)).all(axis=(1, 2))  # those that were not resized
    assert 0.2 < exact.mean() < 0.5
    assert len({each.tobytes() for each in label}) > 40
    again = batches(build(text), 30, "data", "label")
    np.testing.assert_array_equal(again[0], data)


def test_scaled_images_are_opencvs(tmp_path: Path, pairs: list) -> None:
    text = layer(tmp_path, "label_type: PIXEL", "crop_size: 18 scale_factors: 1.5")
    data, label = batches(build(text, phase="TEST"), 1, "data", "label")
    image, labels = pairs[2]
    wanted = cv2.resize(image.transpose(1, 2, 0).astype(np.uint8), (18, 18))
    np.testing.assert_allclose(data[2].transpose(1, 2, 0), wanted, atol=1)
    nearest = cv2.resize(labels, (18, 18), interpolation=cv2.INTER_NEAREST)
    np.testing.assert_array_equal(label[2, 0], nearest)


def test_one_label_for_an_image_or_none(tmp_path: Path, pairs: list) -> None:
    size = "new_height: 4 new_width: 6"
    text = layer(tmp_path, size, source="classes.txt", batch=2)
    data, label = batches(build(text), 1, "data", "label")
    assert data.shape == (2, 3, 4, 6)
    assert [set(np.unique(each)) for each in label] == [{3}, {7}]
    text = layer(tmp_path, f"{size} label_type: NONE", batch=3)
    assert set(np.unique(batches(build(text), 1, "label")[0])) == {255}


@pytest.mark.parametrize(("settings", "least"), [("", 128), ("normalize: true", 128)])
def test_maps_are_1_where_they_are_bright(
    tmp_path: Path, pairs: list, settings: str, least: int
) -> None:
    text = layer(tmp_path, settings, "crop_size: 4 mirror: true", kind="ImageLabelmapData",
                 source="edges.txt")  # fmt: skip
    data, label = batches(build(text, phase="TEST"), 20, "data", "label")
    np.testing.assert_array_equal(label[:, 0], 2 * data[:, 0] >= least)
    assert len({each.tobytes() for each in label}) > 40
    raw = text.replace("batch_size", "normalize: false batch_size").replace("normalize: true", "")
    data, label = batches(build(raw), 5, "data", "label")
    np.testing.assert_array_equal(label[:, 0], 2 * data[:, 0])


def test_maps_of_any_size_come_one_by_one(tmp_path: Path, pairs: list) -> None:
    text = layer(tmp_path, "", "mean_value: 5", batch=1, kind="ImageLabelmapData",
                 source="edges.txt")  # fmt: skip
    text = f'layer {{ name: "data" {text} }} layer {{ name: "pool" type: "Pooling" bottom: "data" '
    text += 'top: "pool" pooling_param { pool: AVE global_pooling: true } }'
    net = nets.build(text, Cpu(), phase="TRAIN")
    for position in range(5):
        image, labels = pairs[position % 3]
        assert nets.layer(net, "data").position == position
        net.forward()
        np.testing.assert_allclose(net.read("data")[0], image - 5)
        np.testing.assert_array_equal(net.read("label")[0, 0], 20 * labels.astype(int) > 127)
        wanted = image.mean(axis=(1, 2)) - 5
        np.testing.assert_allclose(net.read("pool").ravel(), wanted, rtol=1e-4)
    nets.layer(net, "data").position = 2
    net.forward()
    assert net.read("data").shape == (1, 3, 12, 12)


def test_bad_input_is_named(tmp_path: Path, pairs: list) -> None:
    pixels = "label_type: PIXEL"
    refuse(layer(tmp_path, pixels, "crop_size: 4 crop_height: 5 crop_width: 5"), "not both")
    refuse(layer(tmp_path, pixels, "crop_height: 5"), "both crop_height and crop_width")
    refuse(layer(tmp_path, pixels, "scale_factors: 2"), "need a crop")
    refuse(layer(tmp_path, pixels, "crop_size: 4 scale_factors: 0"), "must be above 0")
    refuse(layer(tmp_path, pixels, 'mean_file: "m"'), "mean_file: cannot be given here")
    refuse(layer(tmp_path, "", "crop_size: 4"), 'label0.png" is not the name of an image, a blank')
    refuse(layer(tmp_path, "", kind="ImageLabelmapData", transform="crop_size: 7"), "does not fit")
    net = build(layer(tmp_path, pixels))
    with pytest.raises(Exception, match=r"image1.png is 3x9x5, but the first of the list"):
        net.forward()
