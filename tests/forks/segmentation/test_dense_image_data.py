"""Tests of layers that read images and labels of their pixels: what they bring, and bad input."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.forks.segmentation.dense_images import nearest
from osucaffe.solvers.report import Epochs, epochs_of
from tests.layers import nets
from tests.layers.reading.test_data_files import batches, build, refuse

SIZES = [(6, 8), (9, 5), (12, 12)]
Pairs = list[tuple[np.ndarray, np.ndarray]]


def make_pairs(folder: Path, sizes: list[tuple[int, int]]) -> Pairs:
    """PNGs (3, height, width), blue first, whose blue is ten times the label of each pixel."""
    generator = np.random.default_rng(0)
    made, lines = [], []
    for i, size in enumerate(sizes):
        label = generator.integers(0, 12, size).astype(np.uint8)
        image = generator.integers(0, 256, (*size, 3)).astype(np.uint8)
        image[..., 2] = 10 * label
        for name, values in (("image", image), ("label", label), ("edges", 20 * label)):
            Image.fromarray(values).save(folder / f"{name}{i}.png")
        lines.append(f"/image{i}.png   /label{i}.png")
        made.append((image[..., ::-1].transpose(2, 0, 1).astype(float), label))
    (folder / "list.txt").write_text("\n".join(lines) + "\n\n")
    (folder / "edges.txt").write_text("\n".join(lines).replace("label", "edges"))
    (folder / "classes.txt").write_text("/image0.png 3\n/image2.png 7\n")
    return made


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    return make_pairs(tmp_path, SIZES)


@pytest.fixture
def alike(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Three of one size: images and labels."""
    images, labels = zip(*make_pairs(tmp_path, [(6, 8)] * 3), strict=True)
    return np.stack(images), np.stack(labels)


def dense(folder: Path, settings: str = "", transform: str = "", batch: int = 3) -> str:
    return f"""type: "DenseImageData" top: "data" top: "label" transform_param {{ {transform} }}
        dense_image_data_param {{ source: "{folder}/list.txt" root_folder: "{folder}"
        batch_size: {batch} {settings} }}"""


def layer(folder: Path, settings: str, transform: str = "", *, batch: int = 3, tops: int = 2,
          kind: str = "ImageSegData", source: str = "list.txt") -> str:  # fmt: skip
    names = "".join(f' top: "{name}"' for name in ("data", "label", "filled")[:tops])
    return f"""type: "{kind}" {names} transform_param {{ {transform} }} image_data_param {{
        source: "{folder}/{source}" root_folder: "{folder}" batch_size: {batch} {settings} }}"""


@pytest.mark.usefixtures("readers_are")
def test_images_and_labels_follow_the_list(tmp_path: Path, alike: tuple) -> None:
    net = build(dense(tmp_path, transform="mean_value: 3 scale: 0.5", batch=2))
    assert net.blobs["data"].shape == (2, 3, 6, 8)
    assert net.blobs["label"].shape == (2, 1, 6, 8)
    assert epochs_of(net) == Epochs(net.layers[0].title, count=3, per_iteration=2)
    data, label = batches(net, 3, "data", "label")
    order = np.arange(6) % 3
    np.testing.assert_allclose(data, (alike[0][order] - 3) * 0.5)
    np.testing.assert_array_equal(label[:, 0], alike[1][order])


@pytest.mark.parametrize("where", ["dense", "transform"])
def test_both_are_cropped_and_mirrored_alike(tmp_path: Path, alike: tuple, where: str) -> None:
    if where == "dense":
        text, size = dense(tmp_path, "crop_height: 3 crop_width: 5 mirror: true"), (3, 5)
    else:
        text, size = dense(tmp_path, "shuffle: true", "crop_size: 4 mirror: true"), (4, 4)
    data, label = batches(build(text), 8, "data", "label")
    assert data.shape == (24, 3, *size)
    np.testing.assert_array_equal(data[:, 0], 10 * label[:, 0])
    crops = {each.tobytes() for each in label}
    assert len(crops) > 12
    data, label = batches(build(text.replace("mirror: true", ""), phase="TEST"), 2, "data", "label")
    top, left = (6 - size[0]) // 2, (8 - size[1]) // 2
    wanted = alike[1][:, top : top + size[0], left : left + size[1]]
    if where == "dense":
        np.testing.assert_array_equal(label[:3, 0], wanted)


def test_labels_are_resized_to_the_nearest_and_may_be_smaller(tmp_path: Path, alike: tuple) -> None:
    net = build(dense(tmp_path, "new_height: 12 new_width: 16 label_divide_factor: 4"))
    data, label = batches(net, 1, "data", "label")
    assert data.shape == (3, 3, 12, 16)
    np.testing.assert_array_equal(label[:, 0], alike[1][:, ::2, ::2])


def test_nearest() -> None:
    labels = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(nearest(labels, 6, 8), np.kron(labels, np.ones((2, 2))))
    np.testing.assert_array_equal(nearest(labels, 2, 2), [[0, 2], [4, 6]])


def test_bad_dense_images_are_named(tmp_path: Path, alike: tuple) -> None:
    refuse(dense(tmp_path, "new_height: 3"), "give both new_height and new_width")
    refuse(dense(tmp_path, "crop_height: 9 crop_width: 2"), "a crop of 9x2 does not fit")
    refuse(dense(tmp_path, "crop_height: 2 crop_width: 2 label_divide_factor: 2"), "with a crop")
    Image.fromarray(np.zeros((5, 8), np.uint8)).save(tmp_path / "label0.png")
    refuse(dense(tmp_path), "label0.png is 5x8, but its image")
    (tmp_path / "list.txt").write_text("/image0.png\n")
    refuse(dense(tmp_path), 'line 1: "/image0.png" is not the name of an image')
    refuse(dense(tmp_path).replace("list.txt", "none.txt"), "cannot read the list of images")


def test_a_label_that_the_loss_does_not_know_is_named(tmp_path: Path, alike: tuple) -> None:
    loss = """ } layer { name: "conv" type: "Convolution" bottom: "data" top: "score"
        convolution_param { num_output: 5 kernel_size: 1 } } layer { name: "loss"
        type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" """
    net = build(dense(tmp_path) + loss)
    with pytest.raises(Exception, match=r"label0.png\[0, \d\] has label \d+, but"):
        net.forward()


def test_small_images_are_padded(tmp_path: Path, pairs: Pairs) -> None:
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


def test_sizes_crops_and_mirrors_are_drawn(tmp_path: Path, pairs: Pairs) -> None:
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


def test_scaled_images_are_opencvs(tmp_path: Path, pairs: Pairs) -> None:
    text = layer(tmp_path, "label_type: PIXEL", "crop_size: 18 scale_factors: 1.5")
    data, label = batches(build(text, phase="TEST"), 1, "data", "label")
    image, labels = pairs[2]
    wanted = cv2.resize(image.transpose(1, 2, 0).astype(np.uint8), (18, 18))
    np.testing.assert_allclose(data[2].transpose(1, 2, 0), wanted, atol=1)
    nearest = cv2.resize(labels, (18, 18), interpolation=cv2.INTER_NEAREST)
    np.testing.assert_array_equal(label[2, 0], nearest)


def test_one_label_for_an_image_or_none(tmp_path: Path, pairs: Pairs) -> None:
    size = "new_height: 4 new_width: 6"
    text = layer(tmp_path, size, source="classes.txt", batch=2)
    data, label = batches(build(text), 1, "data", "label")
    assert data.shape == (2, 3, 4, 6)
    assert [set(np.unique(each)) for each in label] == [{3}, {7}]
    text = layer(tmp_path, f"{size} label_type: NONE", batch=3)
    assert set(np.unique(batches(build(text), 1, "label")[0])) == {255}


@pytest.mark.parametrize(("settings", "least"), [("", 128), ("normalize: true", 128)])
def test_maps_are_1_where_they_are_bright(
    tmp_path: Path, pairs: Pairs, settings: str, least: int
) -> None:
    text = layer(tmp_path, settings, "crop_size: 4 mirror: true", kind="ImageLabelmapData",
                 source="edges.txt")  # fmt: skip
    data, label = batches(build(text, phase="TEST"), 20, "data", "label")
    np.testing.assert_array_equal(label[:, 0], 2 * data[:, 0] >= least)
    assert len({each.tobytes() for each in label}) > 40
    raw = text.replace("batch_size", "normalize: false batch_size").replace("normalize: true", "")
    data, label = batches(build(raw), 5, "data", "label")
    np.testing.assert_array_equal(label[:, 0], 2 * data[:, 0])


def test_maps_of_any_size_come_one_by_one(tmp_path: Path, pairs: Pairs) -> None:
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


def test_bad_label_maps_are_named(tmp_path: Path, pairs: Pairs) -> None:
    pixels = "label_type: PIXEL"
    refuse(layer(tmp_path, pixels, "crop_size: 4 crop_height: 5 crop_width: 5"), "not both")
    refuse(layer(tmp_path, pixels, "crop_height: 5"), "both crop_height and crop_width")
    refuse(layer(tmp_path, pixels, "scale_factors: 2"), "need a crop")
    refuse(layer(tmp_path, pixels, "crop_size: 4 scale_factors: 0"), "must be above 0")
    refuse(layer(tmp_path, pixels, 'mean_file: "m"'), "mean_file: cannot be given here")
    refuse(layer(tmp_path, "", "crop_size: 4"), 'label0.png" is not the name of an image, a blank')
    refuse(layer(tmp_path, "", kind="ImageLabelmapData", transform="crop_size: 7"), "does not fit")
    net = build(layer(tmp_path, pixels))
    with pytest.raises(Exception, match=r"image1.png is 3x9x5, but the first one is"):
        net.forward()


def seg_data(folder: Path, settings: str = "", transform: str = "") -> str:
    return f"""type: "SegData" top: "data" top: "label" transform_param {{ {transform} }}
        seg_data_param {{ source: "{folder}/list.txt" root_dir: "{folder}/" {settings} }}"""


def taken(net, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The next batches, of any shape."""
    return [tuple(each[0] for each in batches(net, 1, "data", "label")) for _ in range(count)]


def test_seg_data_brings_sides_that_are_multiples(tmp_path: Path, alike: tuple) -> None:
    for image, label in taken(build(seg_data(tmp_path, "", "stride: 4 mean_value: 2")), 6):
        assert image.shape == (3, 4, 8)
        np.testing.assert_array_equal(image[0] + 2, 10 * label[0])
    images = taken(build(seg_data(tmp_path)), 4)
    np.testing.assert_array_equal([image for image, _ in images[:3]], alike[0])
    np.testing.assert_array_equal(images[3][0], images[0][0])


@pytest.mark.parametrize(
    ("transform", "most"),
    [("upper_size: 5", (5, 5)), ("upper_height: 4 upper_width: 3", (4, 3)), ("upper_width: 3", ())],
)
def test_seg_data_bounds_its_sides(
    tmp_path: Path, alike: tuple, transform: str, most: tuple[int, ...]
) -> None:
    found = taken(build(seg_data(tmp_path, "shuffle: true", f"mirror: true {transform}")), 20)
    for image, label in found:
        assert image.shape[1:] == label.shape[1:] == (most or (6, 8))
        np.testing.assert_array_equal(image[0], 10 * label[0])
    assert len({label.tobytes() for _, label in found}) > 3


def test_seg_data_draws_its_sizes(tmp_path: Path, alike: tuple) -> None:
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


def test_bad_input_of_seg_data_is_named(tmp_path: Path, alike: tuple) -> None:
    refuse('type: "SegData" top: "a" top: "b"', "seg_data_param.source: is missing")
    refuse(seg_data(tmp_path, "", "stride: 0"), "transform_param.stride: must be at least 1")
    refuse(seg_data(tmp_path, "", "scale_ratios: 1"), "give the least and the greatest")
    refuse(seg_data(tmp_path, "", "stride: 9"), "image0.png is 6x8: less than the stride of 9")
    refuse(seg_data(tmp_path, "", "crop_size: 4"), "crop_size")
