"""The losses of MS-CNN and Cascade R-CNN's proposal networks, against loops over their cells."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.layers.nets import gradient, one_layer

from .test_field_boxes import DEVIATION, MEAN, NORMALIZED, decoded, overlap

random = np.random.default_rng(31)
FIELDS = [(30, 20), (44, 36)]


def ground_truth(count: int, rows: int = 4, columns: int = 5, classes: int = 3) -> np.ndarray:
    """Maps with an object at every fourth cell; some others overlap one by much."""
    maps = np.zeros((count, 6, rows, columns))
    objects = random.random((count, rows, columns)) < 0.25
    maps[:, 0] = objects * random.integers(1, classes, size=objects.shape)
    maps[:, 1:3] = random.random((count, 2, rows, columns)) * 40
    maps[:, 3:5] = random.random((count, 2, rows, columns)) * 50
    maps[:, 5] = np.where(objects, 0.5 + 0.5 * random.random(objects.shape),
                          random.random(objects.shape) * 0.6)  # fmt: skip
    return maps


def expected(conf, box, maps, weights, *, xyr, whr, smooth, part, fields):
    """The two numbers of the top, and the gradients of the first, with given weights of cells."""
    total, boxes = 0.0, 0.0
    dconf, dbox = np.zeros_like(conf), np.zeros_like(box)
    counted = max((weights > 0).sum(), 1)
    objects = max(((weights > 0) & (maps[:, 0] > 0)).sum() * 4, 1)
    for i, y, x in zip(*np.nonzero(weights), strict=True):
        label, (width, height) = int(maps[i, 0, y, x]), fields[i % len(fields)]
        p = np.exp(conf[i, :, y, x]) / np.exp(conf[i, :, y, x]).sum()
        weight = weights[i, y, x] / counted
        total -= weight * math.log(p[label])
        dconf[i, :, y, x] = weight * (p - np.eye(len(p))[label])
        if not label:
            continue
        cx, cy, w, h = maps[i, 1:5, y, x]
        code = [(cx - (x + 0.5) * 8) / width, (cy - (y + 0.5) * 8) / height,
                math.log(max(w, 2) / width), math.log(max(h, 2) / height)]  # fmt: skip
        for k in range(4):
            pair = slice(0, 2) if k < 2 else slice(2, 4)
            mean, spread = sum(MEAN[pair]) / 2, math.sqrt(math.prod(DEVIATION[pair]))
            limit = (1 / xyr if k < 2 else math.log(whr)) if xyr else 1e30
            low, high = (-limit - mean) / spread, (limit - mean) / spread
            gap = min(max(box[i, k, y, x], low), high) - (code[k] - MEAN[k]) / DEVIATION[k]
            far = smooth and abs(gap) >= 1
            boxes += part * (abs(gap) - 0.5 if far else gap * gap / 2) / objects
            dbox[i, k, y, x] = part * (math.copysign(1, gap) if far else gap) / objects
    return (total + boxes, boxes), dconf, dbox


def run(type_: str, given: dict[str, np.ndarray], text: str):
    """The net after forward and backward, the first number's gradient being 3, the other's 5."""
    seeds = {"y": np.array([[[[3.0, 5.0]]]])}
    text = f'type: "{type_}" top: "y" loss_weight: 1 {text}'
    net = one_layer(text, given, phase="TRAIN", seeds=seeds)
    return net, net.read("y").ravel()


def weights_of(maps, chosen, *, multiple=None, iou=False):
    """Of cells: 1, or by their overlaps; objects and others in proportion to bg_multiple."""
    weights = np.where(maps[:, 0] > 0, maps[:, 5] if iou else 1.0, 1.0) * chosen
    if multiple is not None:
        for part, share in ((maps[:, 0] > 0, 1), (maps[:, 0] == 0, multiple)):
            weights[part] *= share / (1 + multiple) * chosen.sum() / weights[part].sum()
    return weights


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_loss_of_maps_with_one_field(smooth: bool, weighted: bool) -> None:
    x, maps = random.standard_normal((2, 7, 4, 5)), ground_truth(2)
    x[:, 3:] *= 3  # some beyond the bounds
    flag = str(weighted).lower()
    text = (
        f"{NORMALIZED} detection_loss_param {{ cls_num: 3 lambda: 0.7 field_w: 30 field_h: 20 "
        f"downsample_rate: 8 bb_smooth: {str(smooth).lower()} field_whr: 2 field_xyr: 3 "
        "bg_threshold: 0.4 bg_multiple: 2 "
        f'sample_mode: "all" iou_weighted: {flag} pos_neg_weighted: {flag} }}'
    )
    net, top = run("DetectionLoss", {"x": x, "t": maps}, text)
    chosen = (maps[:, 0] > 0) | (maps[:, 5] < 0.4)
    weights = weights_of(maps, chosen, multiple=2 if weighted else None, iou=weighted)
    wanted, dconf, dbox = expected(
        x[:, :3], x[:, 3:], maps, weights, xyr=3, whr=2, smooth=smooth, part=0.7,
        fields=FIELDS[:1],
    )  # fmt: skip
    np.testing.assert_allclose(top, wanted, rtol=1e-5)
    dx = np.concatenate([dconf, dbox], axis=1)
    np.testing.assert_allclose(gradient(net, "x"), 3 * dx, atol=1e-5)


def test_the_highest_scores_count() -> None:
    """Of each class as many cells without an object as bg_multiple says, and four at least."""
    x, maps = random.standard_normal((2, 7, 4, 5)), ground_truth(2)
    text = (
        "detection_loss_param { cls_num: 3 field_w: 30 field_h: 20 downsample_rate: 8 "
        'bg_threshold: 0.5 bg_multiple: 1 sample_mode: "%s" }'
    )
    net, _ = run("DetectionLoss", {"x": x, "t": maps}, text % "bootstrap")
    chosen = maps[:, 0] > 0
    for i in range(2):
        free = np.flatnonzero((maps[i, 0] == 0) & (maps[i, 5] < 0.5))
        for k in (1, 2):
            count = max(4, (maps[i, 0] == k).sum())
            scores = x[i, k].ravel()
            chosen[i].flat[free[np.argsort(-scores[free])[:count]]] = True
    np.testing.assert_array_equal(np.abs(gradient(net, "x")[:, :3]).sum(axis=1) > 0, chosen)
    for mode in ("random", "mixture"):
        net, _ = run("DetectionLoss", {"x": x, "t": maps}, text % mode)
        some = np.abs(gradient(net, "x")[:, :3]).sum(axis=1) > 0
        assert (some[maps[:, 0] > 0]).all()
        assert not some[(maps[:, 0] == 0) & (maps[:, 5] >= 0.5)].any()
        assert some.sum() < ((maps[:, 0] > 0) | (maps[:, 5] < 0.5)).sum()


@pytest.mark.parametrize("smooth", ["Smooth_L1", "Euclidean_L2"])
@pytest.mark.parametrize("bounded", ["field_whr: 2 field_xyr: 3", "field_whr: 2"])
def test_loss_of_maps_with_several_fields(smooth: str, bounded: str) -> None:
    conf, box, maps = random.standard_normal((4, 2, 4, 5)), random.standard_normal((4, 4, 4, 5)), (
        ground_truth(4, classes=2)
    )  # fmt: skip
    text = (
        f"{NORMALIZED} detection_group_loss_param {{ cls_num: 2 lambda: 0.7 field_w: [30, 44] "
        f'field_h: [20, 36] stride: 8 bbox_loss_type: "{smooth}" {bounded} bg_threshold: 0.4 '
        "bg_multiple: 90 objectness: true pos_neg_weighted: true }"
    )
    net, top = run("DetectionGroupLoss", {"c": conf, "b": 3 * box, "t": maps}, text)
    chosen = (maps[:, 0] > 0) | (maps[:, 5] < 0.4)
    wanted, dconf, dbox = expected(
        conf, 3 * box, maps, weights_of(maps, chosen, multiple=90),
        xyr=3 if "xyr" in bounded else None, whr=2, smooth=smooth == "Smooth_L1", part=0.7,
        fields=FIELDS,
    )  # fmt: skip
    np.testing.assert_allclose(top, wanted, rtol=1e-5)
    np.testing.assert_allclose(gradient(net, "c"), 3 * dconf, atol=1e-5)
    np.testing.assert_allclose(gradient(net, "b"), 3 * dbox, atol=1e-5)


@pytest.mark.parametrize("mode", ["random", "bootstrap", "mixture"])
@pytest.mark.parametrize("batch", [-1, 6])
def test_a_sample_of_cells(mode: str, batch: int) -> None:
    conf, maps = random.standard_normal((4, 3, 4, 5)), ground_truth(4)
    maps[:, 5] *= 0.5
    text = (
        "detection_group_loss_param { cls_num: 3 field_w: [30, 44] field_h: [20, 36] stride: 8 "
        f'bg_threshold: 0.4 bg_multiple: 1 batch_size: {batch} neg_mining_type: "{mode}" }}'
    )
    given = {"c": conf, "b": random.standard_normal((4, 4, 4, 5)), "t": maps}
    net, _ = run("DetectionGroupLoss", given, text)
    chosen = np.abs(gradient(net, "c")).sum(axis=1).reshape(2, -1) > 0
    labels = maps[:, 0].reshape(2, -1)
    p = np.exp(conf) / np.exp(conf).sum(axis=1, keepdims=True)
    for own, label, background in zip(chosen, labels, p[:, 0].reshape(2, -1), strict=True):
        objects = int((label > 0).sum())
        positive = objects if batch < 0 else min(3, objects)
        negative = max(5, objects) if batch < 0 else 6 - positive
        assert (own & (label > 0)).sum() == positive
        assert (own & (label == 0)).sum() == negative
        free = np.flatnonzero(label == 0)
        hard = {"random": 0, "bootstrap": negative, "mixture": (negative + 1) // 2}[mode]
        assert own[free[np.argsort(background[free])[:hard]]].all()


def quality(scores, codes, maps, fields, top_k: int):
    """The shares of right labels, of all and of objects, and the mean overlap of boxes."""
    right, objects, shares = [], [], []
    for i in range(len(maps)):
        width, height = fields[i % len(fields)]
        for y, x in np.ndindex(maps.shape[2:]):
            label = int(maps[i, 0, y, x])
            if label or maps[i, 5, y, x] < 0.4:
                right.append(label in np.argsort(-scores[i, :, y, x])[:top_k])
            if label:
                objects.append(right[-1])
                box = decoded(codes[i, :, y, x], x, y, width, height, 8, 3, 2)
                cx, cy, w, h = maps[i, 1:5, y, x]
                shares.append(overlap(box, (cx - w / 2, cy - h / 2, w, h), "IOU"))
    return np.mean(right), np.mean(objects), np.mean(shares)


@pytest.mark.parametrize("top_k", [1, 2])
def test_accuracy_of_maps_with_one_field(top_k: int) -> None:
    x, maps = random.standard_normal((2, 7, 4, 5)), ground_truth(2)
    text = (
        f'type: "DetectionAccuracy" top: "y" top: "z" {NORMALIZED} detection_accuracy_param {{ '
        f"cls_num: 3 field_w: 30 field_h: 20 downsample_rate: 8 bg_threshold: 0.4 top_k: {top_k} "
        "field_xyr: 3 }"
    )
    net = one_layer(text, {"x": x, "t": maps})
    found = [*net.read("y").ravel(), net.read("z").item()]
    wanted = quality(x[:, :3], x[:, 3:], maps, FIELDS[:1], top_k)
    assert min(wanted) > 0
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    net.write("t", np.where(np.arange(6).reshape(1, 6, 1, 1) == 5, 1.0, 0 * maps))
    net.forward()
    assert [*net.read("y").ravel(), net.read("z").item()] == [-1, -1, -1]


def test_accuracy_of_maps_with_several_fields() -> None:
    conf, box = random.standard_normal((4, 3, 4, 5)), random.standard_normal((4, 4, 4, 5))
    maps = ground_truth(4)
    text = (
        f'type: "DetectionGroupAccuracy" top: "y" top: "z" {NORMALIZED} '
        "detection_group_accuracy_param { cls_num: 3 field_w: [30, 44] field_h: [20, 36] stride: 8 "
        "bg_threshold: 0.4 field_xyr: 3 }"
    )
    net = one_layer(text, {"c": conf, "b": box, "t": maps})
    found = [*net.read("y").ravel(), net.read("z").item()]
    np.testing.assert_allclose(found, quality(conf, box, maps, FIELDS, 1), atol=1e-5)
