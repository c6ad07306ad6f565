"""What the kernels for Hopper GPUs have in common: which convolutions, on which GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from osucaffe.backends.cuda.convolution.implicit_gemm import as_implicit_gemm
from osucaffe.backends.cuda.convolution.problem import Problem
from osucaffe.backends.cuda.convolution.wgrad import filter_gradient

from ..devices import DEVICES, H200

X = (64, 96, 28, 28)
WINDOW = (1, 1), (1, 1), (1, 1)


def found(
    *, gpu: str = "H200", precision: str = "tf32", x: tuple[int, ...] = X, window: Any = WINDOW
) -> list[Any]:
    """What the kernels say of a convolution: for maps, for gradients of filters."""
    problem = Problem(x, (96, 96, 3, 3), X, window, 1)
    return [kind(DEVICES[gpu], precision, problem) for kind in (as_implicit_gemm, filter_gradient)]


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_large_convolutions_are_taken(precision: str) -> None:
    for each in found(precision=precision):
        assert each.configs(H200)
        assert each.work == 64 * 96 * 28 * 28 * 96 * 9


@pytest.mark.parametrize(
    "unfit",
    [
        *({"gpu": name} for name in DEVICES if name != "H200"),
        {"precision": "fp32"},
        {"x": X[:3]},
        {"window": ((2, 2), (1, 1), (1, 1))},
        {"window": ((1, 1), (1, 1), (1, 2))},
    ],
    ids=str,
)
def test_others_are_left_to_libraries(unfit: dict[str, Any]) -> None:
    for precision in {unfit.get("precision", "tf32"), unfit.get("precision", "bf16")}:
        assert found(**{**unfit, "precision": precision}) == [None, None]
