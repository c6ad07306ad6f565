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


def test_pooling_mask_tells_where_the_maximum_stood() -> None:
    x = random.standard_normal((2, 3, 5, 6))
    y, mask = run("Pooling", [x], "pooling_param { kernel_size: 3 stride: 2 }", tops=2)
    flat = x.reshape(2, 3, 30)
    found = np.take_along_axis(flat, mask.reshape(2, 3, -1).astype(int), axis=2)
    np.testing.assert_array_equal(found.reshape(y.shape), y)
    np.testing.assert_array_equal(y[:, :, 0, 0], x[:, :, :3, :3].max(axis=(2, 3)))


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ("kernel_size: 3 stride: 2", (3, 4)),
        ("kernel_size: 3 stride: 2 round_mode: FLOOR", (3, 3)),
        ("kernel_size: 2 stride: 2 pad: 1", (4, 5)),
        ("kernel_size: 3 stride: 3 pad: 2", (3, 4)),
        ("kernel_h: 7 kernel_w: 1 stride_h: 1 stride_w: 1", (1, 8)),
        ("kernel_h: 9 kernel_w: 9 stride_h: 3 stride_w: 2", (1, 1)),
        ("global_pooling: true", (1, 1)),
    ],
)
def test_pooling_extents(settings: str, shape: tuple[int, int]) -> None:
    x = random.standard_normal((1, 1, 7, 8))
    assert run("Pooling", [x], f"pooling_param {{ {settings} }}").shape == (1, 1, *shape)


def test_stochastic_pooling_in_test_is_the_expectation() -> None:
    x = random.random((2, 3, 4, 4))
    y = run("Pooling", [x], "pooling_param { pool: STOCHASTIC kernel_size: 4 }")
    expected = (x * x).sum(axis=(2, 3)) / x.sum(axis=(2, 3))
    np.testing.assert_allclose(y[:, :, 0, 0], expected)


def test_dropout_keeps_the_mean() -> None:
    y = run("Dropout", [np.ones((100, 200))], "dropout_param { dropout_ratio: 0.3 }", phase="TRAIN")
    np.testing.assert_allclose(np.unique(y), [0, 1 / 0.7])
    assert abs(y.mean() - 1) < 0.02


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


def test_softmax_loss_gives_the_probabilities_too() -> None:
    x, label = random.standard_normal((5, 4, 3)), random.integers(4, size=(5, 3)).astype(float)
    loss, probability = run("SoftmaxWithLoss", [x, label], tops=2)
    np.testing.assert_allclose(probability, softmax(x, 1))
    picked = np.take_along_axis(softmax(x, 1), label[:, None].astype(int), axis=1)
    assert loss == pytest.approx(-np.log(picked).mean())


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


def test_contrastive_loss_of_both_forms() -> None:
    a, b, similar = random.random((6, 3)), random.random((6, 3)), np.array([1.0, 0, 0, 1, 0, 0])
    distance = np.sqrt(((a - b) ** 2).sum(axis=1))
    for legacy, apart in ((False, np.maximum(0.9 - distance, 0) ** 2),
                          (True, np.maximum(0.9 - distance**2, 0))):  # fmt: skip
        settings = f"margin: 0.9 legacy_version: {str(legacy).lower()}"
        found = run("ContrastiveLoss", [a, b, similar], f"contrastive_loss_param {{ {settings} }}")
        expected = np.where(similar == 1, distance**2, apart).sum() / 12
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("values", [False, True])
def test_argmax_without_and_with_axis(values: bool) -> None:
    x = random.standard_normal((2, 3, 4))
    param = f"argmax_param {{ top_k: 2 out_max_val: {str(values).lower()} %s }}"
    order = np.argsort(-x.reshape(2, 12), axis=1)[:, :2]
    picked = np.take_along_axis(x.reshape(2, 12), order, axis=1)
    expected = np.stack([order, picked], axis=1) if values else order[:, None]
    np.testing.assert_array_equal(run("ArgMax", [x], param % ""), expected)
    order = np.argsort(-x, axis=1)[:, :2]
    expected = np.take_along_axis(x, order, axis=1) if values else order
    np.testing.assert_array_equal(run("ArgMax", [x], param % "axis: 1"), expected)


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


def test_pixel_shuffle_interleaves_channels() -> None:
    x = random.standard_normal((2, 8, 3, 4))
    y = run("PixelShuffle", [x])
    assert y.shape == (2, 2, 6, 8)
    for row in range(2):
        for column in range(2):
            np.testing.assert_array_equal(y[:, :, row::2, column::2], x[:, row * 2 + column :: 4])


def test_layer_norm() -> None:
    x, scale, bias = random.standard_normal((5, 6)), random.random(6), random.random(6)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    found = run("LayerNorm", [x], parameters=[scale, bias])
    np.testing.assert_allclose(found, expected * scale + bias)


def test_gelu() -> None:
    x = np.linspace(-4, 4, 41)
    expected = [0.5 * each * (1 + math.erf(each / math.sqrt(2))) for each in x]
    np.testing.assert_allclose(run("GELU", [x]), expected, rtol=1e-6, atol=1e-7)


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


def test_scale_bias_is_batch_norm_with_a_scale_layer() -> None:
    x, scale, bias = random.standard_normal((6, 3)), random.random(3), random.random(3)
    plain = run("BatchNorm", [x], phase="TRAIN")
    settings = "batch_norm_param { scale_bias: true }"
    zero = np.zeros(3)
    found = run("BatchNorm", [x], settings, phase="TRAIN", parameters=[zero, zero, 0, scale, bias])
    np.testing.assert_allclose(found, plain * scale + bias)


def test_spp_is_poolings_behind_one_another() -> None:
    x = random.standard_normal((2, 3, 6, 8))
    parts = [x.reshape(2, 3, n, 6 // n, n, 8 // n).max(axis=(3, 5)).reshape(2, -1) for n in (1, 2)]
    found = run("SPP", [x], "spp_param { pyramid_height: 2 }")
    np.testing.assert_array_equal(found, np.concatenate(parts, axis=1))


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


@pytest.mark.parametrize(("type_", "wanted"), [("Scale", 6), ("Bias", 5)])
def test_a_single_number_is_scaled(type_: str, wanted: float) -> None:
    two, three = np.array(2.0), np.array(3.0)
    assert run(type_, [two, three]) == wanted
    assert run(type_, [two], f"{type_.lower()}_param {{ num_axes: 0 }}", parameters=[3]) == wanted


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


def test_a_loss_divided_by_what_the_net_says() -> None:
    x, labels = random.standard_normal((6, 4)), random.integers(4, size=6).astype(float)
    wanted = -np.log(softmax(x, 1)[np.arange(6), labels.astype(int)]).sum() / 7
    settings = "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 7 }"
    assert run("SoftmaxWithLoss", [x, labels], settings) == pytest.approx(wanted)
    with pytest.raises(UserError, match="pre_fixed_normalizer: is -1, but must be above 0"):
        run("SoftmaxWithLoss", [x, labels], settings.replace("7", "-1"))


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


def test_weights_of_length_one() -> None:
    x, weight, bias = random.standard_normal((4, 6)), random.standard_normal((3, 6)), np.ones(3)
    settings = "inner_product_param { num_output: 3 normalize: true }"
    y = run("InnerProduct", [x], settings, parameters=(weight, bias))
    unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    np.testing.assert_allclose(y, x @ unit.T + 1, rtol=1e-5, atol=1e-6)  # sums of numbers up to 3


def test_divergence_of_distributions() -> None:
    p, q = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), np.array([[1.0, 0, 0], [0.2, 0.3, 0.5]])
    m = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.nan_to_num(p * np.log(p / m)) + np.nan_to_num(q * np.log(q / m))
    assert run("JSDLoss", [p, q]) == pytest.approx(parts.sum() / 2 / 2)
    assert run("JSDLoss", [q, q]) == pytest.approx(0)


def test_dice_coefficients() -> None:
    a, b = random.random((3, 2, 2)), random.random((3, 2, 2))
    pairs = zip(a, b, strict=True)
    shares = [(2 * (x * y).sum() + 1) / ((x * x).sum() + (y * y).sum() + 1) for x, y in pairs]
    assert run("DiceCoefLoss", [a, b]) == pytest.approx(1 - np.mean(shares))


@pytest.mark.parametrize("channels", [7, 16, 18, 33])
def test_prelu_in_place_of_one_row(channels: int) -> None:
    """oneDNN gives the elements behind its last whole vector their slope twice."""
    x, slopes = -random.uniform(1, 2, (1, channels)), random.uniform(0.1, 0.9, channels)
    net = one_layer('type: "PReLU" top: "x"', {"x": x}, parameters=[slopes])
    np.testing.assert_allclose(net.read("x"), x * slopes, rtol=1e-6)
