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


def seg_data(folder: Path, settings: str = "", transform: str = "") -> str:
    return f"""type: "SegData" top: "data" top: "label" transform_param {{ {transform} }}
        seg_data_param {{ source: "{folder}/list.txt" root_dir: "{folder}/" {settings} }}"""


def taken(net, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The next batches, of any shape."""
    return [tuple(each[0] for each in batches(net, 1, "data", "label")) for _ in range(count)]


def test_seg_data_brings_sides_that_are_multiples(tmp_path: Path, pairs: tuple) -> None:
    for image, label in taken(build(seg_data(tmp_path, "", "stride: 4 mean_value: 2")), 6):
        assert image.shape == (3, 4, 8)
        np.testing.assert_array_equal(image[0] + 2, 10 * label[0])
    images = taken(build(seg_data(tmp_path)), 4)
    np.testing.assert_array_equal([image for image, _ in images[:3]], pairs[0])
    np.testing.assert_array_equal(images[3][0], images[0][0])


@pytest.mark.parametrize(
    ("transform", "most"),
    [("upper_size: 5", (5, 5)), ("upper_height: 4 upper_width: 3", (4, 3)), ("upper_width: 3", ())],
)
def test_seg_data_bounds_its_sides(
    tmp_path: Path, pairs: tuple, transform: str, most: tuple[int, ...]
) -> None:
    found = taken(build(seg_data(tmp_path, "shuffle: true", f"mirror: true {transform}")), 20)
    for image, label in found:
        assert image.shape[1:] == label.shape[1:] == (most or (6, 8))
        np.testing.assert_array_equal(image[0], 10 * label[0])
    assert len({label.tobytes() for _, label in found}) > 3


def test_seg_data_draws_its_sizes(tmp_path: Path, pairs: tuple) -> None:
    text = seg_data(tmp_path, "", "stride: 2 scale_ratios: 0.5 scale_ratios: 2")
    shapes = [label.shape[1:] for _, label in taken(build(text), 40)]
    assert len(set(shapes)) > 8
    assert {side % 2 for shape in shapes for side in shape} == {0}
    heights, widths = zip(*shapes, strict=True)
    assert (min(heights), max(heights)) >= (2, 10)
    assert max(heights) <= 12
    assert max(widths) <= 16
    again = [label.shape[1:] for _, label in taken(build(text), 40)]
    assert again == shapes


def test_seg_data_avoids_crops_of_one_label(tmp_path: Path) -> None:
    image, label = np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), np.uint8)
    label[0] = 1
    Image.fromarray(image).save(tmp_path / "image.png")
    Image.fromarray(label).save(tmp_path / "label.png")
    (tmp_path / "list.txt").write_text("image.png label.png")
    shares = [
        np.mean([(each == 1).any() for _, each in taken(build(seg_data(tmp_path, s, t)), 60)])
        for s, t in (("", "upper_size: 3"), ("balance: true", "upper_size: 3"))
    ]
    assert shares[0] < 0.4 < 0.6 < shares[1]


def test_bad_input_of_seg_data_is_named(tmp_path: Path, pairs: tuple) -> None:
    refuse('type: "SegData" top: "a" top: "b"', "seg_data_param.source: is missing")
    refuse(seg_data(tmp_path, "", "stride: 0"), "transform_param.stride: must be at least 1")
    refuse(seg_data(tmp_path, "", "scale_ratios: 1"), "give the least and the greatest")
    refuse(seg_data(tmp_path, "", "stride: 9"), "image0.png is 6x8: less than the stride of 9")
    refuse(seg_data(tmp_path, "", "crop_size: 4"), "crop_size")
