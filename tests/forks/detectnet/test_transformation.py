"""What DetectNetTransformation makes of images and lists of objects, against OpenCV and a plain
loop over the grid, and that the same seed draws the same."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
from google.protobuf import text_format

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError
from osucaffe.forks.detectnet.variation import Grid, Variation, draw, turned, vary_boxes, vary_image
from osucaffe.proto import caffe_pb2
from tests.layers.nets import build, inputs
from tests.layers.test_values import run

random = np.random.default_rng(4)
NONE = " ".join(
    f"{name}_prob: 0"
    for name in ("crop", "scale", "flip", "rotation", "hue_rotation", "desaturation")
)
SMALL = "stride: 4 image_size_x: 32 image_size_y: 24 min_cvg_len: 6 max_cvg_len: 6"


def lists(*objects: tuple[float, ...], rows: int = 4) -> np.ndarray:
    """DIGITS's list of one image: objects are x, y, width, height, class."""
    found = np.zeros((1, 1, rows, 16), np.float32)
    found[0, 0, 0, :2] = len(objects), 16
    for row, (*box, kind) in enumerate(objects, 1):
        found[0, 0, row, :4], found[0, 0, row, 5] = box, kind
    return found


def transform(image, objects, groundtruth, augmentation="", rest="", phase="TRAIN"):
    text = f"detectnet_groundtruth_param {{ {groundtruth} }} "
    text += f"detectnet_augmentation_param {{ {augmentation} }} {rest}"
    return run("DetectNetTransformation", [image, objects], text, tops=2, phase=phase)


def expected(boxes, param, kinds):
    """The grid, place by place."""
    rows, columns = param.image_size_y // param.stride, param.image_size_x // param.stride
    grid = np.zeros((8 + max(kinds.values()) + 1, rows, columns))
    for x, y, w, h, kind in boxes:
        if param.crop_bboxes:
            right, bottom = min(x + w, param.image_size_x), min(y + h, param.image_size_y)
            x, y = max(x, 0), max(y, 0)
            w, h = right - x, bottom - y
        if kind not in kinds or w <= 0 or h <= 0:
            continue
        small = [w * param.scale_cvg, h * param.scale_cvg]
        if param.gridbox_type == param.GRIDBOX_MIN:
            small = [
                min(w, max(param.min_cvg_len, small[0])),
                min(h, max(param.min_cvg_len, small[1])),
            ]
        else:
            small = [min(param.max_cvg_len, each) for each in small]
        left, top = x + w / 2 - small[0] / 2, y + h / 2 - small[1] / 2
        s = param.stride
        for i in range(rows):
            for j in range(columns):
                wide = min(left + small[0], (j + 1) * s) - max(left, j * s)
                tall = min(top + small[1], (i + 1) * s) - max(top, i * s)
                if wide <= 0 or tall <= 0 or wide * tall / s**2 <= 1.2e-7:
                    continue
                grid[8:, i, j] = 0
                grid[8 + kinds[kind], i, j] = 1
                norm = s * s / (small[0] * small[1])
                grid[0, i, j] = 1
                grid[1:5, i, j] = x - j * s, y - i * s, x + w - j * s, y + h - i * s
                grid[5:8, i, j] = 1 / w, 1 / h, norm if param.obj_norm else max(1, norm)
    return grid


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "gridbox_type: GRIDBOX_MIN obj_norm: true scale_cvg: 0.4",
        "crop_bboxes: false scale_cvg: 0.9 obj_norm: true",
        "object_class { src: 2 dst: 1 } object_class { src: 1 dst: 0 }",
    ],
)
def test_the_grid_tells_what_lies_where(settings: str) -> None:
    text = f"{SMALL} {settings}"
    param = text_format.Parse(text, caffe_pb2.DetectNetGroundTruthParameter())
    kinds = {each.src: each.dst for each in param.object_class} or {1: 0}
    corner, sides = random.uniform(-6, 30, (40, 2)), random.uniform(1, 20, (40, 2))
    boxes, classes = np.concatenate([corner, sides], axis=1), random.integers(0, 4, 40)
    grid = Grid(param)
    found = np.full(grid.shape, 9.0)
    grid.fill(boxes, classes, found)
    wanted = expected(
        [(*box, kind) for box, kind in zip(boxes, classes, strict=True)], param, kinds
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    assert found[0].any()


def test_what_is_not_drawn_leaves_images_as_they_are() -> None:
    image = random.uniform(0, 255, (1, 3, 32, 32))
    param = "stride: 4 image_size_x: 32 image_size_y: 32"
    data, grid = transform(image, lists((0, 0, 16, 16, 1)), param, NONE)
    np.testing.assert_allclose(data, image, atol=1e-4)
    assert grid.shape == (1, 9, 8, 8)
    # The middle half of the box: pixels 4 to 12, places 1 and 2.
    np.testing.assert_array_equal(np.argwhere(grid[0, 8]), [[1, 1], [1, 2], [2, 1], [2, 2]])
    np.testing.assert_allclose(grid[0, :8, 1, 2], [1, -8, -4, 8, 12, 1 / 16, 1 / 16, 1])
    data, _ = transform(image, lists(), param, NONE, "transform_param { mean_value: [1, 2, 3] }")
    np.testing.assert_allclose(data, image - np.array([1, 2, 3.0])[:, None, None], atol=1e-4)
    mirrored = NONE.replace("flip_prob: 0", "flip_prob: 1")
    data, grid = transform(image, lists((2, 0, 16, 16, 1)), param, mirrored)
    np.testing.assert_allclose(data, image[..., ::-1], atol=1e-4)
    # The box is at 13 to 29 now, and its middle half at 17 to 25, in places from 16 to 24.
    assert grid[0, 1].min() == 13 - 24
    assert grid[0, 3].max() == 29 - 16


def test_testing_resizes() -> None:
    image = random.uniform(0, 255, (1, 3, 20, 40)).astype(np.float32)
    data, grid = transform(image, lists((10, 5, 20, 10, 1)), SMALL, phase="TEST")
    wanted = cv2.resize(image[0].transpose(1, 2, 0), (32, 24), interpolation=cv2.INTER_CUBIC)
    np.testing.assert_allclose(data[0].transpose(1, 2, 0), wanted, atol=0.01)
    assert grid[0, 5].max() == pytest.approx(1 / 16)
    assert grid[0, 6].max() == pytest.approx(1 / 12)


def test_colours_are_opencvs() -> None:
    image = random.uniform(0, 255, (3, 9, 8)).astype(np.float32)
    found = np.empty_like(image)
    for hue, saturation in ((25.0, 0.4), (-170.0, 1.0), (0.0, 0.1)):
        hsv = cv2.cvtColor(image.transpose(1, 2, 0) / 255, cv2.COLOR_BGR2HSV)
        hsv[..., 0] = (hsv[..., 0] + hue) % 360
        hsv[..., 1] *= saturation
        wanted = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR) * 255
        vary_image(image, None, Variation((8, 9), hue=hue, saturation=saturation), found)
        np.testing.assert_allclose(found.transpose(1, 2, 0), wanted, atol=0.05)


def test_turning_is_opencvs() -> None:
    y, x = np.mgrid[:20, :30]
    image = np.stack([x, y, x + y]).astype(np.float32)
    matrix, size = turned((30, 20), 20.0)
    corners = cv2.boxPoints(((15, 10), (30, 20), 20))
    spans = np.ceil(corners.max(axis=0)) - np.floor(corners.min(axis=0)) + 1
    assert size == tuple(spans)
    found = np.empty((3, size[1], size[0]), np.float32)
    vary_image(image, None, Variation((30, 20), angle=20.0), found)
    wanted = cv2.warpAffine(image.transpose(1, 2, 0), matrix, size)
    inside = cv2.warpAffine(np.ones((20, 30), np.float32), matrix, size) > 0.999
    assert 400 < inside.sum() < 620
    np.testing.assert_allclose(found[:, inside], wanted.transpose(2, 0, 1)[:, inside], atol=0.04)
    # A corner of a box goes where its pixel goes.
    point = matrix @ [4 + 3, 5 + 1.0, 1]
    moved = vary_boxes(np.array([[4.0, 5, 6, 2]]), (30, 20), Variation((30, 20), angle=20.0))
    np.testing.assert_allclose(moved[0], [point[0] - 3, point[1] - 1, 6, 2])


def test_boxes_follow_their_pixels() -> None:
    image = np.zeros((3, 40, 60), np.float32)
    image[:, 10:20, 8:24] = 100
    drawn = Variation((90, 60), mirror=True, left=12, top=-5)
    out = np.empty((3, 64, 80), np.float32)
    vary_image(image, None, drawn, out)
    box = vary_boxes(np.array([[8.0, 10, 16, 10]]), (60, 40), drawn)[0]
    bright = np.argwhere(out[0] > 50)
    x, y, w, h = box
    # The fork mirrors a box to a place one pixel left of its own.
    assert np.abs(bright.min(axis=0) - [y, x + 1.5]).max() < 0.6
    assert np.abs(bright.max(axis=0) + 1 - [y + h, x + w + 1.5]).max() < 0.6
    assert not out[:, :5].any()
    assert not out[:, :, 78:].any()


def test_what_is_drawn() -> None:
    text = """crop_prob: 1 shift_x: 8 shift_y: 4 scale_prob: 0.5 scale_min: 0.8 scale_max: 1.2
        flip_prob: 0.25 rotation_prob: 0 hue_rotation_prob: 1 hue_rotation: 30 desaturation_prob: 1
        desaturation_max: 0.8"""
    param = text_format.Parse(text, caffe_pb2.DetectNetAugmentationParameter())
    generator = np.random.default_rng(1)
    drawn = [draw(param, (100, 50), (80, 50), generator) for _ in range(2000)]
    assert np.mean([each.mirror for each in drawn]) == pytest.approx(0.25, abs=0.04)
    assert np.mean([each.size == (100, 50) for each in drawn]) == pytest.approx(0.5, abs=0.05)
    assert {each.size[0] for each in drawn} <= set(range(80, 121))
    still = [each for each in drawn if each.size == (100, 50)]
    assert {each.left for each in still} == set(range(-4, 25))  # -4 + 0 .. 28
    assert {each.top for each in still} == set(range(-2, 3))
    assert max(abs(each.hue) for each in drawn) == pytest.approx(30, abs=0.5)
    assert min(each.saturation for each in drawn) == pytest.approx(0.2, abs=0.01)
    turning = caffe_pb2.DetectNetAugmentationParameter(rotation_prob=1, max_rotate_degree=90)
    turning.crop_prob = turning.scale_prob = 0
    each = draw(turning, (100, 50), (80, 50), generator)
    size = turned((100, 50), each.angle)[1]
    assert (each.left, each.top) == tuple(
        int(math.copysign(math.floor(abs(gap) + 0.5), gap))
        for gap in ((size[0] - 80) / 2, (size[1] - 50) / 2)
    )


def test_what_is_drawn_depends_on_seed_and_iteration() -> None:
    text = inputs({"x": (2, 3, 24, 32), "l": (2, 1, 4, 16)})
    text += f"""layer {{ name: "op" type: "DetectNetTransformation" bottom: "x" bottom: "l" top: "y"
        top: "g" detectnet_groundtruth_param {{ {SMALL} }} }}"""
    image = random.uniform(0, 255, (1, 3, 24, 32)).repeat(2, axis=0)
    objects = lists((3, 4, 12, 10, 1)).repeat(2, axis=0)
    runs = []
    for _ in range(2):
        net = build(text, Cpu(), phase="TRAIN")
        net.write("x", image)
        net.write("l", objects)
        passes = []
        for _ in range(2):
            net.forward()
            passes.append(net.read("y"))
        runs.append(passes)
    np.testing.assert_array_equal(runs[0], runs[1])
    first, second = runs[0]
    assert np.abs(first - second).max() > 1
    assert np.abs(first[0] - first[1]).max() > 1


@pytest.mark.parametrize(
    ("image", "objects", "settings", "message"),
    [
        ((1, 1, 8, 8), lists(), "", r"bottom\[0\]: has shape \(1, 1, 8, 8\)"),
        ((1, 3, 8, 8), lists()[..., :15], "", r"bottom\[1\]: has shape \(1, 1, 4, 15\)"),
        ((1, 3, 8, 8), lists(), "stride: 0", "groundtruth_param.stride: must be at least 1"),
        ((1, 3, 8, 8), lists(*[(1, 1, 2, 2, 1)] * 2, rows=3)[:, :, :2], "", "begins with 2 and 16"),
    ],
)  # fmt: skip
def test_bad_input_is_named(image, objects, settings, message) -> None:
    with pytest.raises(UserError, match=message):
        transform(np.zeros(image), objects, settings, NONE)
