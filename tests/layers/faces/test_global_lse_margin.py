"""What GlobalLSEMargin computes, against its definition, item by item."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu

from ..nets import gradient, one_layer, parameter_gradient, refuse

random = np.random.default_rng(11)
N, K = 8, 5


def net(given, settings: str = "", seeds=None):
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
            made = net(given, "filler { value: 12 } max_value: 10")
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
def test_gradients(norms: bool) -> None:
    """Of the margin as it stands."""
    x, dy, scales = (random.uniform(0.1, 0.9, (N, K)) for _ in range(3))
    given = {"x": x, "l": np.zeros(N)} | ({"n": scales[:, :1]} if norms else {})
    made = net(given, seeds={"y": dy})
    y = made.read("y")
    scale = scales[:, :1] if norms else 30.0
    np.testing.assert_allclose(gradient(made, "x"), dy * scale)
    if norms:
        wanted = (dy * y).sum(axis=1, keepdims=True) / scale
        np.testing.assert_allclose(gradient(made, "n"), wanted)
    else:
        np.testing.assert_allclose(parameter_gradient(made), [(dy * y).sum() / 30])


def test_bad_input_is_named() -> None:
    text = 'type: "GlobalLSEMargin" top: "y"'
    refuse(text, [(2, 3, 1), (2,)], r"bottom\[0\]: has shape \(2, 3, 1\)")
    refuse(text, [(2, 3), (3,)], r"bottom\[1\]: has shape \(3,\): it must hold 2")
