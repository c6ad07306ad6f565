"""YOLO's layers beside plain loops, as the forks' sources tell it, and small cases by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from tests.layers.nets import gradient, one_layer
from tests.layers.test_values import run

random = np.random.default_rng(6)
BIASES = [1.125, 1.25, 3.25, 2.0]


def test_reorg_has_darknets_order() -> None:
    x = np.arange(2 * 8 * 4 * 6.0).reshape(2, 8, 4, 6)
    flat, wanted = x.reshape(-1), np.zeros(x.size)
    for n, c, h, w in np.ndindex(x.shape):
        c2, offset = c % 2, c // 2
        place = w * 2 + offset % 2 + 12 * (h * 2 + offset // 2 + 8 * (c2 + 2 * n))
        wanted[w + 6 * (h + 4 * (c + 8 * n))] = flat[place]
    y = run("Reorg", [x], "reorg_param { stride: 2 }")
    np.testing.assert_array_equal(y, wanted.reshape(2, 32, 2, 3))
    back = run("Reorg", [y.reshape(2, 8, 4, 6)], "reorg_param { stride: 2 reverse: true }")
    np.testing.assert_array_equal(back.reshape(x.shape), x)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def overlap(a, b):
    sides = [
        min(a[i] + a[i + 2] / 2, b[i] + b[i + 2] / 2)
        - max(a[i] - a[i + 2] / 2, b[i] - b[i + 2] / 2)
        for i in (0, 1)
    ]
    if min(sides) < 0:
        return 0
    inner = sides[0] * sides[1]
    return inner / (a[2] * a[3] + b[2] * b[3] - inner)


def predicted(x, n, j, i):
    """A box of x (anchors, 5 + classes, H, W)."""
    height, width = x.shape[2:]
    return [(i + sigmoid(x[n, 0, j, i])) / width, (j + sigmoid(x[n, 1, j, i])) / height,
            math.exp(x[n, 2, j, i]) * BIASES[2 * n] / width,
            math.exp(x[n, 3, j, i]) * BIASES[2 * n + 1] / height]  # fmt: skip


def region_loss(x, ground_truths, param, intel):
    """Of an image; truths: class, x, y, width, height."""
    delta = np.zeros_like(x)
    anchors, _, height, width = x.shape
    for n, j, i in np.ndindex(anchors, height, width):
        p, box = sigmoid(x[n, 4, j, i]), predicted(x, n, j, i)
        best = max((overlap(box, ground_truth[1:]) for ground_truth in ground_truths), default=0)
        delta[n, 4, j, i] = param["noobject"] * p * p * (1 - p) if best <= param["thresh"] else 0
    for label, *ground_truth in ground_truths:
        i, j = int(ground_truth[0] * width), int(ground_truth[1] * height)
        best, n = 0, 0
        for a in range(anchors):
            sizes = predicted(x, a, j, i)[2:]
            if param["bias_match"]:
                sizes = [BIASES[2 * a] / width, BIASES[2 * a + 1] / height]
            if overlap([0, 0, *sizes], [0, 0, *ground_truth[2:]]) > best:
                best, n = overlap([0, 0, *sizes], [0, 0, *ground_truth[2:]]), a
        cell, out = x[n, :, j, i], delta[n, :, j, i]
        scale = param["coord"]
        if not intel and not param["rescore"]:
            scale *= 2 - ground_truth[2] * ground_truth[3]
        aims = [ground_truth[0] * width - i, ground_truth[1] * height - j,
                math.log(ground_truth[2] * width / BIASES[2 * n]),
                math.log(ground_truth[3] * height / BIASES[2 * n + 1])]  # fmt: skip
        for k in range(4):
            value = sigmoid(cell[k]) if k < 2 else cell[k]
            gap = aims[k] - value
            gap = min(max(gap, -1), 1) if intel else gap
            out[k] = -scale * gap * (value * (1 - value) if k < 2 else 1)
        p = sigmoid(cell[4])
        own = overlap(predicted(x, n, j, i), ground_truth)
        gap = 2 * (1 - p) ** 3 if intel else own - p if param["rescore"] else 1 - p
        out[4] = -param["object"] * gap * p * (1 - p)
        power = np.exp(cell[5:])
        for k, chance in enumerate(power / power.sum()):
            out[5 + k] = -param["class"] * ((k == label) - chance)
    return (delta**2).sum(), delta


def objects(count):
    """Class, x, y, width, height of some objects in cells of their own."""
    centres = random.choice(12, count, replace=False)
    return [[random.integers(3), (c % 4 + random.uniform(0.1, 0.9)) / 4,
             (c // 4 + random.uniform(0.1, 0.9)) / 3, *random.uniform(0.1, 0.9, 2)]
            for c in centres]  # fmt: skip


def as_rows_of_8(ground_truths):
    rows = [
        [item, label + 1, 0, x - w / 2, y - h / 2, x + w / 2, y + h / 2, 0]
        for item, image in enumerate(ground_truths)
        for label, x, y, w, h in image
    ]
    return np.array([*rows, [-1] * 8], float).reshape(1, 1, -1, 8)


def as_rows_of_5(ground_truths):
    table = np.zeros((len(ground_truths), 1, 9, 5))
    for item, image in enumerate(ground_truths):
        table[item, 0, : len(image)] = image
    return table


def run_loss(type_, values, settings, weight=1.5):
    """The loss, and the gradient of the first of the values."""
    text = f'type: "{type_}" top: "y" loss_weight: {weight} {settings}'
    given = dict(zip("xl", values, strict=True))
    net = one_layer(text, given, Cpu(dtype="float64"), phase="TRAIN", seeds={})
    return net.read("y"), gradient(net, "x")


@pytest.mark.parametrize("intel", [True, False], ids=["intel", "mobilenet"])
@pytest.mark.parametrize(("bias_match", "rescore"), [(1, 1), (0, 0)])
def test_region_loss(intel: bool, bias_match: int, rescore: int) -> None:
    size = 3 if intel else 4
    x = random.standard_normal((2, 2 * 8, 3, size))
    ground_truths = [[[1, 0.3, 0.4, 0.5, 0.3], [2, 0.8, 0.9, 0.2, 0.7]], objects(3)]
    scales = {"noobject": 0.75, "object": 4.0, "class": 1.5, "coord": 1.25}
    others = {"thresh": 0.3125, "bias_match": bias_match, "rescore": rescore}
    param = scales | others
    fields = [f"{name}_scale: {value}" for name, value in scales.items()]
    fields += [f"{name}: {value}" for name, value in others.items()]
    settings = f"region_loss_param {{ side: 3 num_class: 3 num: 2 {' '.join(fields)} "
    settings += " ".join(f"biases: {each}" for each in BIASES) + " }"
    labels = as_rows_of_8(ground_truths) if intel else as_rows_of_5(ground_truths)
    loss, gradient = run_loss("RegionLoss", [x, labels], settings)
    cells = x.reshape(2, 2, 8, 3, size)
    found = [region_loss(*each, param, intel) for each in zip(cells, ground_truths, strict=True)]
    assert loss == pytest.approx(sum(each for each, _ in found) / (1 if intel else 2))
    wanted = np.array([delta for _, delta in found]).reshape(x.shape)
    np.testing.assert_allclose(gradient, wanted * 1.5 / 2, rtol=1e-9, atol=1e-12)


def test_detections_are_judged() -> None:
    """Three boxes by hand: one that an object of its class has, one double, one of no object."""
    x = np.full((1, 2 * 7, 3, 3), -9.0)
    cells = x.reshape(2, 7, 3, 3)
    cells[:, :4] = 0
    for n, j, i, objectness in ((0, 1, 1, 3.0), (1, 0, 0, 2.0), (0, 2, 2, 1.0)):
        cells[n, 4:, j, i] = objectness, 9, -9
    biases = "biases: 1 biases: 1 biases: 1 biases: 1"
    labels = as_rows_of_8([[[0, 0.5, 0.5, 1 / 3, 1 / 3], [1, 0.9, 0.9, 0.1, 0.1]]])
    settings = f"side: 3 num_class: 2 num_object: 2 nms: 0.5 threshold: 0.5 {biases}"
    found = run("EvalDetection", [x, labels], f"eval_detection_param {{ {settings} }}")[0]
    np.testing.assert_array_equal(found[:2], [1, 1])
    table = found[2:].reshape(-1, 4)
    scores = [sigmoid(each) for each in (3.0, 2.0, 1.0)]
    np.testing.assert_allclose(table[:3, 1], scores, rtol=1e-6)
    np.testing.assert_array_equal(table[:3, [0, 2, 3]], [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    assert not table[3:].any()
    labels[0, 0, 0, 1] = 2
    found = run("EvalDetection", [x, labels], f"eval_detection_param {{ {settings} }}")[0]
    np.testing.assert_array_equal(found[2:].reshape(-1, 4)[:3, 2:], [[0, 1]] * 3)


ANCHORS = [10, 12, 30, 20, 40, 64, 28, 22]


def yolo_v3_loss(x, ground_truths, mask, param):
    """Of an image of 16 pixels a cell, as `region_loss`."""
    delta, (height, width) = np.zeros_like(x), x.shape[2:]
    sizes = [(w / (16 * width), h / (16 * height))
             for w, h in zip(ANCHORS[::2], ANCHORS[1::2], strict=True)]  # fmt: skip
    told = x.copy()
    for n, k, j, i in np.ndindex(x.shape):
        if k not in (2, 3):
            told[n, k, j, i] = sigmoid(x[n, k, j, i])
    for n, j, i in np.ndindex(len(x), height, width):
        cell = told[n, :, j, i]
        box = [(i + cell[0]) / width, (j + cell[1]) / height]
        box += [math.exp(cell[2 + k]) * sizes[mask[n]][k] for k in (0, 1)]
        best = max((overlap(box, ground_truth[1:]) for ground_truth in ground_truths), default=0)
        delta[n, 4, j, i] = cell[4] if best <= param["thresh"] else 0
    for label, *ground_truth in ground_truths:
        i, j = int(ground_truth[0] * width), int(ground_truth[1] * height)
        fits = [overlap([0, 0, *size], [0, 0, *ground_truth[2:]]) for size in sizes]
        best = fits.index(max(fits))
        takers = [mask.index(best)] if best in mask else []
        passed = takers[0] if takers else best
        takers += [mask.index(n) for n in range(len(sizes))
                   if n in mask and n != passed and fits[n] > param["iou_thresh"]]  # fmt: skip
        for n in takers:
            cell, out, size = told[n, :, j, i], delta[n, :, j, i], sizes[mask[n]]
            aims = [ground_truth[0] * width - i, ground_truth[1] * height - j,
                    math.log(ground_truth[2] / size[0]),
                    math.log(ground_truth[3] / size[1])]  # fmt: skip
            for k in range(4):
                out[k] = (
                    -param["coord_scale"]
                    * (2 - ground_truth[2] * ground_truth[3])
                    * (aims[k] - cell[k])
                )
            out[4] = -(1 - cell[4]) * (param["object_scale"] if param["use_logic_gradient"] else 1)
            eps, again = param["label_smooth_eps"], out[5 + label] != 0
            p = cell[5 + label] + 1e-15
            focal = -(1 - p) * (2 * p * math.log(p) + p - 1) / 2
            for k in range(len(cell) - 5):
                aim = (k == label) * (1 - eps) + eps / 2
                if (again and k == label) or (not again and not param["use_focal_loss"]):
                    out[5 + k] = -param["class_scale"] * (aim - cell[5 + k])
                elif not again:
                    out[5 + k] = -param["class_scale"] * ((k == label) - cell[5 + k]) * focal
    loss = (delta**2).sum()
    if param["use_logic_gradient"]:
        for k in (0, 1, *range(4, x.shape[1])):
            delta[:, k] *= told[:, k] * (1 - told[:, k])
    return loss, delta


@pytest.mark.parametrize(
    ("mask", "changes"),
    [
        ([2, 0, 3], {}),
        ([0, 1, 2], {"use_logic_gradient": 1, "label_smooth_eps": 0}),
        ([1, 2, 3], {"use_focal_loss": 1, "iou_thresh": 1}),
    ],
)
def test_yolo_v3_loss(mask, changes) -> None:
    x = random.standard_normal((2, 3 * 8, 3, 4))
    twice = [[0, 0.3, 0.4, 0.5, 0.3], [0, 0.35, 0.45, 0.4, 0.35], [2, 0.36, 0.45, 0.45, 0.4]]
    ground_truths = [twice, objects(4)]
    param = {"thresh": 0.3125, "iou_thresh": 0.375, "coord_scale": 1.25, "object_scale": 3,
             "class_scale": 1.5, "label_smooth_eps": 0.125, "use_logic_gradient": 0,
             "use_focal_loss": 0} | changes  # fmt: skip
    fields = " ".join(f"{name}: {value}" for name, value in param.items())
    fields += "".join(f" biases: {each}" for each in ANCHORS)
    fields += "".join(f" mask: {each}" for each in mask)
    settings = f"yolov3_param {{ num_class: 3 num: 3 anchors_scale: 16 {fields} }}"
    loss, gradient = run_loss("Yolov3", [x, as_rows_of_5(ground_truths)], settings)
    cells = x.reshape(2, 3, 8, 3, 4)
    found = [yolo_v3_loss(*each, mask, param) for each in zip(cells, ground_truths, strict=True)]
    assert loss == pytest.approx(sum(each for each, _ in found) / 2)
    wanted = np.array([delta for _, delta in found]).reshape(x.shape)
    np.testing.assert_allclose(gradient, wanted * 1.5 / 2, rtol=1e-9, atol=1e-12)


REPORT = (
    "yolov3_detection_output_param { num_classes: 2 num_box: 1 confidence_threshold: 0.25 "
    "nms_threshold: 0.5 biases: 16 biases: 16 biases: 32 biases: 16 mask: 1 mask: 0 "
    "anchors_scale: 32 anchors_scale: 16 }"
)


def grids(items, told):
    """Two grids, of 2 x 2 and 4 x 4 cells; told: item, grid, row, column, score of class 0 or 1."""
    found = [np.full((items, 7, size, size), -9.0) for size in (2, 4)]
    for each in found:
        each[:, :4] = 0
    for item, grid, j, i, kind, score in told:
        found[grid][item, [4, 5 + kind], j, i] = 9, score
    return found


def test_boxes_of_yolo_v3() -> None:
    """Two of one cell are thinned, and one beside them of the other grid."""
    told = [(0, 1, 0, 3, 1, 2.0), (1, 0, 1, 0, 0, 1.0), (1, 0, 1, 0, 1, 3.0), (1, 1, 2, 0, 0, 0.5),
            (0, 1, 3, 3, 0, -2.0)]  # fmt: skip
    found = run("Yolov3DetectionOutput", grids(2, told), REPORT).reshape(-1, 7)
    objectness = sigmoid(9)
    wanted = [
        [0, 2, sigmoid(2) * objectness, 0.75, 0, 1, 0.25],
        [1, 2, sigmoid(3) * objectness, 0, 0.625, 0.5, 0.875],
        [1, 1, sigmoid(0.5) * objectness, 0, 0.5, 0.25, 0.75],
    ]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    nothing = run("Yolov3DetectionOutput", grids(2, []), REPORT).reshape(-1, 7)
    np.testing.assert_array_equal(nothing, [[0] + [-1] * 6, [1] + [-1] * 6])


def yolo_v2_boxes(images, least, threshold):
    """The rows that the fork reports of an image, grids (anchors, 5 + classes, size, size)."""
    found = []
    for x in images:
        for j, i, n in np.ndindex(*x.shape[2:], len(x)):
            power = np.exp(x[n, 5:, j, i] - x[n, 5:, j, i].max())
            score = sigmoid(x[n, 4, j, i]) * power.max() / power.sum()
            if score >= least:
                found.append((score, power.argmax() + 1, predicted(x, n, j, i)))
    kept = []
    for score, kind, box in sorted(found, key=lambda each: -each[0]):
        if all(overlap(box, other) < threshold for _, _, other in kept):
            kept.append((score, kind, box))
    return [[k, s, x - w / 2, y - h / 2, x + w / 2, y + h / 2] for s, k, (x, y, w, h) in kept]


@pytest.mark.parametrize("sizes", [(4,), (3, 5)])
def test_boxes_of_yolo_v2(sizes) -> None:
    maps = [random.standard_normal((2, 2, 8, size, size)) for size in sizes]
    settings = " ".join(f"biases: {each}" for each in BIASES) + " num_classes: 3 num_box: 2"
    found = run(
        "YoloDetectionOutput",
        [each.reshape(2, 16, *each.shape[3:]) for each in maps],
        f"yolo_detection_output_param {{ {settings} confidence_threshold: 0.2 }}",
    ).reshape(-1, 7)
    wanted = [
        [item, *row]
        for item in range(2)
        for row in yolo_v2_boxes([each[item] for each in maps], 0.2, 0.45)
    ]
    assert len(wanted) > 10
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
