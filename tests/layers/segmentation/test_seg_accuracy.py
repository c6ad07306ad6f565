"""What SegAccuracy counts, against a confusion matrix that is filled pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError

from ..nets import build, inputs
from ..test_values import run

random = np.random.default_rng(5)


def measures(batches, classes, ignored=()):
    matrix = np.zeros((classes, classes))
    for scores, labels in batches:
        for n, _, y, x in np.ndindex(labels.shape):
            label = int(labels[n, 0, y, x])
            if label not in ignored:
                matrix[label, scores[n, :, y, x].argmax()] += 1
    right, there, taken = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    recall = [right[i] / there[i] for i in range(classes) if there[i]]
    unions = there + taken - right
    iou = [1.0 if unions[i] == right[i] else right[i] / unions[i] for i in range(classes)]
    return [right.sum() / there.sum(), np.mean(recall), np.mean(iou)]


@pytest.mark.parametrize("ignored", [(), (255,), (2, 255)])
def test_pixels_classes_and_overlaps(ignored: tuple[int, ...]) -> None:
    scores = random.standard_normal((2, 6, 4, 5))
    scores[:, 4] = scores[:, 5] = -9  # never found; 5 is not there either
    labels = random.integers(0, 5, (2, 1, 4, 5)).astype(float)
    scores[0, 0, :2] += 4
    labels[0, 0, :2] = 0
    if 255 in ignored:
        labels[1, 0, 0] = 255
    text = " ".join(f"ignore_label: {each}" for each in ignored)
    found = run("SegAccuracy", [scores, labels], f"seg_accuracy_param {{ {text} }}")
    assert found.shape == (1, 1, 1, 3)
    np.testing.assert_allclose(found.ravel(), measures([(scores, labels)], 6, ignored))


def test_all_passes_may_count() -> None:
    text = inputs({"x": (1, 3, 2, 4), "l": (1, 1, 2, 4)})
    text += """layer { name: "op" type: "SegAccuracy" bottom: "x" bottom: "l" top: "y"
        seg_accuracy_param { reset: false } }"""
    net, seen = build(text, Cpu()), []
    for _ in range(3):
        seen.append((random.standard_normal((1, 3, 2, 4)), random.integers(0, 3, (1, 1, 2, 4))))
        net.write("x", seen[-1][0])
        net.write("l", seen[-1][1])
        net.forward()
        np.testing.assert_allclose(net.read("y").ravel(), measures(seen, 3), rtol=1e-6)


def test_a_label_that_is_no_class() -> None:
    scores, labels = np.zeros((1, 3, 1, 2)), np.array([[[[0.0, 3]]]])
    two = "seg_accuracy_param { ignore_label: 7 ignore_label: 8 }"
    assert np.isnan(run("SegAccuracy", [scores, labels], two)).all()
    with pytest.raises(UserError, match=r"bottom\[1\]: has shape \(1, 1, 1, 1\)"):
        run("SegAccuracy", [scores, labels[..., :1]])
