"""MS-CNN's and Cascade R-CNN's boxes, against the forks' loops, one box at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osucaffe.forks import anchors
from tests.layers.nets import one_layer

random = np.random.default_rng(17)

NORMALIZED = "bbox_reg_param { bbox_mean: [0.1, -0.1, 0, 0.2] bbox_std: [0.5, 0.4, 0.3, 0.6] } "
MEAN, DEVIATION = (0.1, -0.1, 0, 0.2), (0.5, 0.4, 0.3, 0.6)


def decoded(code, x: int, y: int, width: float, height: float, stride: int, xyr, whr):
    """x, y, width, height of one box."""
    dx, dy, dw, dh = (c * s + m for c, s, m in zip(code, DEVIATION, MEAN, strict=True))
    dx, dy = (min(max(d, -1 / xyr), 1 / xyr) for d in (dx, dy))
    dw, dh = (min(max(d, -math.log(whr)), math.log(whr)) for d in (dw, dh))
    w, h = width * math.exp(dw), height * math.exp(dh)
    return dx * width + (x + 0.5) * stride - w / 2, dy * height + (y + 0.5) * stride - h / 2, w, h


def overlap(a, b, mode: str) -> float:
    """Of boxes x, y, width, height."""
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    high = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    common = wide * high if wide > 0 and high > 0 else 0
    first, second = a[2] * a[3], b[2] * b[3]
    return common / {
        "IOMU": min(first, second), "IOFU": first, "IOU": first + second - common
    }[mode]  # fmt: skip


def thinned(found: list[tuple[float, tuple]], before: int, after: int, least: float, mode: str):
    """The best of (score, box) that don't overlap."""
    kept: list[tuple[float, tuple]] = []
    for score, box in sorted(found, reverse=True)[:before]:
        if all(overlap(other, box, mode) <= least for _, other in kept):
            kept.append((score, box))
    return kept[:after]


@pytest.mark.parametrize("mode", ["IOU", "IOMU", "IOFU"])
def test_boxes_of_maps_with_one_field_each(mode: str) -> None:
    given = {"a": random.standard_normal((2, 7, 5, 6)), "b": random.standard_normal((2, 7, 3, 3))}
    text = (
        'type: "BoxOutput" top: "y" top: "s" ' + NORMALIZED + "box_output_param { fg_thr: 0.2 "
        f'iou_thr: 0.3 nms_type: "{mode}" field_w: [20, 40] field_h: [16, 30] downsample_rate: '
        "[8, 16] field_whr: 2 field_xyr: 3 max_nms_num: 20 max_post_nms_num: 6 min_size: 9 }"
    )
    net = one_layer(text, given)
    wanted = []
    for image in range(2):
        found = []
        for values, w, h, stride in ((given["a"], 20, 16, 8), (given["b"], 40, 30, 16)):
            _, _, rows, columns = values.shape
            for y in range(rows):
                for x in range(columns):
                    cell = values[image, :, y, x].astype(np.float32)
                    score = max(cell[1:3]) - cell[0]
                    left, up, wide, high = decoded(cell[3:], x, y, w, h, stride, 3, 2)
                    left, up = max(left, 0), max(up, 0)
                    wide = min(wide, columns * stride - left)
                    high = min(high, rows * stride - up)
                    if score >= 0.2 and wide >= 9 and high >= 9:
                        found.append((score, (left, up, wide, high)))
        for score, (x, y, w, h) in thinned(found, 20, 6, 0.3, mode):
            wanted.append([image, x, y, x + w, y + h, score])
    assert len(wanted) > 6
    np.testing.assert_allclose(net.read("s")[:, :, 0, 0], wanted, atol=1e-4)
    np.testing.assert_array_equal(net.read("y"), net.read("s")[:, :5])


def test_boxes_of_maps_with_several_fields() -> None:
    chances = random.random((4, 2, 5, 6))
    codes = random.standard_normal((4, 4, 5, 6))
    text = (
        'type: "BoxGroupOutput" top: "y" top: "s" ' + NORMALIZED + "box_group_output_param { "
        "fg_thr: 0.3 iou_thr: 0.4 field_whr: 3 field_xyr: 2 max_nms_num: 60 max_post_nms_num: 9 "
        "min_size: 10 box_group_param { field_w: [20, 30] field_h: [16, 24] stride: 8 } }"
    )
    net = one_layer(text, {"p": chances, "c": codes})
    wanted = []
    for image in range(2):
        found = []
        for k, (w, h) in enumerate([(20, 16), (30, 24)]):
            for y in range(5):
                for x in range(6):
                    score = 1 - chances[2 * image + k, 0, y, x]
                    box = decoded(codes[2 * image + k, :, y, x], x, y, w, h, 8, 2, 3)
                    low = [max(each, 0) for each in box[:2]]
                    high = [min(box[0] + box[2] - 1, 48), min(box[1] + box[3] - 1, 40)]
                    wide, tall = (b - a + 1 for a, b in zip(low, high, strict=True))
                    if score >= 0.3 and wide >= 10 and tall >= 10:
                        found.append((score, (*low, wide, tall)))
        for score, (x, y, w, h) in thinned(found, 60, 9, 0.4, "IOU"):
            wanted.append([image, x, y, x + w - 1, y + h - 1, score])
    assert len(wanted) > 6
    np.testing.assert_allclose(net.read("s")[:, :, 0, 0], wanted, atol=1e-4)
    np.testing.assert_array_equal(net.read("y"), net.read("s")[:, :5])


def test_no_box_is_one_of_the_forks() -> None:
    """And the number of rows follows what is found, in a net that is planned, too."""
    text = (
        'type: "BoxOutput" top: "y" top: "s" box_output_param { fg_thr: 0.5 field_w: 16 '
        "field_h: 16 downsample_rate: 16 min_size: 4 }"
    )
    maps = np.zeros((1, 6, 3, 4))
    net = one_layer(text, {"x": maps})
    np.testing.assert_array_equal(net.read("y")[:, :, 0, 0], [[0, 1, 1, 10, 10]])
    np.testing.assert_array_equal(net.read("s"), np.zeros((1, 6, 1, 1)))
    maps[0, 1, 0, :2] = [2, 3]
    net.write("x", maps)
    net.forward()
    np.testing.assert_allclose(
        net.read("s")[:, :, 0, 0], [[0, 16, 0, 32, 16, 3], [0, 0, 0, 16, 16, 2]], atol=1e-5
    )


def regions(count: int) -> np.ndarray:
    low = random.random((count, 2)) * 50
    rows = np.concatenate([low, low + 5 + random.random((count, 2)) * 40], axis=1)
    return np.concatenate([np.arange(count)[:, None] % 2, rows], axis=1)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_regions_of_the_next_stage(phase: str) -> None:
    codes, rois = random.standard_normal((7, 8)) * 0.5, regions(7)
    codes[3, 6] = -9 / 0.3  # a box of no width
    matches = np.zeros((7, 6))
    matches[[1, 4], 5] = [0.8, 0.7]
    given = {"c": codes, "r": rois[:, :, None, None]}
    if phase == "TRAIN":
        given["m"] = matches
    text = f'type: "DecodeBBox" top: "y" {NORMALIZED} decode_bbox_param {{ gt_iou_thr: 0.75 }}'
    net = one_layer(text, given, phase=phase)
    wanted = [
        [image, *decode(region, codes[i, 4:])]
        for i, (image, *region) in enumerate(rois)
        if phase == "TEST" or i not in (1, 3)
    ]
    np.testing.assert_allclose(net.read("y")[:, :, 0, 0], wanted, rtol=1e-5, atol=1e-4)


def decode(region, code) -> tuple[float, ...]:
    """x1, y1, x2, y2 of a code against a region."""
    x1, y1, x2, y2 = region
    dx, dy, dw, dh = (c * s + m for c, s, m in zip(code, DEVIATION, MEAN, strict=True))
    width, height = x2 - x1 + 1, y2 - y1 + 1
    w, h = width * math.exp(dw), height * math.exp(dh)
    left = dx * width + (x1 + x2) / 2 - (w - 1) / 2
    up = dy * height + (y1 + y2) / 2 - (h - 1) / 2
    return left, up, left + w - 1, up + h - 1


def pixels(box) -> tuple[float, ...]:
    """x, y, width, height of x1, y1, x2, y2."""
    return box[0], box[1], box[2] - box[0] + 1, box[3] - box[1] + 1


@pytest.mark.parametrize("aware", [True, False])
def test_accuracy_of_boxes(aware: bool) -> None:
    rois = regions(8)
    codes = random.standard_normal((8, 12 if aware else 8)) * 0.3
    matches = np.zeros((8, 6))
    matches[:6, 0] = [1, 2, 1, 2, 2, 1]
    matches[:6, 1:5] = rois[:6, 1:] + 3
    matches[:6, 5] = [0.5, 0.6, 0.99, 0.7, 0.8, 0.9]
    normalized = NORMALIZED.replace("{", "{ cls_aware: " + str(aware).lower())
    net = one_layer(
        f'type: "BboxAccuracy" top: "y" top: "z" {normalized}',
        {"c": codes, "r": rois, "m": matches[:, :, None, None]},
    )
    after, before = [], []
    for i in (0, 1, 3, 4, 5):
        label = int(matches[i, 0]) if aware else 1
        box = decode(rois[i, 1:], codes[i, 4 * label : 4 * label + 4])
        ground_truth = pixels(matches[i, 1:5])
        after.append(overlap(pixels(box), ground_truth, "IOU"))
        before.append(overlap(pixels(rois[i, 1:]), ground_truth, "IOU"))
    assert net.read("y")[0, 0, 0, 0] == pytest.approx(np.mean(after), abs=1e-5)
    assert net.read("z")[0, 0, 0, 0] == pytest.approx(np.mean(before), abs=1e-5)
    net.write("m", 0 * matches[:, :, None, None])
    net.forward()
    assert net.read("y").item() == net.read("z").item() == -1


@pytest.mark.parametrize("aware", [True, False])
def test_boxes_to_report(aware: bool) -> None:
    rois = regions(30)
    rois[:, 0] = 0
    chances, codes = random.random((30, 3)), random.standard_normal((30, 12 if aware else 8)) * 0.3
    normalized = NORMALIZED.replace("{", "{ cls_aware: " + str(aware).lower())
    net = one_layer(
        f'type: "FrcnnOutput" top: "y" {normalized} frcnn_output_param {{ conf_thr: 0.3 '
        "iou_thr: 0.25 max_det_num: 12 }",
        {"p": chances, "c": codes, "r": rois, "s": np.array([[70, 60]])},
    )
    found = []
    for label in (1, 2):
        own = []
        for i in range(30):
            place = 4 * label if aware else 4
            x1, y1, x2, y2 = decode(rois[i, 1:], codes[i, place : place + 4])
            if chances[i, label] >= 0.3:
                clipped = max(x1, 0), max(y1, 0), min(x2, 60), min(y2, 70)
                own.append((chances[i, label], pixels(clipped)))
        found += [(score, label, box) for score, box in thinned(own, 99, 99, 0.25, "IOU")]
    best = sorted(found, reverse=True)[:12]
    rows = [
        [0, x, y, x + w - 1, y + h - 1, label, score]
        for score, label, (x, y, w, h) in sorted(best, key=lambda each: (each[1], -each[0]))
    ]
    assert len(found) > 12
    np.testing.assert_allclose(net.read("y")[:, :, 0, 0], [[0, *[-1] * 6], *rows], atol=1e-4)


def test_boxes_less_than_a_pixel_apart() -> None:
    """They share nothing in the forks that count whole pixels, a little in Faster R-CNN."""
    boxes = np.array([[0.0, 0, 9, 9], [9.5, 0, 19, 9]])
    assert anchors.iou(boxes, boxes)[0, 1] > 0
    assert anchors.iou(boxes, boxes, strict=True)[0, 1] == 0
