"""What GlobalLSEMargin computes, against its definition, item by item."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.errors import UserError

from ..nets import build, inputs, layer
from ..test_values import run

random = np.random.default_rng(11)
N, K = 8, 5


def net(settings: str = "", norms: bool = False, inspectable: bool = True):
    shapes = {"x": (N, K), "l": (N,), **({"n": (N, 1)} if norms else {})}
    text = inputs(shapes) + 'layer { name: "op" type: "GlobalLSEMargin" bottom: "x" bottom: "l" '
    text += ('bottom: "n" ' if norms else "") + f'top: "y" top: "s" scale_param {{ {settings} }} }}'
    backend = Cpu(dtype="float64")
    return build(text + " force_backward: true", backend, phase="TRAIN", inspectable=inspectable)


def softened(row, own, scale):
    others = np.delete(row, own)
    return np.log(np.exp(scale * (others - others.max())).sum()) / scale + others.max()


def shifted(values, at):
    near = [v for v in values if abs(v - at) < 0.1]
    return np.mean(near) if near else shifted(values, np.mean(values))


@pytest.mark.parametrize("norms", [False, True])
def test_scores_and_margin(norms: bool) -> None:
    made = net("filler { value: 12 } max_value: 10", norms)
    margin = 0.0
    for _ in range(3):
        x, label = random.uniform(-0.1, 0.1, (N, K)), random.integers(0, K, N)
        x[np.arange(N), label] = 0.7 + random.uniform(-0.02, 0.02, N)
        scales = random.uniform(5, 9, N) if norms else np.full(N, 10.0)
        made.write("x", x)
        made.write("l", label)
        if norms:
            made.write("n", scales[:, None])
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
def test_gradients(norms: bool) -> None:
    """Of the margin as it stands."""
    made = net(norms=norms)
    x, dy, scales = (random.uniform(0.1, 0.9, (N, K)) for _ in range(3))
    made.write("x", x)
    made.write("l", np.zeros(N))
    if norms:
        made.write("n", scales[:, :1])
    made.forward()
    y, backend = made.read("y"), made.backend
    backend.write(made.blobs["y"].diff, dy)
    made.backward()
    scale = scales[:, :1] if norms else 30.0
    np.testing.assert_allclose(backend.read(made.blobs["x"].diff), dy * scale)
    if norms:
        wanted = (dy * y).sum(axis=1, keepdims=True) / scale
        np.testing.assert_allclose(backend.read(made.blobs["n"].diff), wanted)
    else:
        found = backend.read(layer(made, "op").parameters[0].diff)
        np.testing.assert_allclose(found, [(dy * y).sum() / 30])


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match=r"bottom\[0\]: has shape \(2, 3, 1\)"):
        run("GlobalLSEMargin", [np.zeros((2, 3, 1)), np.zeros(2)])
    with pytest.raises(UserError, match=r"bottom\[1\]: has shape \(3,\): it must hold 2"):
        run("GlobalLSEMargin", [np.zeros((2, 3)), np.zeros(3)])
