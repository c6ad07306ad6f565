"""What the layers over regions compute where no figures of a fork are at hand, and refuse."""

from __future__ import annotations

import numpy as np
import pytest

from ..nets import refuse
from ..test_values import run, softmax


def test_the_hardest_rois_keep_their_labels() -> None:
    rois = np.array([[0, 0, 0, 9, 9], [1, 0, 0, 9, 9], [0, 1, 1, 8, 8], [0, 2, 2, 7, 7]])
    loss = np.array([1.0, 0.5, 3.0, 2.0])
    weights = np.arange(8.0).reshape(4, 2) + 1
    labels, kept = run(
        "BoxAnnotatorOHEM",
        [rois, loss, np.array([5.0, 6, 7, 8]), weights],
        "box_annotator_ohem_param { roi_per_img: 2 ignore_label: -1 }",
        tops=2,
    )
    np.testing.assert_array_equal(labels, [[-1], [6], [7], [8]])
    np.testing.assert_array_equal(kept, [[0, 0], *weights[1:]])


def test_losses_tell_those_of_each_region() -> None:
    scores = np.array([[0.5, 1, -1], [2, 0, 1], [0, 0, 3]])
    settings = "loss_weight: 1 loss_weight: 0 loss_weight: 0 loss_param { ignore_label: 2 }"
    total, _, each = run("SoftmaxWithLossOHEM", [scores, np.array([1.0, 0, 2])], settings, tops=3)
    wanted = -np.log(softmax(scores, 1)[[0, 1], [1, 0]])
    np.testing.assert_allclose(each, [[[[wanted[0]]]], [[[wanted[1]]]], [[[0]]]], rtol=1e-6)
    assert total == pytest.approx(wanted.mean())

    boxes, truths = np.array([[0.0, 3], [1, 1]]), np.array([[0.5, 1], [1, 5]])
    settings = "loss_weight: 1 loss_weight: 0 "
    settings += "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 4 }"
    values = [boxes, truths, np.array([[1.0, 1], [1, 0]])]
    total, each = run("SmoothL1LossOHEM", values, settings, tops=2)
    np.testing.assert_allclose(each.reshape(-1), [0.125 + 1.5, 0])
    assert total == pytest.approx(1.625 / 4)


def test_points_of_a_region() -> None:
    """On a ramp the points are their own coordinates, counted from the first element's centre."""
    ramp = np.tile(np.arange(8.0), (1, 1, 8, 1))
    rois = np.array([[0, 2, 1, 10, 13], [0, 2, 2, 2, 9]])
    y = run(
        "ROIAlign", [ramp, rois], "roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.5 }"
    )
    np.testing.assert_allclose(y[0, 0], np.tile([0.5, 2.5, 4.5], (4, 1)))
    assert not y[1].any()


def test_points_of_a_warped_region() -> None:
    """On a ramp again: from where the rounded corners stand, a bin apart; a line of no extent."""
    ramp = np.tile(np.arange(8.0), (1, 1, 8, 1))
    rois = np.array([[0, 2, 1, 10, 13], [0, 5, 2, 5, 9]])
    settings = "roi_warping_param { pooled_h: 2 pooled_w: 4 spatial_scale: 0.5 }"
    y = run("ROIWarping", [ramp, rois], settings)
    np.testing.assert_allclose(y[0, 0], np.tile([1, 2, 3, 4], (2, 1)))
    np.testing.assert_allclose(y[1, 0], 3)


def test_resized_masks_weigh_features() -> None:
    mask = np.arange(12.0).reshape(2, 1, 2, 3)
    smaller = run("MaskResize", [mask], "mask_resize_param { output_height: 2 output_width: 2 }")
    np.testing.assert_allclose(smaller[1, 0], [[6, 7.5], [9, 10.5]])
    larger = run("MaskResize", [mask], "mask_resize_param { output_height: 2 output_width: 12 }")
    np.testing.assert_allclose(larger[0, 0, 0], [*np.arange(0, 2.1, 0.25), 2, 2, 0])
    features = np.ones((2, 4, 2, 3))
    np.testing.assert_array_equal(run("MaskPooling", [features, mask]), features * mask)


@pytest.mark.parametrize(
    ("type_", "settings", "message"),
    [
        ("ROIPooling", "", r"roi_pooling_param.pooled_h: must be at least 1"),
        ("PSROIPooling", "psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 3 }",
         r"bottom\[0\]: has shape \(1, 4, 6, 6\), but must be \(1, 18, 6, 6\): output_dim"),
        ("ROIWarping", "roi_warping_param { pooled_h: 2 }",
         r"roi_warping_param.pooled_w: must be at least 1"),
        ("MaskPooling", "", r"bottom\[1\]: has shape \(3, 5\), but must be \(1, 1, 6, 6\)"),
        ("ROIAlign", "roi_pooling_param { pooled_h: 2 pooled_w: 2 }",
         r"bottom\[1\]: has shape \(3, 4\), but must be R x 5"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(type_: str, settings: str, message: str) -> None:
    rois = (3, 4) if type_ == "ROIAlign" else (3, 5)
    refuse(f'type: "{type_}" top: "y" {settings}', [(1, 4, 6, 6), rois], message)
