"""What the kernels for Hopper GPUs have in common: which convolutions, on which GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.backends.cuda import filter_gradient, hopper, kernels, large
from osucaffe.backends.cuda.ways import Problem

X = (64, 96, 28, 28)
WINDOW = (1, 1), (1, 1), (1, 1)


def found(
    monkeypatch: pytest.MonkeyPatch,
    *,
    capability: str = kernels.HOPPER,
    precision: str = "tf32",
    x: tuple[int, ...] = X,
    window: Any = WINDOW,
) -> list[Any]:
    """What the large kernels say of a convolution."""
    monkeypatch.setattr(hopper, "compute_capability", lambda: capability)
    backend: Any = SimpleNamespace(precision=precision)
    problem = Problem(x, (96, 96, 3, 3), X, window, 1)
    return [large.large(backend, problem), filter_gradient.filter_gradient(backend, problem)]


def test_large_convolutions_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in found(monkeypatch):
        assert each.divisions
        assert each.work == 64 * 96 * 28 * 28 * 96 * 9


@pytest.mark.parametrize(
    "unfit",
    [
        {"capability": "80"},
        {"capability": "100"},
        {"precision": "fp32"},
        {"precision": "bf16"},
        {"x": X[:3]},
        {"window": ((2, 2), (1, 1), (1, 1))},
        {"window": ((1, 1), (1, 1), (1, 2))},
    ],
    ids=str,
)
def test_others_are_left_to_libraries(
    unfit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(monkeypatch, **unfit) == [None, None]
