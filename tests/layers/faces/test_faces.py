"""What the layers of nets for faces compute, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu

from ..nets import gradient, one_layer, parameter_gradient, refuse
from ..test_values import run

random = np.random.default_rng(3)


def test_centers_follow_their_classes() -> None:
    x, centers = random.standard_normal((6, 3)), random.standard_normal((4, 3))
    label = np.array([0.0, 1, 1, 3, 1, 0])
    text = """type: "CenterLoss" top: "loss" loss_weight: 0.1 center_loss_param { num_output: 4 }"""
    given = {"x": x, "l": label}
    net = one_layer(
        text, given, Cpu(dtype="float64"), phase="TRAIN", parameters=[centers], seeds={}
    )
    distance = x - centers[label.astype(int)]
    assert net.read("loss") == pytest.approx((distance**2).sum() / 12)
    wanted = np.zeros((4, 3))
    for j in range(4):
        own = distance[label == j]
        wanted[j] = -own.sum(axis=0) / (1 + len(own))
    np.testing.assert_allclose(parameter_gradient(net), wanted)
    np.testing.assert_allclose(gradient(net, "x"), 0.1 * distance / 6)


def test_a_scale_for_all_channels_of_a_place() -> None:
    x, scale = random.standard_normal((2, 3, 4, 5)), random.standard_normal((2, 20))
    np.testing.assert_allclose(run("ChannelScale", [x, scale]), x * scale.reshape(2, 1, 4, 5))
    refuse('type: "ChannelScale" top: "y"', [x.shape, (2, 3)], r"bottom\[1\]: has shape \(2, 3\)")


def test_a_margin_for_the_own_class() -> None:
    x, label = np.array([[0.5, 0.2, 0.9], [0.5, 0.2, 0.9], [0.1, 0.3, 0.4]]), np.array([0.0, 1, 2])
    text = "label_specific_add_param { bias: -0.25 }"
    wanted = x.copy()
    wanted[0, 0], wanted[2, 2] = 0.25, 0.15  # 0.2 is less than the margin
    np.testing.assert_allclose(run("LabelSpecificAdd", [x, label], text, phase="TRAIN"), wanted)
    np.testing.assert_allclose(run("LabelSpecificAdd", [x, label], text), x)


def test_a_margin_that_grows() -> None:
    x = np.full((1, 2), 0.75)
    text = """type: "LabelSpecificAdd" top: "y" top: "margin" label_specific_add_param {
        bias_base: 0 bias_gamma: -0.125 bias_min: -0.25 bias_max: 0 iteration: 1 }"""
    net, found = one_layer(text, {"x": x, "l": np.zeros(1)}, phase="TRAIN"), []
    for _ in range(3):
        assert net.read("y")[0, 0] == 0.75 + net.read("margin")[0]
        found.append(float(net.read("margin")[0]))
        net.write("x", x)
        net.forward()
    assert found == [-0.125, -0.25, -0.25]
    assert run("LabelSpecificAdd", [x, np.zeros(1)], tops=2)[1] == 0


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ("positive_weight: 0.5", lambda x: 0.5 * x),
        ("positive_weight: 0.5 for_ip: true", lambda x: np.where(x > 0, 0.5 * x, x)),
        ("positive_weight: 0.5 bias_fix: true", lambda x: 0.5 * x + 0.5),
        ("positive_weight: 2 power_on_positive: true", lambda x: np.sign(x) * x * x),
        ("positive_weight_base: 3", lambda x: 3 * x),
    ],
)
def test_a_weight_for_the_own_class(settings: str, own) -> None:
    x, label = random.standard_normal((5, 4)), np.array([0.0, 1, 2, 3, 1])
    wanted = 0.25 * x
    rows = np.arange(5)
    wanted[rows, label.astype(int)] = own(x[rows, label.astype(int)])
    text = f"label_specific_rescale_param {{ negative_weight: 0.25 {settings} }}"
    found = run("LabelSpecificRescale", [x, label], text, phase="TRAIN")
    np.testing.assert_allclose(found, wanted)
    np.testing.assert_allclose(run("LabelSpecificRescale", [x, label], text), x)
    if "base" not in settings:
        tested = text.replace("{", "{ rescale_test: true")
        np.testing.assert_allclose(run("LabelSpecificRescale", [x, label], tested), wanted)


def test_a_weight_that_falls() -> None:
    text = """label_specific_rescale_param { positive_weight_base: 8 gamma: 1 power: 1
        positive_weight_min: 2.5 positive_weight_max: 3 }"""
    found = [
        run("LabelSpecificRescale", [np.ones((1, 2)), np.zeros(1)], text, tops=2, phase="TRAIN",
            passes=passes)[1][0]
        for passes in (1, 2, 3)
    ]  # fmt: skip
    assert found == pytest.approx([3, 8 / 3, 2.5])


def test_mirror_images() -> None:
    x = random.standard_normal((2, 3, 4, 5))
    np.testing.assert_array_equal(run("Flip", [x]), x[..., ::-1])
    both = run("Flip", [x], "flip_param { flip_height: true }")
    np.testing.assert_array_equal(both, x[..., ::-1, ::-1])
    still = run("Flip", [x], "flip_param { flip_width: false }")
    np.testing.assert_array_equal(still, x)
