"""What MarginInnerProduct computes and learns, against its definition, item by item."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu

from ..nets import build, gradient, inputs, layer, one_layer, parameter_gradient, refuse

random = np.random.default_rng(8)
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
def test_scores(margin: str) -> None:
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
def test_gradients(margin: str) -> None:
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


def test_in_a_net_whose_tensors_share_memory() -> None:
    """Planned and inspectable runs learn the same, in several passes."""
    x, label = random.standard_normal((6, 5)).astype(np.float32), random.integers(0, 4, 6)
    text = inputs({"x": x.shape, "l": (6,)})
    text += """layer { name: "ip" type: "InnerProduct" bottom: "x" top: "f" inner_product_param {
        num_output: 8 weight_filler { type: "xavier" } } } layer { name: "op" bottom: "f" top: "y"
        type: "MarginInnerProduct" bottom: "l" margin_inner_product_param { num_output: 4
        type: QUADRUPLE weight_filler { type: "xavier" } } } layer { name: "loss" top: "loss"
        type: "SoftmaxWithLoss" bottom: "y" bottom: "l" }"""
    found = []
    for inspectable in (True, False):
        made = build(text, Cpu(), phase="TRAIN", inspectable=inspectable)
        made.write("x", x)
        made.write("l", label)
        for _ in range(2):
            made.forward()
            made.backward()
        weights = made.backend.read(layer(made, "op").parameters[0].data)
        np.testing.assert_allclose(np.linalg.norm(weights, axis=1), 1, rtol=1e-6)
        read = [made.backend.read(each.blob.diff) for each in made.parameters]
        found.append([made.loss(), *read])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_bad_input_is_named() -> None:
    text = 'type: "MarginInnerProduct" top: "y" '
    refuse(text, [(2, 3), (2,)], "num_output: must be at least 1")
    text += "margin_inner_product_param { num_output: 2 }"
    refuse(text, [(2, 3), (3,)], r"bottom\[1\]: has shape \(3,\): 2 items need")
