"""How Cascade R-CNN's and MS-CNN's regions are sampled, against the forks' loops written anew."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.layers.nets import one_layer

from .test_field_boxes import DEVIATION, MEAN, NORMALIZED, overlap, pixels, regions

random = np.random.default_rng(23)

TOPS = "".join(f'top: "{name}" ' for name in "rltioms")


def objects(columns: int) -> np.ndarray:
    """Two in the first image, one to ignore and none that counts in the second."""
    rows = np.zeros((4, columns))
    rows[:, :7] = [
        [0, 10, 12, 40, 50, 2, 0], [0, 30, 5, 70, 30, 1, 0], [1, 20, 20, 60, 60, 1, 1], [-1] * 7
    ]  # fmt: skip
    return rows


def candidates(ground_truths: np.ndarray, count: int) -> np.ndarray:
    near = ground_truths[random.integers(3, size=count), :5]
    near[:, 1:] += random.standard_normal((count, 4)) * 6
    return np.concatenate([near, regions(count)]).astype(np.float32)


def matches(rois: np.ndarray, ground_truths: np.ndarray) -> list[tuple[int, float]]:
    """Which object each of them overlaps most, and by how much."""
    found = []
    for image, *box in rois:
        best = (-1, 0.0)
        for j, (where, *ground_truth) in enumerate(ground_truths[:, :5]):
            if where == image:
                share = overlap(pixels(box), pixels(ground_truth), "IOU")
                if best[0] < 0 or share > best[1]:
                    best = (j, share)
        found.append(best)
    return found


@pytest.mark.parametrize(("columns", "aware"), [(8, True), (8, False), (7, True)])
def test_targets_of_regions(columns: int, aware: bool) -> None:
    """All there are: none is drawn."""
    ground_truths = objects(columns)
    rois = candidates(ground_truths, 12)
    normalized = NORMALIZED.replace("{", "{ cls_aware: " + str(aware).lower())
    net = one_layer(
        f'type: "ProposalTarget" {TOPS} {normalized} proposal_target_param {{ cls_num: 3 '
        "batch_size: -1 fg_thr: 0.5 bg_thr_hg: 0.4 bg_thr_lw: 0.1 iou_weighted: true "
        "bbox_thr_lw: 0.55 bbox_thr_hg: 0.95 num_img_per_batch: 2 }",
        {"rois": rois, "gt": ground_truths}, phase="TRAIN",
    )  # fmt: skip
    every = np.concatenate([rois, ground_truths[:3, :5]])
    own = matches(every, ground_truths)
    wanted = [i for i, (j, share) in enumerate(own) if share >= 0.5 and not ground_truths[j, 6]]
    count = len(wanted)
    wanted += [i for i, (_, share) in enumerate(own) if 0.1 <= share < 0.4]
    assert 3 < count < len(wanted) - 3
    read = {name: net.read(name)[..., 0, 0] for name in "rltioms"}
    np.testing.assert_allclose(read["r"], every[wanted], rtol=1e-6)
    total = sum(own[i][1] for i in wanted[:count])
    for row, i in enumerate(wanted):
        target, weight = np.zeros((3 if aware else 2, 4)), np.zeros((3 if aware else 2, 4))
        label, match = 0, [0.0] * 6
        share = 0.75 * len(wanted) / (len(wanted) - count)
        if row < count:
            j, near = own[i]
            label, match = ground_truths[j, 5], [ground_truths[j, 5], *ground_truths[j, 1:5], near]
            x, y, w, h = pixels(every[i, 1:])
            gx, gy, gw, gh = pixels(ground_truths[j, 1:5])
            code = [(gx + gw / 2 - x - w / 2) / w, (gy + gh / 2 - y - h / 2) / h,
                    math.log(gw / w), math.log(gh / h)]  # fmt: skip
            place = int(label) if aware else 1
            target[place] = [(c - m) / s for c, m, s in zip(code, MEAN, DEVIATION, strict=True)]
            weight[place] = 0.55 <= near <= 0.95
            share = near * 0.25 * len(wanted) / total
        assert read["l"][row] == label
        np.testing.assert_allclose(read["m"][row], match, rtol=1e-5)
        np.testing.assert_allclose(read["t"][row], target.ravel(), atol=1e-4)
        np.testing.assert_array_equal(read["i"][row], weight.ravel())
        np.testing.assert_array_equal(read["o"][row], weight.ravel())
        assert read["s"][row] == pytest.approx(share, rel=1e-5)


def test_a_batch_of_regions() -> None:
    """Of some size: a quarter objects; others of each pass, and picked up where they lack."""
    ground_truths = objects(8)
    rois = candidates(ground_truths, 30)
    text = (
        f'type: "ProposalTarget" {TOPS} proposal_target_param {{ cls_num: 3 batch_size: 16 '
        "num_img_per_batch: 2 bg_thr_lw: %g %s }"
    )
    net = one_layer(text % (0.1, ""), {"rois": rois, "gt": ground_truths}, phase="TRAIN")
    draws = []
    for _ in range(2):
        labels = net.read("l").ravel()
        assert labels.shape == (16,)
        assert (labels > 0).sum() == 4
        assert net.read("s").sum() == pytest.approx(16)
        own = [share for _, share in matches(net.read("r")[..., 0, 0], ground_truths)]
        assert all(
            (share >= 0.499) == (label > 0) for share, label in zip(own, labels, strict=True)
        )
        assert min(own) > 0.099
        draws.append(net.read("r"))
        net.forward()
    assert (draws[0] != draws[1]).any()
    few = one_layer(text % (0.45, "pickup_discard: false append_gtbox: false"),
              {"rois": rois, "gt": ground_truths}, phase="TRAIN").read("l")  # fmt: skip
    many = one_layer(text % (0.45, ""), {"rois": rois, "gt": ground_truths}, phase="TRAIN").read(
        "l"
    )
    assert len(few) < 16 == len(many)


@pytest.mark.parametrize(("columns", "count"), [(7, 8), (8, 1)])
def test_regions_that_lack_are_drawn(columns: int, count: int) -> None:
    """MS-CNN fills its batch; Cascade R-CNN draws one where there is none."""
    net = one_layer(
        f'type: "ProposalTarget" {TOPS} proposal_target_param {{ cls_num: 3 batch_size: 8 '
        "pickup_discard: false num_img_per_batch: 3 img_width: 200 img_height: 100 }",
        {"rois": np.array([[0, 1, 1, 10, 10]]), "gt": np.full((1, columns), -1)}, phase="TRAIN",
    )  # fmt: skip
    rois = net.read("r")[..., 0, 0]
    assert len(rois) == count
    assert (net.read("l") == 0).all()
    assert (rois[:, 3:] - rois[:, 1:3] >= 31).all()
    assert set(rois[:, 0]) <= {0, 1, 2}


def test_the_hardest_of_each_image() -> None:
    rois, loss = regions(9), random.random((9, 1, 1, 1))
    rois[:, 0] = [0, 0, 0, 0, 0, 0, 1, 1, 0]
    values = random.random((9, 2, 3, 1))
    net = one_layer(
        'type: "HardMining" top: "y" top: "z" '
        "hard_mining_param { num_roi_per_image: 3 num_image: 2 }",
        {"l": loss, "r": rois, "x": values},
    )
    order = sorted(range(9), key=lambda i: -loss[i, 0, 0, 0])
    first = [i for i in order if rois[i, 0] == 0]
    kept = sorted([*first[:4], 6, 7])  # four, as the second image has two only
    np.testing.assert_allclose(net.read("y"), rois[kept], rtol=1e-6)
    np.testing.assert_allclose(net.read("z"), values[kept], rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("low_scale: 10 high_scale: 30", [0, 2]),
        ("high_scale: 20", [0, 3]),
        ("low_scale: 20", [1, 2]),
        ("low_scale: 45 high_scale: 60", [1]),
        ("", [0, 1, 2, 3]),
    ],
)
def test_regions_go_by_their_size(text: str, wanted: list[int]) -> None:
    rois = np.array([[0, 0, 0, 9, 9], [0, 5, 5, 44, 44], [1, 0, 0, 39, 9], [1, 9, 9, 9, 9.0]])
    values = random.random((4, 3))
    net = one_layer(
        f'type: "ScaleRoute" top: "y" top: "z" scale_route_param {{ {text} }}',
        {"r": rois, "x": values},
    )
    np.testing.assert_array_equal(net.read("y"), rois[wanted])
    np.testing.assert_allclose(net.read("z"), values[wanted], rtol=1e-6)
