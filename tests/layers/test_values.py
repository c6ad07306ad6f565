"""What layers compute where no reference figures are at hand, against plain NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError
from osucaffe.proto import array_to_blob

from .nets import build, error, inputs, one_layer

random = np.random.default_rng(3)


def run(type_, values, settings="", *, tops=1, phase="TEST", parameters=(), passes=1):
    """The tops of one layer whose bottoms have these values, in double precision."""
    names = dict(zip("abcde", values, strict=False))
    text = f'type: "{type_}" {settings}' + "".join(f' top: "y{i}"' for i in range(tops))
    net = one_layer(text, names, Cpu(dtype="float64"), phase=phase, parameters=parameters)
    for _ in range(passes - 1):
        for name, value in names.items():
            net.write(name, value)
        net.forward()
    found = [net.read(f"y{i}") for i in range(tops)]
    return found[0] if tops == 1 else found


def softmax(x, axis):
    power = np.exp(x - x.max(axis=axis, keepdims=True))
    return power / power.sum(axis=axis, keepdims=True)


def picked(x, labels, axis=1):
    """What stands at the labels along an axis."""
    return np.take_along_axis(x, np.expand_dims(labels.astype(int), axis), axis).squeeze(axis)


def balanced(x, target, negative=1.0):
    """HED's loss, as its paper states it, with a weight of negatives: a mean over items."""
    total = 0.0
    for scores, wanted in zip(x, target, strict=True):
        positive, zero = scores[wanted == 1], scores[wanted == 0]
        share = len(zero) / max(1, len(zero) + len(positive))
        total += share * np.log1p(np.exp(-positive)).sum()
        total += negative * (1 - share) * np.log1p(np.exp(zero)).sum()
    return total / len(x)


def value(type_, settings, values, *expected, name="", **options):
    """A row: a layer, its settings and bottoms, what its tops should be, options of `run`."""
    options = {"settings": settings, "tops": len(expected)} | options
    return pytest.param(type_, values, expected, options, id=f"{type_} {name or settings}")


X, A, B, OTHER = (random.random(shape) * 2 - 1 for shape in ((5, 4), (6, 3), (6, 3), (2, 4, 5)))
OWN, SIMILAR = np.array([0.0, 1, 2, 3, 1]), np.array([1.0, 0, 0, 1, 0, 0])
SCALE, BIAS, WEIGHT = random.random(4), random.random(4), random.standard_normal((3, 4))
UNIT = WEIGHT / np.linalg.norm(WEIGHT, axis=1, keepdims=True)
DISTANCE, GAP = np.sqrt(((A - B) ** 2).sum(axis=1)), np.abs(2 * B * (A - B))
SMOOTH = np.where(GAP < 0.25, 2 * GAP * GAP, GAP - 0.125) * (A + 1)
P, Q = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), np.array([[1.0, 0, 0], [0.2, 0.3, 0.5]])
SCORES, LABELS = random.standard_normal((5, 4, 3)), random.integers(4, size=(5, 3)).astype(float)
LOSSES, OWN_LOSSES = (
    -np.log(picked(softmax(x, 1), labels)) for x, labels in ((SCORES, LABELS), (X, OWN))
)
WEIGHTED = (LOSSES * np.array([0.2, 3, 0, 1])[LABELS.astype(int)]).sum() / (LABELS != 2).sum()

IMAGES, SQUARES = random.standard_normal((2, 3, 4, 5)), random.random((2, 3, 4, 4))
EDGES = random.choice([0, 0, 1, 0.3], size=IMAGES.shape)  # 0.3: neither
MEAN, VARIANCE = (f((0, 2, 3), keepdims=True) for f in (IMAGES.mean, IMAGES.var))
LENGTH = np.sqrt((IMAGES**2).sum(axis=1, keepdims=True) + 1e-6)
FLAT, BEST = IMAGES.reshape(2, 60), np.argsort(-IMAGES, axis=1)[:, :2]
BEST_OF_ALL = np.argsort(-FLAT, axis=1)[:, :2]
PYRAMID = [SQUARES.reshape(2, 3, n, 4 // n, n, 4 // n).max((3, 5)) for n in (1, 2)]
FINER = IMAGES.reshape(1, 3, 2, 2, 2, 5).transpose(0, 1, 4, 2, 5, 3).reshape(1, 3, 4, 10)
FILTER = np.tile([2.0, -1, 3], (3, 1, 1, 1))
RAMP, MASK = np.tile(np.arange(8.0), (1, 1, 8, 1)), np.arange(12.0).reshape(2, 1, 2, 3)
LAST = MASK[..., 2:]


def divergence(p, q):
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.nan_to_num(a * np.log(2 * a / (p + q))) for a in (p, q)]
    return np.sum(parts) / 2 / len(p)


def rescaled(x, change):
    """x / 4, but at the labels what `change` makes of it."""
    return np.where(np.arange(x.shape[1]) == OWN[:, None], change(x), x / 4)


VALUES = [
    value("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 4 }", [SQUARES],
          (SQUARES**2).sum((2, 3), keepdims=True) / SQUARES.sum((2, 3), keepdims=True)),
    value("SPP", "spp_param { pyramid_height: 2 }", [SQUARES],
          np.concatenate([part.reshape(2, -1) for part in PYRAMID], axis=1)),
    value("SoftmaxWithLoss", "", [SCORES, LABELS], LOSSES.mean(), softmax(SCORES, 1)),
    value("SoftmaxWithLoss", "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 7 }",
          [SCORES, LABELS], LOSSES.sum() / 7),
    value("SoftmaxWithLoss", "loss_param { ignore_label: 2 weight_by_label_freqs: true "
          "class_weighting: [0.2, 3, 9, 1] }", [SCORES, LABELS], WEIGHTED),
    value("SoftmaxWithLossOHEM", "loss_weight: 1 loss_weight: 0 loss_weight: 0 "
          "loss_param { ignore_label: 2 }", [X, OWN], OWN_LOSSES[OWN != 2].mean(), softmax(X, 1),
          np.where(OWN == 2, 0, OWN_LOSSES).reshape(5, 1, 1, 1)),
    value("SmoothL1LossOHEM", "loss_weight: 1 loss_weight: 0 "
          "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 4 }",
          [np.array([[0.0, 3], [1, 1]]), np.array([[0.5, 1], [1, 5]]), np.array([[1, 1], [1, 0]])],
          1.625 / 4, np.reshape([1.625, 0], (2, 1, 1, 1))),
    value("SoftmaxWithLoss", "loss_param { ignore_label: 3 }", [X, OWN],
          OWN_LOSSES[OWN != 3].mean(), softmax(X, 1), np.where(OWN == 3, 0, OWN_LOSSES)),
    value("SmoothL1Loss", "smooth_l1_loss_param { sigma: 2 }", [A, B, 2 * B, A + 1],
          SMOOTH.sum() / 6, SMOOTH.sum(axis=1).reshape(6, 1, 1, 1)),
    *(value("ContrastiveLoss", f"contrastive_loss_param {{ margin: 0.9 legacy_version: {legacy} }}",
            [A, B, SIMILAR], np.where(SIMILAR == 1, DISTANCE**2, apart).sum() / 12)
      for legacy, apart in (("false", np.maximum(0.9 - DISTANCE, 0) ** 2),
                            ("true", np.maximum(0.9 - DISTANCE**2, 0)))),
    value("JSDLoss", "", [P, Q], divergence(P, Q)),
    value("JSDLoss", "", [Q, Q], 0, name="of one"),
    value("DiceCoefLoss", "", [A, B],
          1 - np.mean((2 * (A * B).sum(1) + 1) / ((A * A + B * B).sum(1) + 1))),
    value("ArgMax", "argmax_param { top_k: 2 }", [IMAGES], BEST_OF_ALL[:, None, :, None]),
    value("ArgMax", "argmax_param { top_k: 2 out_max_val: true }", [IMAGES],
          np.stack([BEST_OF_ALL, np.take_along_axis(FLAT, BEST_OF_ALL, 1)], axis=1)[..., None]),
    value("ArgMax", "argmax_param { top_k: 2 axis: 1 }", [IMAGES], BEST),
    value("ArgMax", "argmax_param { top_k: 2 axis: 1 out_max_val: true }", [IMAGES],
          np.take_along_axis(IMAGES, BEST, axis=1)),
    value("PixelShuffle", "", [IMAGES.reshape(1, 12, 2, 5)], FINER),
    value("LayerNorm", "", [X], (X - X.mean(1, keepdims=True)) / np.sqrt(
          X.var(1, keepdims=True) + 1e-5) * SCALE + BIAS, parameters=[SCALE, BIAS]),
    value("BatchNorm", "batch_norm_param { scale_bias: true }", [X],
          (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5) * SCALE + BIAS, phase="TRAIN",
          parameters=[np.zeros(4), np.zeros(4), 0, SCALE, BIAS]),
    value("SigmoidCrossEntropyLoss", "loss_param { class_balance: 1 }", [IMAGES, EDGES],
          balanced(IMAGES, EDGES)),
    value("SigmoidCrossEntropyLoss", "loss_param { class_balance: 1.1 }", [IMAGES, EDGES],
          balanced(IMAGES, EDGES, 1.1)),
    value("SigmoidCrossEntropyLoss", "loss_param { class_balance: 1 normalization: NONE }",
          [IMAGES, np.ones((2, 3, 4, 5))], 0),
    value("BN", "bn_param { bn_mode: LEARN }", [IMAGES],
          (IMAGES - MEAN) / np.sqrt(VARIANCE + 1e-9), MEAN, VARIANCE),
    value("Normalize", "normalize_param { }", [IMAGES], IMAGES / LENGTH, LENGTH),
    value("Normalize", 'normalize_param { normalize_type: "L1" }', [IMAGES],
          IMAGES / (np.abs(IMAGES).sum(axis=1, keepdims=True) + 1e-6)),
    value("InnerProduct", "inner_product_param { num_output: 3 normalize: true }", [X],
          X @ UNIT.T + 1, parameters=[WEIGHT, np.ones(3)]),
    value("InnerProduct", "inner_product_param { bias_term: false }", [X, WEIGHT[..., None]],
          X @ WEIGHT.T),
    value("InnerProduct", "", [X, WEIGHT, BIAS[:3]], X @ WEIGHT.T + BIAS[:3]),
    *(value("Scale", f"scale_param {{ min_value: -0.5 max_value: 0.5 {axes} }}", [X],
            X * np.clip(WEIGHT[0][:n], -0.5, 0.5), parameters=[WEIGHT[0][:n].reshape(shape)])
      for axes, n, shape in (("", 4, (4,)), ("num_axes: 0", 1, ()))),
    value("Scale", "scale_param { min_value: 1.5 }", [X], X * 1.5),
    value("GELU", "", [X], X * 0.5 * (1 + np.vectorize(math.erf)(X / math.sqrt(2)))),
    value("SeLu", "", [X], 1.050700987 * np.where(X > 0, X, 1.67326324 * (np.exp(X) - 1))),
    value("SeLu", "selu_param { lambda: 2 alpha: 0.5 }", [X],
          np.where(X > 0, 2 * X, np.exp(X) - 1)),
    *(row for type_, y in (("Scale", 6), ("Bias", 5)) for row in (
        value(type_, "", [np.array(2.0), np.array(3.0)], y, name="of numbers"),
        value(type_, f"{type_.lower()}_param {{ num_axes: 0 }}", [np.array(2.0)], y,
              parameters=[3]))),
    value("ChannelScale", "", [IMAGES, OTHER], IMAGES * OTHER[:, None]),
    value("Flip", "", [IMAGES], IMAGES[..., ::-1]),
    value("Flip", "flip_param { flip_height: true }", [IMAGES], IMAGES[..., ::-1, ::-1]),
    value("Flip", "flip_param { flip_width: false }", [IMAGES], IMAGES),
    # What is less than the margin stays.
    value("LabelSpecificAdd", "label_specific_add_param { bias: -0.25 }",
          [np.array([[0.5, 0.2], [0.5, 0.2], [0.1, 0.4]]), np.array([0.0, 1, 1])],
          np.array([[0.25, 0.2], [0.5, 0.2], [0.1, 0.15]]), phase="TRAIN"),
    value("LabelSpecificAdd", "label_specific_add_param { bias: -0.25 }", [X, OWN], X),
    *(value("LabelSpecificRescale",
            f"label_specific_rescale_param {{ negative_weight: 0.25 {text} }}", [X, OWN],
            rescaled(X, change) if phase == "TRAIN" or "test" in text else X,
            name=f"{text} {phase}", phase=phase)
      for text, change in (
          ("positive_weight: 0.5", lambda x: 0.5 * x),
          ("positive_weight: 0.5 for_ip: true", lambda x: np.where(x > 0, 0.5 * x, x)),
          ("positive_weight: 0.5 bias_fix: true rescale_test: true", lambda x: 0.5 * x + 0.5),
          ("positive_weight: 2 power_on_positive: true rescale_test: true",
           lambda x: np.sign(x) * x * x),
          ("positive_weight_base: 3", lambda x: 3 * x),
      ) for phase in ("TRAIN", "TEST")),
    value("BoxAnnotatorOHEM", "box_annotator_ohem_param { roi_per_img: 2 ignore_label: -1 }",
          [np.array([[0, 0, 0, 9, 9], [1, 0, 0, 9, 9], [0, 1, 1, 8, 8], [0, 2, 2, 7, 7]]),
           np.array([1.0, 0.5, 3, 2]), np.arange(5.0, 9), np.arange(8.0).reshape(4, 2) + 1],
          np.array([[-1], [6], [7], [8]]), np.array([[0, 0], [3, 4], [5, 6], [7, 8]])),
    # Of a ramp points are their own coordinates, counted from the first element's centre; the
    # second region has no extent.
    value("ROIAlign", "roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.5 }",
          [RAMP, np.array([[0, 2, 1, 10, 13], [0, 2, 2, 2, 9]])],
          np.stack([np.tile([0.5, 2.5, 4.5], (1, 4, 1)), np.zeros((1, 4, 3))])),
    value("ROIWarping", "roi_warping_param { pooled_h: 2 pooled_w: 4 spatial_scale: 0.5 }",
          [RAMP, np.array([[0, 2, 1, 10, 13], [0, 5, 2, 5, 9]])],
          np.stack([np.tile([1.0, 2, 3, 4], (1, 2, 1)), np.full((1, 2, 4), 3.0)])),
    value("MaskResize", "mask_resize_param { output_height: 2 output_width: 2 }", [MASK],
          np.array([[[[0, 1.5], [3, 4.5]]], [[[6, 7.5], [9, 10.5]]]])),
    value("MaskResize", "mask_resize_param { output_height: 2 output_width: 12 }", [MASK],
          np.concatenate([MASK[..., :1] + np.arange(0, 2.1, 0.25), LAST, LAST, 0 * LAST], axis=3)),
    value("MaskPooling", "", [np.ones((2, 4, 2, 3)), MASK], np.ones((2, 4, 2, 3)) * MASK),
    value("BilinearInterpolation", "", [np.arange(6.0).reshape(1, 1, 2, 3), np.zeros((1, 4, 3, 5))],
          np.add.outer([0, 1.5, 3], [0, 0.5, 1, 1.5, 2])[None, None]),
    *(value("ConvolutionDepthwise",
            f"convolution_param {{ kernel_h: 1 kernel_w: 3 bias_term: false {text} }}", [IMAGES],
            sum(IMAGES[..., i : i + 3] * FILTER[0, 0, 0, i] for i in range(3)), parameters=[FILTER])
      for text in ("", "num_output: 7 group: 2")),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "values", "expected", "options"), VALUES)
def test_values(type_, values, expected, options) -> None:
    found = run(type_, values, **options)
    for y, wanted in zip(found if len(expected) > 1 else [found], expected, strict=True):
        assert np.shape(y) == np.shape(wanted)
        np.testing.assert_allclose(y, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("type_", "settings", "shape"),
    [
        ("Pooling", "kernel_size: 3 stride: 2", (3, 4)),
        ("Pooling", "kernel_size: 3 stride: 2 round_mode: FLOOR", (3, 3)),
        ("Pooling", "kernel_size: 2 stride: 2 pad: 1", (4, 5)),
        ("Pooling", "kernel_size: 3 stride: 3 pad: 2", (3, 4)),
        ("Pooling", "kernel_h: 7 kernel_w: 1 stride_h: 1 stride_w: 1", (1, 8)),
        ("Pooling", "kernel_h: 9 kernel_w: 9 stride_h: 3 stride_w: 2", (1, 1)),
        ("Pooling", "global_pooling: true", (1, 1)),
        ("Upsample", "scale: 3", (21, 24)),
        ("Upsample", "pad_out_h: true", (13, 16)),
        ("Upsample", "scale_h: 1 scale_w: 2 pad_out_w: true", (7, 15)),
        ("Upsample", "upsample_h: 11 upsample_w: 13", (11, 13)),
    ],
)
def test_extents(type_: str, settings: str, shape: tuple[int, int]) -> None:
    values = [np.zeros((1, 1, 7, 8))] * (2 if type_ == "Upsample" else 1)
    found = run(type_, values, f"{type_.lower()}_param {{ {settings} }}")
    assert found.shape == (1, 1, *shape)


def test_dropout_that_samples_in_tests_draws_anew_each_pass() -> None:
    settings = "dropout_param { dropout_ratio: 0.3 sample_weights_test: true }"
    passes = [run("Dropout", [np.ones((100, 200))], settings, passes=count) for count in (1, 2)]
    for y in passes:
        np.testing.assert_allclose(np.unique(y), [0, 1 / 0.7])
        assert abs(y.mean() - 1) < 0.02
    assert 0.4 < (passes[0] != passes[1]).mean() / (2 * 0.3 * 0.7) < 1.6


def test_accuracy_per_class() -> None:
    scores = np.eye(4)[[0, 1, 2, 0, 2]]
    label = np.array([0.0, 1, 1, 3, 2])
    y, classes = run("Accuracy", [scores, label], tops=2)
    assert y == pytest.approx(3 / 5)
    np.testing.assert_allclose(classes, [1, 0.5, 1, 0])
    y, classes = run(
        "Accuracy", [scores, label], "accuracy_param { ignore_label: 1 top_k: 1 }", tops=2
    )
    assert y == pytest.approx(2 / 3)
    np.testing.assert_allclose(classes, [1, 0, 1, 0])
    y, classes = run(
        "Accuracy", [1 - scores, label], "accuracy_param { min_is_better: true }", tops=2
    )
    assert y == pytest.approx(3 / 5)
    np.testing.assert_allclose(classes, [1, 0.5, 1, 0])


@pytest.mark.parametrize("wrong", [-1.0, 4.0])
@pytest.mark.parametrize(
    "type_", ["SoftmaxWithLoss", "HingeLoss", "MultinomialLogisticLoss", "InfogainLoss"]
)
def test_a_computed_label_out_of_range_makes_the_loss_nan(type_: str, wrong: float) -> None:
    values = {"x": random.random((3, 4)), "half": np.array([0.0, wrong / 2, 0.5])}
    if type_ == "InfogainLoss":
        values["m"] = np.eye(4)
    text = f"""layer {{ name: "twice" type: "Power" bottom: "half" top: "label"
        power_param {{ scale: 2 }} }}
    layer {{ name: "op" type: "{type_}" bottom: "x" bottom: "label" top: "loss"
        {'bottom: "m"' if "m" in values else ""} }}"""
    net = build(inputs({name: each.shape for name, each in values.items()}) + text, Cpu())
    for label, good in ((wrong, False), (2, True)):
        values["half"][1] = label / 2
        for name, value in values.items():
            net.write(name, value)
        net.forward()
        assert np.isfinite(net.read("loss")) == good


def test_infogain_with_the_identity_is_the_softmax_loss(tmp_path) -> None:
    path = tmp_path / "identity.binaryproto"
    path.write_bytes(array_to_blob(np.eye(4, dtype=np.float32)).SerializeToString())
    x, label = random.standard_normal((5, 4, 3)), random.integers(4, size=(5, 3)).astype(float)
    ignore = "loss_param { ignore_label: 2 }"
    found = run("InfogainLoss", [x, label], f'{ignore} infogain_loss_param {{ source: "{path}" }}')
    assert found == pytest.approx(run("SoftmaxWithLoss", [x, label], ignore))


def test_filter_follows_its_selector() -> None:
    text = inputs({"x": (4, 3), "s": (4,)}) + (
        'layer { name: "op" type: "Filter" bottom: "x" bottom: "s" top: "y" }'
        'layer { name: "sum" type: "Reduction" bottom: "y" top: "sum" '
        "reduction_param { axis: 1 } }"
    )
    net = build(text, Cpu(), inspectable=True)
    x = random.standard_normal((4, 3)).astype(np.float32)
    net.write("x", x)
    for selector in ([1, 0, 0, 2], [1, 1, 1, 1], [0, 1, 0, 0]):
        net.write("s", np.array(selector))
        net.forward()
        picked = x[np.flatnonzero(selector)]
        np.testing.assert_array_equal(net.read("y"), picked)
        np.testing.assert_allclose(net.read("sum"), picked.sum(axis=1), rtol=1e-5)


def test_batch_norm_remembers_the_past_and_recalls_it() -> None:
    backend = Cpu(dtype="float64")
    text = inputs({"x": (6, 3, 2)}) + (
        'layer { name: "op" type: "BatchNorm" bottom: "x" top: "y" '
        "batch_norm_param { moving_average_fraction: 0.9 } }"
    )
    train = build(text, backend, phase="TRAIN")
    test = build(text, backend, phase="TEST", share=train)
    batches = random.standard_normal((3, 6, 3, 2)) * 2 + 1
    means, variances, weights = np.zeros((3, 1)), np.zeros((3, 1)), 0.0
    for x in batches:
        train.write("x", x)
        train.forward()
        mean, variance = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
        expected = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5)
        np.testing.assert_allclose(train.read("y"), expected)
        means = 0.9 * means + mean[:, None]
        variances = 0.9 * variances + variance[:, None] * 12 / 11
        weights = 0.9 * weights + 1
    test.write("x", batches[0])
    test.forward()
    expected = (batches[0] - means / weights) / np.sqrt(variances / weights + 1e-5)
    np.testing.assert_allclose(test.read("y"), expected, rtol=1e-5)


def test_lstm_carries_its_state_from_pass_to_pass() -> None:
    x, keep = random.standard_normal((6, 2, 3)), np.ones((6, 2))
    shapes = [(16, 3), (16,), (16, 4)]
    parameters = [random.standard_normal(shape) for shape in shapes]
    settings = "recurrent_param { num_output: 4 }"
    whole = run("LSTM", [x, keep], settings, parameters=parameters)
    # Two passes over the same half: the second begins where the first ended.
    twice = run("LSTM", [x[:3], keep[:3]], settings, parameters=parameters, passes=2)
    joined = np.concatenate([x[:3], x[:3]])
    again = run("LSTM", [joined, keep], settings, parameters=parameters)
    np.testing.assert_allclose(twice, again[3:])
    assert not np.allclose(twice, whole[3:])


def test_rnn_with_a_static_input() -> None:
    x, static = random.standard_normal((4, 2, 3)), random.standard_normal((2, 5))
    keep = np.array([[0.0, 0], [1, 1], [0, 1], [1, 1]])
    shapes = [(3, 3), (3,), (3, 5), (3, 3), (3, 3), (3,)]
    w_x, b_x, w_s, w_h, w_o, b_o = parameters = [random.standard_normal(s) for s in shapes]
    h, expected = np.zeros((2, 3)), []
    for step, kept in zip(x, keep, strict=True):
        h = np.tanh(step @ w_x.T + b_x + static @ w_s.T + (kept[:, None] * h) @ w_h.T)
        expected.append(np.tanh(h @ w_o.T + b_o))
    settings = "recurrent_param { num_output: 3 }"
    found = run("RNN", [x, keep, static], settings, parameters=parameters)
    np.testing.assert_allclose(found, expected)


def test_a_single_number_is_normalized() -> None:
    text = inputs({"x": (1, 1, 1, 1)}) + (
        'layer { name: "op" type: "LRN" bottom: "x" top: "y" lrn_param { local_size: 1 alpha: 3 } }'
    )
    net = build("force_backward: true " + text, Cpu(), phase="TRAIN")
    net.write("x", np.ones((1, 1, 1, 1)))
    net.forward()
    net.backward()
    assert net.read("y").item() == pytest.approx(4**-0.75)


@pytest.mark.parametrize(("size", "channels"), [(1, 2), (1, 17), (7, 17), (9, 33), (7, 32)])
def test_normalization_behind_a_convolution_does_not_depend_on_the_library(
    size: int, channels: int
) -> None:
    text = (
        inputs({"x": (1, 17, 11, 5)})
        + 'layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {'
        f" num_output: {channels} kernel_h: 1 kernel_w: 2 dilation: 3 pad: 1"
        ' weight_filler { type: "msra" } } }'
        'layer { name: "n" type: "LRN" bottom: "c" top: "n"'
        f" lrn_param {{ local_size: {size} alpha: 2 }} }}"
        'layer { name: "l" type: "Reduction" bottom: "n" top: "l" loss_weight: 1'
        " reduction_param { operation: SUMSQ } }"
    )
    nets = [build(text, Cpu(onednn=onednn), phase="TRAIN") for onednn in (True, False)]
    x = np.random.default_rng(1).standard_normal((1, 17, 11, 5))
    found = []
    for net in nets:
        net.write("x", x)
        net.forward()
        net.backward()
        found.append([net.backend.read(each.blob.diff) for each in net.parameters])
        assert net.loss() > 1
    for one, other in zip(*found, strict=True):
        assert error(one, other) < 1e-5


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_dropout_that_does_not_scale_in_training(phase) -> None:
    """Fast R-CNN's scale_train: false scales in testing instead."""
    x = random.standard_normal((400, 5)) + 5
    y = run("Dropout", [x], "dropout_param { dropout_ratio: 0.3 scale_train: false }", phase=phase)
    if phase == "TEST":
        np.testing.assert_allclose(y, 0.7 * x)
    else:
        kept = y != 0
        assert 0.6 < kept.mean() < 0.8
        np.testing.assert_allclose(y[kept], x[kept])


@pytest.mark.parametrize("channels", [7, 16, 18, 33])
def test_prelu_in_place_of_one_row(channels: int) -> None:
    """oneDNN gives the elements behind its last whole vector their slope twice."""
    x, slopes = -random.uniform(1, 2, (1, channels)), random.uniform(0.1, 0.9, channels)
    net = one_layer('type: "PReLU" top: "x"', {"x": x}, parameters=[slopes])
    np.testing.assert_allclose(net.read("x"), x * slopes, rtol=1e-6)


def test_a_bad_divisor_of_a_loss_is_refused() -> None:
    settings = "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: -1 }"
    with pytest.raises(UserError, match="pre_fixed_normalizer: is -1, but must be above 0"):
        run("SoftmaxWithLoss", [np.zeros((6, 4)), np.zeros(6)], settings)


@pytest.mark.gpu
def test_the_balanced_loss_on_a_gpu() -> None:
    from osucaffe.backends.cuda import Cuda

    text = 'type: "SigmoidCrossEntropyLoss" top: "y" loss_param { class_balance: 1.1 }'
    expected = Cpu(dtype="float64")
    nets = [
        one_layer(text, {"a": IMAGES, "b": EDGES}, backend, seeds={"y": np.float32(2)})
        for backend in (Cuda(), expected)
    ]
    for read in (lambda net: net.read("y"), lambda net: net.backend.read(net.blobs["a"].diff)):
        found, right = map(read, nets)
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
