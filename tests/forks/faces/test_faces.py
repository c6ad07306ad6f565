"""What the layers of nets for faces compute and learn, against plain NumPy, item by item."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from tests.layers.nets import gradient, layer, one_layer, parameter_gradient
from tests.layers.test_values import run
from tests.solvers.runs import parameters, solver

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


def test_a_loss_scale_changes_nothing() -> None:
    net = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 6 dim: 3 } } }
    layer { name: "l" type: "Input" top: "l" input_param { shape { dim: 6 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
      num_output: 3 weight_filler { type: "xavier" } } }
    layer { name: "c" type: "CenterLoss" bottom: "y" bottom: "l" top: "c" loss_weight: 0.25
      center_loss_param { num_output: 4 center_filler { type: "gaussian" } } }"""
    x, found = random.standard_normal((6, 3)), []
    for loss_scale in "none", "1024":
        training = solver("", net, loss_scale=loss_scale)
        training.net.write("x", x)
        training.net.write("l", np.array([0.0, 1, 1, 3, 1, 0]))
        training.step(3)
        found.append(parameters(training))
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value)


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


def test_a_weight_that_falls() -> None:
    text = """label_specific_rescale_param { positive_weight_base: 8 gamma: 1 power: 1
        positive_weight_min: 2.5 positive_weight_max: 3 }"""
    found = [
        run("LabelSpecificRescale", [np.ones((1, 2)), np.zeros(1)], text, tops=2, phase="TRAIN",
            passes=passes)[1][0]
        for passes in (1, 2, 3)
    ]  # fmt: skip
    assert found == pytest.approx([3, 8 / 3, 2.5])


N, K = 8, 5


def follower(given, settings: str = "", seeds=None):
    text = f'type: "GlobalLSEMargin" top: "y" top: "s" scale_param {{ {settings} }}'
    return one_layer(text, given, Cpu(dtype="float64"), phase="TRAIN", seeds=seeds)


def softened(row, own, scale):
    others = np.delete(row, own)
    return np.log(np.exp(scale * (others - others.max())).sum()) / scale + others.max()


def shifted(values, at):
    near = [v for v in values if abs(v - at) < 0.1]
    return np.mean(near) if near else shifted(values, np.mean(values))


@pytest.mark.parametrize("norms", [False, True])
def test_scores_and_margin(norms: bool) -> None:
    made, margin = None, 0.0
    for _ in range(3):
        x, label = random.uniform(-0.1, 0.1, (N, K)), random.integers(0, K, N)
        x[np.arange(N), label] = 0.7 + random.uniform(-0.02, 0.02, N)
        scales = random.uniform(5, 9, N) if norms else np.full(N, 10.0)
        given = {"x": x, "l": label} | ({"n": scales[:, None]} if norms else {})
        if made is None:
            made = follower(given, "filler { value: 12 } max_value: 10")
        else:
            for name, values in given.items():
                made.write(name, values)
            made.forward()
        own = x[np.arange(N), label]
        soft = [softened(*each) for each in zip(x, label, scales, strict=True)]
        gaps = own - soft
        if margin == 0:
            margin = gaps.mean()
            for _ in range(20):
                before, margin = margin, shifted(gaps, margin)
                if abs(margin - before) < 0.001:
                    break
        else:
            margin = 0.9 * margin + 0.1 * shifted(gaps, margin)
        wanted = x.copy()
        wanted[np.arange(N), label] -= max(margin, 0)
        np.testing.assert_allclose(made.read("y"), wanted * scales[:, None], rtol=1e-6)
        greatest = np.mean([np.delete(row, j).max() for row, j in zip(x, label, strict=True)])
        told = [scales.mean(), own.mean(), np.mean(soft), greatest, margin]
        np.testing.assert_allclose(made.read("s"), told, rtol=1e-6)


@pytest.mark.parametrize("norms", [False, True])
def test_gradients_of_a_margin_that_follows(norms: bool) -> None:
    """Of the margin as it stands."""
    x, dy, scales = (random.uniform(0.1, 0.9, (N, K)) for _ in range(3))
    given = {"x": x, "l": np.zeros(N)} | ({"n": scales[:, :1]} if norms else {})
    made = follower(given, seeds={"y": dy})
    y = made.read("y")
    scale = scales[:, :1] if norms else 30.0
    np.testing.assert_allclose(gradient(made, "x"), dy * scale)
    if norms:
        wanted = (dy * y).sum(axis=1, keepdims=True) / scale
        np.testing.assert_allclose(gradient(made, "n"), wanted)
    else:
        np.testing.assert_allclose(parameter_gradient(made), [(dy * y).sum() / 30])


MARGINS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3, "QUADRUPLE": 4}


def psi(cosine: float, margin: int) -> float:
    """(-1)^k cos(m angle) - 2k, the angle being in the k-th of m parts (Liu et al. 2017)."""
    angle = np.arccos(cosine)
    k = min(int(angle * margin / np.pi), margin - 1)
    return (-1) ** k * np.cos(margin * angle) - 2 * k


def net(margin: str, x, weight, label, settings="base: 5 gamma: 0.5 power: 2", seeds=None):
    text = f"""type: "MarginInnerProduct" top: "y" top: "lambda" margin_inner_product_param {{
        num_output: {len(weight)} type: {margin} {settings} }}"""
    given, backend = {"x": x, "l": label}, Cpu(dtype="float64")
    return one_layer(text, given, backend, phase="TRAIN", parameters=[weight], seeds=seeds)


@pytest.mark.parametrize("margin", list(MARGINS))
def test_scores_by_angles(margin: str) -> None:
    x, weight = random.standard_normal((9, 2, 3)), random.standard_normal((4, 6))
    label = random.integers(0, 4, 9).astype(float)
    unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    flat = x.reshape(9, 6)
    plain = flat @ unit.T
    length = np.linalg.norm(flat, axis=1)
    made = net(margin, x, weight, label)
    for iteration in (1, 2):
        mixture = 5 * (1 + 0.5 * iteration) ** -2
        assert made.read("lambda")[0] == pytest.approx(mixture)
        wanted = plain.copy()
        for i, j in enumerate(label.astype(int)):
            own = length[i] * psi(plain[i, j] / length[i], MARGINS[margin])
            wanted[i, j] = (own + mixture * plain[i, j]) / (1 + mixture)
        np.testing.assert_allclose(made.read("y"), wanted, rtol=1e-6)  # lambda is float32
        made.forward()
    kept = made.backend.read(layer(made, "op").parameters[0].data)
    np.testing.assert_allclose(kept, unit)
    least = net(margin, x, weight, label, "base: 5 gamma: 0.5 power: 2 lambda_min: 3 iteration: 9")
    assert least.read("lambda")[0] == 3


@pytest.mark.parametrize("margin", list(MARGINS))
def test_gradients_by_angles(margin: str) -> None:
    """Those of the fork: with the margin's part of that of x scaled to length 1 of its two numbers,
    and plain products' for the weights."""
    x, weight = random.standard_normal((7, 5)), random.standard_normal((4, 5))
    label, dy = random.integers(0, 4, 7).astype(float), random.standard_normal((7, 4))
    unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    made = net(margin, x, weight, label, seeds={"y": dy})
    mixture = float(made.read("lambda")[0])
    wanted = np.zeros(x.shape)
    for i, own in enumerate(label.astype(int)):
        length = np.linalg.norm(x[i])
        for j in range(4):
            if j != own:
                wanted[i] += dy[i, j] * unit[j]
                continue
            # |x| psi(cos) = f(p, r), p = x w, r = |x|: its slopes along w and x, by differences.
            p, step = x[i] @ unit[j], 1e-6
            m = MARGINS[margin]
            along = length * psi((p + step) / length, m) - length * psi((p - step) / length, m)
            longer, shorter = length + step, length - step
            back = longer * psi(p / longer, m) - shorter * psi(p / shorter, m)
            slopes = np.array([along, back / length]) / (2 * step)
            if margin == "SINGLE":
                slopes = np.array([1.0, 0])
            slopes /= np.linalg.norm(slopes)
            by_margin = slopes[0] * unit[j] + slopes[1] * x[i]
            wanted[i] += dy[i, j] * (by_margin + mixture * unit[j]) / (1 + mixture)
    np.testing.assert_allclose(gradient(made, "x"), wanted, atol=1e-6)
    np.testing.assert_allclose(parameter_gradient(made), dy.T @ x)
