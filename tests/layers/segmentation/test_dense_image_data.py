"""Tests of DenseImageData: what it brings, images and labels alike, and bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osucaffe.data.streams.dense_images import nearest
from osucaffe.solvers.report import Epochs, epochs_of

from ..reading.test_data_files import batches, build, refuse


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Three PNGs (N, 3, 6, 8), blue first, whose blue is ten times the label of each pixel."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 12, (3, 6, 8)).astype(np.uint8)
    images = generator.integers(0, 256, (3, 6, 8, 3)).astype(np.uint8)
    images[..., 2] = 10 * labels
    lines = []
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(tmp_path / f"image{i}.png")
        Image.fromarray(label).save(tmp_path / f"label{i}.png")
        lines.append(f"image{i}.png   label{i}.png")
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n\n")
    return images[..., ::-1].transpose(0, 3, 1, 2).astype(float), labels


def layer(folder: Path, settings: str = "", transform: str = "", batch: int = 3) -> str:
    return f"""type: "DenseImageData" top: "data" top: "label" transform_param {{ {transform} }}
        dense_image_data_param {{ source: "{folder}/list.txt" root_folder: "{folder}/"
        batch_size: {batch} {settings} }}"""


@pytest.mark.usefixtures("readers_are")
def test_images_and_labels_follow_the_list(tmp_path: Path, pairs: tuple) -> None:
    net = build(layer(tmp_path, transform="mean_value: 3 scale: 0.5", batch=2))
    assert net.blobs["data"].shape == (2, 3, 6, 8)
    assert net.blobs["label"].shape == (2, 1, 6, 8)
    assert epochs_of(net) == Epochs(net.layers[0].title, count=3, per_iteration=2)
    data, label = batches(net, 3, "data", "label")
    order = np.arange(6) % 3
    np.testing.assert_allclose(data, (pairs[0][order] - 3) * 0.5)
    np.testing.assert_array_equal(label[:, 0], pairs[1][order])


@pytest.mark.parametrize("where", ["dense", "transform"])
def test_both_are_cropped_and_mirrored_alike(tmp_path: Path, pairs: tuple, where: str) -> None:
    if where == "dense":
        text, size = layer(tmp_path, "crop_height: 3 crop_width: 5 mirror: true"), (3, 5)
    else:
        text, size = layer(tmp_path, "shuffle: true", "crop_size: 4 mirror: true"), (4, 4)
    data, label = batches(build(text), 8, "data", "label")
    assert data.shape == (24, 3, *size)
    np.testing.assert_array_equal(data[:, 0], 10 * label[:, 0])
    crops = {each.tobytes() for each in label}
    assert len(crops) > 12
    data, label = batches(build(text.replace("mirror: true", ""), phase="TEST"), 2, "data", "label")
    top, left = (6 - size[0]) // 2, (8 - size[1]) // 2
    wanted = pairs[1][:, top : top + size[0], left : left + size[1]]
    if where == "dense":
        np.testing.assert_array_equal(label[:3, 0], wanted)


def test_labels_are_resized_to_the_nearest_and_may_be_smaller(tmp_path: Path, pairs: tuple) -> None:
    net = build(layer(tmp_path, "new_height: 12 new_width: 16 label_divide_factor: 4"))
    data, label = batches(net, 1, "data", "label")
    assert data.shape == (3, 3, 12, 16)
    np.testing.assert_array_equal(label[:, 0], pairs[1][:, ::2, ::2])


def test_nearest() -> None:
    labels = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(nearest(labels, 6, 8), np.kron(labels, np.ones((2, 2))))
    np.testing.assert_array_equal(nearest(labels, 2, 2), [[0, 2], [4, 6]])


def test_bad_input_is_named(tmp_path: Path, pairs: tuple) -> None:
    refuse(layer(tmp_path, "new_height: 3"), "give both new_height and new_width")
    refuse(layer(tmp_path, "crop_height: 9 crop_width: 2"), "a crop of 9x2 does not fit")
    refuse(layer(tmp_path, "crop_height: 2 crop_width: 2 label_divide_factor: 2"), "with a crop")
    Image.fromarray(np.zeros((5, 8), np.uint8)).save(tmp_path / "label0.png")
    refuse(layer(tmp_path), "label0.png is 5x8, but its image")
    (tmp_path / "list.txt").write_text("image0.png\n")
    refuse(layer(tmp_path), 'line 1: "image0.png" is not the name of an image')
    refuse(layer(tmp_path).replace("list.txt", "none.txt"), "cannot read the list of images")


def test_a_label_that_the_loss_does_not_know_is_named(tmp_path: Path, pairs: tuple) -> None:
    loss = """ } layer { name: "conv" type: "Convolution" bottom: "data" top: "score"
        convolution_param { num_output: 5 kernel_size: 1 } } layer { name: "loss"
        type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" """
    net = build(layer(tmp_path) + loss)
    with pytest.raises(Exception, match=r"label0.png\[0, \d\] has label \d+, but"):
        net.forward()
