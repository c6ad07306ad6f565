"""Region proposals: boxes and anchors, the layer Proposal, and the Python layers that nets name."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.forks import anchors
from tests.layers.nets import build, inputs

random = np.random.default_rng(5)


def python(module: str, layer: str, bottoms: str, tops: str, param_str: str) -> str:
    text = "".join(f' bottom: "{each}"' for each in bottoms.split())
    text += "".join(f' top: "{each}"' for each in tops.split())
    return (
        f'layer {{ name: "{tops.split()[0]}" type: "Python" {text} python_param {{ '
        f'module: "{module}" layer: "{layer}" param_str: "{param_str}" }} }}\n'
    )


def boxes(count: int, size: float = 100) -> np.ndarray:
    low = random.random((count, 2)) * size
    return np.concatenate([low, low + 5 + random.random((count, 2)) * size], axis=1)


def test_anchors_are_those_of_faster_rcnn() -> None:
    """The nine that its paper's code prints."""
    found = anchors.anchors_of(16, [0.5, 1, 2], [8, 16, 32])
    wanted = [
        [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199],
        [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263],
        [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359],
    ]  # fmt: skip
    np.testing.assert_array_equal(found, wanted)
    places = anchors.shifted(found, (2, 3), 16)
    np.testing.assert_array_equal(places[9 * 4 + 1], np.array(wanted[1]) + [16, 16, 16, 16])


def test_boxes_there_and_back() -> None:
    first, ground_truths = boxes(20), boxes(20)
    back = anchors.decode(first, anchors.encode(first, ground_truths))
    np.testing.assert_allclose(back, ground_truths + [0, 0, 1, 1], atol=1e-9)  # their code's, too


def test_overlaps_and_suppression() -> None:
    found = boxes(40)
    own = anchors.iou(found, found)
    np.testing.assert_allclose(np.diag(own), 1)
    assert anchors.iou(np.array([[0.0, 0, 9, 9]]), np.array([[5.0, 0, 14, 9]])) == 1 / 3
    kept: list[int] = []
    for i in range(len(found)):
        if all(own[i, j] <= 0.3 for j in kept):
            kept.append(i)
    np.testing.assert_array_equal(anchors.nms(found, 0.3), kept)
    np.testing.assert_array_equal(anchors.nms(found, 0.3, 3), kept[:3])


PROPOSAL = inputs({"s": (1, 18, 4, 5), "d": (1, 36, 4, 5), "i": (1, 3)}) + (
    'layer { name: "op" type: "Proposal" bottom: "s" bottom: "d" bottom: "i" top: "y" top: "p" '
    "proposal_param { ratio: 0.5 ratio: 1 ratio: 2 scale: 1 scale: 2 scale: 3 "
    "min_size: 4 post_nms_topn: 30 nms_thresh: %s } }\n"
)
NAMED = inputs({"s": (1, 18, 4, 5), "d": (1, 36, 4, 5), "i": (1, 3)}) + python(
    "rpn.proposal_layer", "ProposalLayer", "s d i", "y p",
    "'feat_stride': 16, 'scales': [1, 2, 3], 'rpn_min_size': 4, "
    "'rpn_post_nms_top_n': 30, 'rpn_nms_thresh': %s",
)  # fmt: skip


@pytest.mark.parametrize("threshold", [0.7, 0.05])
def test_a_layer_and_a_named_module_propose_the_same(threshold: float) -> None:
    """There may be fewer regions than asked for, and other numbers with each image."""
    nets = [build(text % threshold, Cpu()) for text in (PROPOSAL, NAMED)]
    counts = []
    for _ in range(3):
        scores = random.random((1, 18, 4, 5))
        deltas = random.standard_normal((1, 36, 4, 5)) * 0.3
        found = []
        for net in nets:
            for name, values in (("s", scores), ("d", deltas), ("i", [[60, 70, 1.5]])):
                net.write(name, np.array(values))
            net.forward()
            rois, chances = net.read("y"), net.read("p").reshape(-1)
            # The layer takes boxes that are too small, if there are no others left.
            found.append([rois[chances > 0], chances[chances > 0]])
        for mine, others in zip(*found, strict=True):
            np.testing.assert_allclose(mine, others, rtol=1e-6)
        rois, chances = found[0]
        assert (np.diff(chances) <= 0).all()
        assert (rois[:, 0] == 0).all()
        assert (rois[:, 1:] >= 0).all()
        assert (rois[:, 3] <= 69).all()
        assert (rois[:, 4] <= 59).all()
        own = anchors.iou(rois[:, 1:], rois[:, 1:]) - np.eye(len(rois))
        assert own.max(initial=0) <= threshold + 1e-5
        counts.append(len(rois))
    assert (set(counts) == {30}) == (threshold == 0.7)


def targets(
    scores: tuple[int, ...], ground_truths: np.ndarray, extra: str = ""
) -> list[np.ndarray]:
    text = inputs({"s": scores, "g": ground_truths.shape, "i": (1, 3)}) + python(
        "rpn.anchor_target_layer", "AnchorTargetLayer", "s g i", "l t inner outer",
        "'feat_stride': 16, 'scales': [1, 2]" + extra,
    )  # fmt: skip
    net = build(text, Cpu())
    net.write("g", ground_truths)
    net.write("i", np.array([[96, 112, 1]]))
    net.forward()
    return [net.read(name) for name in ("l", "t", "inner", "outer")]


def test_targets_of_anchors() -> None:
    ground_truths = np.array([[20.0, 18, 50, 52, 3], [70, 40, 100, 90, 1]])
    labels, wanted, inner, outer = targets((1, 12, 6, 7), ground_truths)
    assert labels.shape == (1, 1, 36, 7)
    assert wanted.shape == inner.shape == outer.shape == (1, 24, 6, 7)
    places = anchors.shifted(anchors.anchors_of(16, [0.5, 1, 2], [1, 2]), (6, 7), 16)
    flat = labels.reshape(6, 6, 7).transpose(1, 2, 0).reshape(-1)
    own = anchors.iou(places, ground_truths[:, :4])
    inside = (places[:, :2] >= 0).all(axis=1) & (places[:, 2:] < [112, 96]).all(axis=1)
    assert (flat[~inside] == -1).all()
    assert (flat[inside & (own.max(axis=1) < 0.3) & (flat == 1)] == 1).all()
    assert set(flat[inside & (own.max(axis=1) >= 0.7)]) <= {1}
    for column in own[inside].T:  # each object has its anchor
        assert (flat[inside][column == column.max()] == 1).all()
    deltas = anchors.by_anchor(wanted, 4)[flat == 1]
    nearest = ground_truths[own.argmax(axis=1)[flat == 1], :4]
    np.testing.assert_allclose(anchors.encode(places[flat == 1], nearest), deltas, atol=1e-5)
    assert (anchors.by_anchor(inner, 4)[flat == 1] == 1).all()
    assert inner.sum() == 4 * (flat == 1).sum()
    assert outer.sum() == pytest.approx(4)


def test_anchors_are_sampled() -> None:
    ground_truths = np.array([[20.0, 18, 50, 52, 3], [70, 40, 100, 90, 1]])
    every = targets((1, 12, 6, 7), ground_truths)[0]
    some = targets((1, 12, 6, 7), ground_truths, ", 'rpn_batchsize': 8")[0]
    assert (some >= 0).sum() == 8 < (every >= 0).sum()
    assert ((some == every) | (some == -1)).all()


def test_no_object_and_no_anchor_inside() -> None:
    for shape in ((1, 12, 6, 7), (1, 12, 1, 1)):
        labels, _, _, outer = targets(shape, np.zeros((1, 5)) - 1)
        assert np.isfinite(outer).all()
        assert (labels <= 1).all()


def test_a_sample_of_regions() -> None:
    ground_truths = np.array([[10.0, 10, 50, 50, 3], [60, 60, 90, 99, 1]])
    found = np.concatenate([ground_truths[:, :4] + 3, boxes(60)])
    text = inputs({"r": (62, 5), "g": (2, 5)}) + python(
        "rpn.proposal_target_layer", "ProposalTargetLayer", "r g", "y l t inner outer",
        "'num_classes': 5, 'batch_size': 16",
    )  # fmt: skip
    net = build(text, Cpu(), phase="TRAIN")
    net.write("r", np.pad(found, ((0, 0), (1, 0))))
    net.write("g", ground_truths)
    net.forward()
    rois, labels, wanted, inner, outer = (net.read(n) for n in ("y", "l", "t", "inner", "outer"))
    assert rois.shape == (16, 5)
    assert 1 <= (labels > 0).sum() <= 4  # a quarter are objects, the truths among those to choose
    own = anchors.iou(rois[:, 1:], ground_truths[:, :4])
    for roi, label, row, weights in zip(rois, labels, wanted, inner, strict=True):
        if not label:
            assert not weights.any()
            continue
        best = anchors.iou(roi[None, 1:], ground_truths[:, :4]).argmax()
        assert label == ground_truths[best, 4]
        assert np.flatnonzero(weights).tolist() == [4 * int(label) + i for i in range(4)]
        deltas = anchors.encode(roi[None, 1:], ground_truths[best : best + 1, :4])
        deltas = deltas / [0.1, 0.1, 0.2, 0.2]
        np.testing.assert_allclose(row[weights > 0], deltas[0], atol=1e-4)
    assert (own[labels == 0].max(axis=1) < 0.5).all()
    np.testing.assert_array_equal(outer, inner)


def test_several_images(caplog: pytest.LogCaptureFixture) -> None:
    """As one after the other, where objects say of which image they are."""
    scores, deltas = random.random((2, 18, 4, 5)), random.standard_normal((2, 36, 4, 5)) * 0.3
    for each in (NAMED, PROPOSAL):
        parts = []
        for images in (slice(0, 2), slice(0, 1), slice(1, 2)):
            count = images.stop - images.start
            text = each.replace("dim: 1 dim: 18", f"dim: {count} dim: 18")
            net = build(text.replace("dim: 1 dim: 36", f"dim: {count} dim: 36") % 0.7, Cpu())
            given = {"s": scores[images], "d": deltas[images], "i": np.array([[60, 70, 1]])}
            for name, values in given.items():
                net.write(name, values)
            net.forward()
            parts.append(net.read("y"))
        both, first, second = parts
        np.testing.assert_array_equal(both[both[:, 0] == 0], first)
        np.testing.assert_array_equal(both[both[:, 0] == 1][:, 1:], second[:, 1:])

    ground_truths = np.array(
        [[20.0, 18, 50, 52, 3, 0], [70, 40, 100, 90, 1, 1], [10, 10, 40, 60, 2, 1]]
    )
    together = targets((2, 12, 6, 7), ground_truths)
    for image in range(2):
        alone = targets((1, 12, 6, 7), ground_truths[ground_truths[:, 5] == image, :5])
        for mine, wanted in zip(together, alone, strict=True):
            np.testing.assert_allclose(mine[image], wanted[0], rtol=1e-6)
    assert not caplog.records
    targets((2, 12, 6, 7), ground_truths[:, :5])
    assert "does not say which of 2 images an object is in" in caplog.text

    text = inputs({"r": (20, 5), "g": (3, 6)}) + python(
        "rpn.proposal_target_layer", "ProposalTargetLayer", "r g", "y l t",
        "'num_classes': 5, 'batch_size': 16",
    )  # fmt: skip
    net = build(text, Cpu(), phase="TRAIN")
    net.write("r", np.concatenate([np.arange(20)[:, None] % 2, boxes(20)], axis=1))
    net.write("g", ground_truths)
    net.forward()
    rois, labels = net.read("y"), net.read("l")
    assert ((rois[:, 0] == 0).sum(), (rois[:, 0] == 1).sum()) == (8, 8)
    assert set(labels[rois[:, 0] == 0]) <= {0, 3}
    assert set(labels[rois[:, 0] == 1]) <= {0, 1, 2}


@pytest.mark.parametrize("inspectable", [False, True])
def test_a_net_learns_by_its_targets(inspectable: bool) -> None:
    """No gradient is asked of what finds targets, though learning layers stand above it."""
    ground_truths = np.array([[20.0, 18, 50, 52, 3], [70, 40, 100, 90, 1]])
    convolution = 'layer {{ name: "{}" type: "Convolution" bottom: "x" top: "{}" convolution_param'
    convolution += ' {{ num_output: {} kernel_size: 1 weight_filler {{ type: "gaussian" }} }} }}'
    text = (
        inputs({"x": (1, 8, 6, 7), "g": ground_truths.shape, "i": (1, 3)})
        + convolution.format("score", "score", 12)
        + convolution.format("box", "box", 24)
        + 'layer { name: "shape" type: "Reshape" bottom: "score" top: "scores" '
        "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } } }"
        + python("rpn.anchor_target_layer", "AnchorTargetLayer", "score g i", "l t inner outer",
                 "'feat_stride': 16, 'scales': [1, 2]")
        + 'layer { name: "a" type: "SoftmaxWithLoss" bottom: "scores" bottom: "l" top: "a" '
        "loss_param { ignore_label: -1 } }"
        'layer { name: "b" type: "SmoothL1Loss" bottom: "box" bottom: "t" bottom: "inner" '
        'bottom: "outer" top: "b" smooth_l1_loss_param { sigma: 3 } }'
    )  # fmt: skip
    net = build(text, Cpu(), phase="TRAIN", inspectable=inspectable)
    for name, values in (("x", random.standard_normal((1, 8, 6, 7))), ("g", ground_truths),
                         ("i", np.array([[96, 112, 1]]))):  # fmt: skip
        net.write(name, values)
    net.forward()
    net.backward()
    assert 0 < net.loss() < 100
    assert all(net.backend.read(each.blob.diff).any() for each in net.parameters)


def test_messages() -> None:
    with pytest.raises(UserError, match="'feat_stride': NUMBER"):
        build(NAMED.replace("'feat_stride': 16, ", "") % 0.7, Cpu())
    with pytest.raises(
        UserError, match=r"bottom\[0\]: has .* must be \(1, 18, 4, 5\) for 9 anchors"
    ):
        build(PROPOSAL.replace("dim: 18", "dim: 17") % 0.7, Cpu())
    data = python("roi_data_layer.layer", "RoIDataLayer", "", "data", "'num_classes': 2")
    with pytest.raises(UserError, match="comes with py-faster-rcnn, in its folder lib"):
        build(data, Cpu())


SETTINGS = (
    "'feat_stride': 'a'", "'feat_stride': 0", "'scales': 5", "'scales': []", "'scales': [0]",
    "'scales': {[]: 1}", "'scales': [1, 2]", "'ratios': ['x']", "'base_size': True",
    "'rng_seed': -1", "'ratios': [[" + "[" * 9000,
    "'scales': [1e39]", "'rpn_nms_thresh': 1e999", "'bbox_inside_weights': [1]",
    "'base_size': " + "-" * 9000 + "1", "'base_size': " + "9" * 5000,
)  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda text: text[:24])
def test_a_setting_of_param_str_that_is_none(setting: str) -> None:
    """It is checked for its type and its size; keys are anything, as in Caffe."""
    given = f"1: 2, 'feat_stride': 16, {setting}"
    layer = python("rpn.proposal_layer", "ProposalLayer", "s d i", "y", given)
    net = inputs({"s": (1, 18, 4, 5), "d": (1, 36, 4, 5), "i": (1, 3)}) + layer
    with pytest.raises(UserError, match=r'"y" \(Python\), (python_param.param_str|bottom\[0\])'):
        build(net, Cpu())


def test_param_str_that_names_what_the_layer_does_not_know() -> None:
    given = "1: 2, 'feat_stride': 16, 'scales': (8, 16, 32), 'other': [{}], 'rpn_min_size': 2.5"
    layer = python("rpn.proposal_layer", "ProposalLayer", "s d i", "y", given)
    build(inputs({"s": (1, 18, 4, 5), "d": (1, 36, 4, 5), "i": (1, 3)}) + layer, Cpu()).forward()
