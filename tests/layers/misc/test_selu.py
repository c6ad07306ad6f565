"""What the layers of self-normalizing nets compute."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.errors import UserError

from ..test_values import run

random = np.random.default_rng(7)


def test_selu() -> None:
    x = random.standard_normal((3, 4))
    found = run("SeLu", [x])
    wanted = 1.050700987 * np.where(x > 0, x, 1.67326324 * (np.exp(x) - 1))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    other = run("SeLu", [x], "selu_param { lambda: 2 alpha: 0.5 }")
    np.testing.assert_allclose(other, np.where(x > 0, 2 * x, np.exp(x) - 1), rtol=1e-6)


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
    with pytest.raises(UserError, match=r"dropout_ratio: is 1.0"):
        run("SeLuDropout", [x], "selu_dropout_param { dropout_ratio: 1 }")
