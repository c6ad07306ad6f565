"""What Lstm computes, against a loop over steps and sequences, and the layers of self-normalizing
nets."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from tests.layers.nets import one_layer, parameter_gradient, refuse
from tests.layers.test_values import run

random = np.random.default_rng(9)
T, N, I, H = 4, 2, 3, 5  # noqa: E741
TEXT = f"lstm_param {{ num_output: {H} batch_size: {N} }}"


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def loop(x, keep, weights, states):
    """h of each step; keep (T, N) may be None: then sequences begin with the first step."""
    wi, wh, b = weights
    found = np.zeros((T, N, H))
    h, c = states
    for t in range(T):
        for n in range(N):
            going = keep[t, n] if keep is not None else t > 0
            gates = wi @ x[t * N + n] + b + (wh @ h[n] if going else 0)
            i, f, o, g = np.split(gates, 4)
            c[n] = (sigmoid(f) * c[n] if going else 0) + sigmoid(i) * np.tanh(g)
            h[n] = sigmoid(o) * np.tanh(c[n])
        found[t] = h
    return found.reshape(T * N, H)


def drawn():
    shapes = (4 * H, I), (4 * H, H), (4 * H,)
    return random.standard_normal((T * N, I)), [random.standard_normal(s) for s in shapes]


def test_sequences_begin_with_the_pass() -> None:
    x, weights = drawn()
    found = run("Lstm", [x], TEXT, parameters=weights, passes=2)
    states = np.zeros((N, H)), np.zeros((N, H))
    np.testing.assert_allclose(found, loop(x, None, weights, states))


def test_states_live_on_where_a_bottom_says_so() -> None:
    x, weights = drawn()
    first = {"x": x, "keep": np.zeros(T * N)}
    text = f'type: "Lstm" top: "y" {TEXT}'
    net = one_layer(text, first, Cpu(dtype="float64"), parameters=weights)
    states = np.zeros((N, H)), np.zeros((N, H))
    for keep in ([0, 0, 1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 1, 1, 0]):
        net.write("keep", np.array(keep))
        net.write("x", x)
        net.forward()
        wanted = loop(x, np.array(keep).reshape(T, N), weights, states)
        np.testing.assert_allclose(net.read("y"), wanted)


def test_gradients_of_gates_are_bounded() -> None:
    x, weights = drawn()
    found = []
    for most in (0, 1000, 0.01):
        settings = TEXT.replace("}", f"clipping_threshold: {most} }}")
        seeds = {"y": np.ones((T * N, H))}
        text, cpu = f'type: "Lstm" top: "y" {settings}', Cpu(dtype="float64")
        net = one_layer(text, {"x": x}, cpu, parameters=weights, seeds=seeds)
        found.append(parameter_gradient(net, 2))
    np.testing.assert_allclose(found[1], found[0])
    assert np.abs(found[0]).max() > 0.5
    assert np.abs(found[2]).max() <= 0.01 * T * N + 1e-12
    assert np.abs(found[2]).max() > 0.01


def test_dropout_keeps_mean_and_variance() -> None:
    x = random.standard_normal((400, 500))
    y = run("SeLuDropout", [x], "selu_dropout_param { dropout_ratio: 0.2 }", phase="TRAIN")
    assert np.mean(y) == pytest.approx(0, abs=0.01)
    assert np.std(y) == pytest.approx(1, abs=0.01)
    alpha, scale = -1.75809934, (0.8 * (1 + 1.75809934**2 * 0.2)) ** -0.5
    beside = scale * alpha - scale * 0.2 * alpha
    dropped = np.abs(y - beside) < 1e-6
    assert dropped.mean() == pytest.approx(0.2, abs=0.005)
    kept = scale * x - scale * 0.2 * alpha
    np.testing.assert_allclose(y[~dropped], kept[~dropped], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(run("SeLuDropout", [x]), x)


def test_the_centre_is_cropped() -> None:
    x = random.standard_normal((2, 3, 7, 8))
    found = run("CropCenter", [x], "crop_center_param { crop_size: [0, 1, 2, 3] }")
    np.testing.assert_array_equal(found, x[:, 1:2, 2:5, 3:5])
    text = 'type: "CropCenter" top: "y" crop_center_param {{ crop_size: {} }}'
    refuse(text.format([2, 2]), [(4, 5, 6)], "crop_center_param.crop_size: needs 3 numbers")
    refuse(text.format([1, 3]), [(4, 6)], r"crop_size: \(1, 3\) leaves nothing of \(4, 6\)")


def test_gather_gives_its_bottoms() -> None:
    x, z = random.standard_normal((2, 3)), random.standard_normal(4)
    found = run("Gather", [x, z], tops=2)
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_array_equal(found[1], z)
    refuse('type: "Gather" top: "y"', [(2, 3), (4,)], "top: needs 2, one for each bottom")
