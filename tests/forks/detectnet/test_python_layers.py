"""What DetectNet's Python layers make of grids, against OpenCV and small cases."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.forks.detectnet.python_layers import group_rectangles
from tests.layers.test_values import run

random = np.random.default_rng(12)
SIZE = "64, 48, 16"


def python(layer: str, text: str = "", module: str = "clustering") -> str:
    return f"""python_param {{ module: "caffe.layers.detectnet.{module}" layer: "{layer}"
        param_str: "{text}" }}"""


@pytest.mark.parametrize(("threshold", "eps"), [(1, 0.2), (3, 0.05), (2, 0.4), (0, 0.2)])
def test_groups_are_opencvs(threshold: int, eps: float) -> None:
    for _ in range(20):
        centres = random.uniform(0, 200, (5, 2)).repeat(8, axis=0)
        sides = random.uniform(30, 80, (5, 2)).repeat(8, axis=0)
        boxes = np.concatenate([centres, sides], axis=1) + random.normal(0, 3, (40, 4))
        boxes = np.concatenate([boxes, boxes[:6] + [8, 8, -16, -16]])
        found, counts = group_rectangles(boxes, threshold, eps)
        whole = boxes.astype(int).tolist()
        wanted, weights = cv2.groupRectangles(whole, threshold, eps)
        rows = {(*box, count) for box, count in zip(found.tolist(), counts, strict=True)}
        weights = np.ravel(weights).tolist()
        assert rows == {(*b, w) for b, w in zip(np.array(wanted).tolist(), weights, strict=True)}
        assert len(found) == len(counts)


def test_boxes_of_labels_and_of_what_is_found() -> None:
    coverage, boxes = np.zeros((2, 2, 3, 4)), np.zeros((2, 4, 3, 4))
    for image, kind, (y, x), box in (
        (0, 0, (0, 1), (10, 5, 50, 45)), (0, 0, (0, 2), (10, 5, 50, 45)),
        (0, 0, (1, 1), (10, 5, 50, 45)), (0, 1, (2, 3), (40, 30, 60, 44)),
        (1, 0, (1, 0), (2, 4, 30, 40)),
    ):  # fmt: skip
        coverage[image, kind, y, x] = 0.8
        boxes[image, :, y, x] = np.array(box) - np.tile([16 * x, 16 * y], 2)
    first, second = run("Python", [coverage, boxes], python("ClusterGroundtruth", f"{SIZE}, 2"),
                        tops=2)  # fmt: skip
    assert first.shape == (2, 50, 5)
    np.testing.assert_array_equal(first[0, :2], [[10, 5, 50, 45, 0], [0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(first[1, 0], [2, 4, 30, 40, 0])
    np.testing.assert_array_equal(second[0, 0], [40, 30, 60, 44, 0])
    assert not second[1].any()
    text = python("ClusterDetections", f"{SIZE}, 0.6, 2, 0.02, 22, 2")
    first, second = run("Python", [coverage, boxes], text, tops=2)
    np.testing.assert_allclose(first[0, 0], [10, 5, 50, 45, np.log(3)], rtol=1e-3)
    assert not first[1].any()  # a single box is none
    assert not second.any()
    high = python("ClusterDetections", f"{SIZE}, 0.6, 2, 0.02, 41, 2")
    assert not run("Python", [coverage, boxes], high, tops=2)[0].any()


def test_scores() -> None:
    true, found = np.zeros((1, 50, 5)), np.zeros((1, 50, 5))
    true[0, :3, :4] = [[0, 0, 10, 10], [20, 20, 40, 40], [50, 0, 60, 9]]
    found[0, :4] = [[0, 0, 10, 9, 2], [0, 0, 10, 10, 1], [21, 20, 40, 40, 3], [70, 70, 80, 80, 1]]
    scored = run("Python", [true, found], python("ScoreDetections", module="mean_ap"))
    wanted = [[0, 0, 10, 9, 1], [21, 20, 40, 40, 1], [0, 0, 10, 10, 2], [70, 70, 80, 80, 2],
              [50, 0, 60, 9, 3]]  # fmt: skip
    np.testing.assert_array_equal(scored[0, :5], wanted)
    assert not scored[0, 5:].any()
    told = run("Python", [scored], python("mAP", SIZE, "mean_ap"), tops=3)
    np.testing.assert_allclose(np.ravel(told), [50 * 2 / 3, 50, 200 / 3], rtol=1e-6)
    nothing = run("Python", [np.zeros((1, 50, 5))], python("mAP", SIZE, "mean_ap"), tops=3)
    assert not np.ravel(nothing).any()


def test_bad_settings_are_named() -> None:
    grids = [np.zeros((1, 1, 3, 4)), np.zeros((1, 4, 3, 4))]
    with pytest.raises(UserError, match=r'"op" \(Python\), python_param.param_str: .64, 48. must'):
        run("Python", grids, python("ClusterGroundtruth", "64, 48"))
    with pytest.raises(UserError, match="tells 2 classes, for which there are 1 tops"):
        run("Python", grids, python("ClusterGroundtruth", f"{SIZE}, 2"))
