"""What Lstm computes, against a loop over steps and sequences."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError

from ..nets import build, inputs, layer
from ..test_values import run

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
    text = inputs({"x": x.shape, "keep": (T * N,)})
    text += f'layer {{ name: "op" type: "Lstm" bottom: "x" bottom: "keep" top: "y" {TEXT} }}'
    net = build(text, Cpu(dtype="float64"))
    for blob, value in zip(layer(net, "op").parameters, weights, strict=True):
        net.backend.write(blob.data, value)
    states = np.zeros((N, H)), np.zeros((N, H))
    for keep in ([0, 0, 1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 1, 1, 0]):
        net.write("x", x)
        net.write("keep", np.array(keep))
        net.forward()
        wanted = loop(x, np.array(keep).reshape(T, N), weights, states)
        np.testing.assert_allclose(net.read("y"), wanted)


def test_gradients_of_gates_are_bounded() -> None:
    x, weights = drawn()
    found = []
    for most in (0, 1000, 0.01):
        text = inputs({"x": x.shape})
        settings = TEXT.replace("}", f"clipping_threshold: {most} }}")
        text += f'layer {{ name: "op" type: "Lstm" bottom: "x" top: "y" {settings} }}'
        net = build(f"{text} force_backward: true", Cpu(dtype="float64"), inspectable=True)
        for blob, value in zip(layer(net, "op").parameters, weights, strict=True):
            net.backend.write(blob.data, value)
        net.write("x", x)
        net.forward()
        net.backend.write(net.blobs["y"].diff, np.ones((T * N, H)))
        net.backward()
        found.append(net.backend.read(layer(net, "op").parameters[2].diff))
    np.testing.assert_allclose(found[1], found[0])
    assert np.abs(found[0]).max() > 0.5
    assert np.abs(found[2]).max() <= 0.01 * T * N + 1e-12
    assert np.abs(found[2]).max() > 0.01


def test_bad_settings_are_named() -> None:
    x = np.zeros((7, 3))
    with pytest.raises(UserError, match=r"lstm_param.batch_size: is 2, but x is"):
        run("Lstm", [x], TEXT)
    with pytest.raises(UserError, match=r"lstm_param.num_output: must be at least 1"):
        run("Lstm", [x])
