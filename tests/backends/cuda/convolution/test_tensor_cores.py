"""What the kernels for Hopper GPUs have in common: which convolutions, on which GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from osucaffe.backends.cuda.convolution.implicit_gemm import implicit_gemm
from osucaffe.backends.cuda.convolution.problem import Problem
from osucaffe.backends.cuda.convolution.wgrad_tf32 import weight_gradient

from ..devices import DEVICES, H200

X = (64, 96, 28, 28)
WINDOW = (1, 1), (1, 1), (1, 1)


def found(
    *, gpu: str = "H200", precision: str = "tf32", x: tuple[int, ...] = X, window: Any = WINDOW
) -> list[Any]:
    """What the kernels in tf32 say of a convolution."""
    problem = Problem(x, (96, 96, 3, 3), X, window, 1)
    return [kind(DEVICES[gpu], precision, problem) for kind in (implicit_gemm, weight_gradient)]


def test_large_convolutions_are_taken() -> None:
    for each in found():
        assert each.configs(H200)
        assert each.work == 64 * 96 * 28 * 28 * 96 * 9


@pytest.mark.parametrize(
    "unfit",
    [
        *({"gpu": name} for name in DEVICES if name != "H200"),
        {"precision": "fp32"},
        {"precision": "bf16"},
        {"x": X[:3]},
        {"window": ((2, 2), (1, 1), (1, 1))},
        {"window": ((1, 1), (1, 1), (1, 2))},
    ],
    ids=str,
)
def test_others_are_left_to_libraries(unfit: dict[str, Any]) -> None:
    assert found(**unfit) == [None, None]
