"""Cascade R-CNN's DetectionEvaluate, and what its losses tell of each region."""

from __future__ import annotations

import numpy as np
import pytest

from ..nets import one_layer

random = np.random.default_rng(37)


@pytest.mark.parametrize("difficult", [True, False])
def test_true_boxes_in_pixels(difficult: bool, tmp_path) -> None:
    """In images as large as the file says, one after the other."""
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("a 80 60\nb 240 120\n")
    text = (
        'type: "DetectionEvaluate" top: "y" detection_evaluate_param { num_classes: 3 '
        f"overlap_threshold: 0.5 evaluate_difficult_gt: {str(difficult).lower()} name_size_file: "
        f'"{sizes}" }}'
    )
    found = np.array([
        [0, -1, -1, -1, -1, -1, -1], [0, 1, 1, 20, 20, 1, 0.6], [0, 2, 2, 21, 21, 1, 0.9],
        [0, 50, 50, 60, 60, 1, 0.5], [0, 30, 5, 33, 8, 2, 0.8],
    ])  # fmt: skip
    truth = np.array([
        [0, 1, 1, 20, 20, 1, 0, 0], [0, 50, 50, 60, 60, 1, 0, 1], [0, 40, 5, 43, 8, 2, 0, 0],
        [-1] * 8,
    ])  # fmt: skip
    net = one_layer(text, {"d": found, "t": truth, "s": np.array([[80, 60]])})
    odd = [1, 0] if difficult else [0, 0]
    wanted = [
        [-1, 1, 1 + difficult, -1, -1], [-1, 2, 1, -1, -1], [0, 1, 0.9, 1, 0], [0, 1, 0.6, 0, 1],
        [0, 1, 0.5, *odd], [0, 2, 0.8, 0, 1],
    ]  # fmt: skip
    np.testing.assert_allclose(net.read("y")[0, 0], wanted, rtol=1e-6)
    net.forward()  # as if in an image of twice the width and three times the height
    np.testing.assert_allclose(net.read("y")[0, 0], wanted, rtol=1e-6)


def test_sizes_count_where_they_are_small(caplog: pytest.LogCaptureFixture, tmp_path) -> None:
    """A box counts its last pixel: 3 x 3 pixels of 4 x 4 are 0.56, of the double 5 x 5 of 7 x 7."""
    sizes = tmp_path / "sizes.txt"
    given = {
        "d": np.array([[0, 0, 0, 2, 2, 1, 0.5]]),
        "t": np.array([[0, 0, 0, 3, 3, 1, 0, 0]]),
        "s": np.array([[10, 10]]),
    }
    text = (
        'type: "DetectionEvaluate" top: "y" detection_evaluate_param { num_classes: 2 '
        f'overlap_threshold: 0.52 name_size_file: "{sizes}" }}'
    )
    assert one_layer(text, given).read("y")[0, 0, 1].tolist() == [0, 1, 0.5, 1, 0]
    assert "boxes are compared as they are in the net's input" in caplog.text
    sizes.write_text("a 20 20\n")  # 25 / 49
    assert one_layer(text, given).read("y")[0, 0, 1].tolist() == [0, 1, 0.5, 0, 1]


def test_losses_of_each_region() -> None:
    """Further tops of the losses, by which HardMining chooses."""
    scores, labels = random.standard_normal((5, 4, 1, 1)), np.array([1, 3, 0, 2, 2.0])
    net = one_layer(
        'type: "SoftmaxWithLoss" top: "y" top: "p" top: "e" loss_param { ignore_label: 3 }',
        {"x": scores, "l": labels.reshape(5, 1, 1, 1)},
    )
    p = np.exp(scores[..., 0, 0]) / np.exp(scores[..., 0, 0]).sum(axis=1, keepdims=True)
    wanted = np.where(labels == 3, 0, -np.log(p[np.arange(5), labels.astype(int)]))
    np.testing.assert_allclose(net.read("e"), wanted.reshape(5, 1, 1, 1), rtol=1e-5)
    a, b, inner, outer = (random.standard_normal((5, 8)) for _ in range(4))
    net = one_layer(
        'type: "SmoothL1Loss" top: "y" top: "e" smooth_l1_loss_param { sigma: 2 }',
        {"a": a, "b": b, "i": inner, "o": outer},
    )
    gap = np.abs(inner * (a - b))
    curve = np.where(gap < 0.25, 2 * gap * gap, gap - 0.125) * outer
    np.testing.assert_allclose(net.read("e")[..., 0, 0], curve.sum(1, keepdims=True), rtol=1e-4)
    assert net.read("y") == pytest.approx(curve.sum() / 5, rel=1e-4)
