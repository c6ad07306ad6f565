"""Gradients of a blob that several read are added by those who compute them, where they can."""

from __future__ import annotations

from typing import Any

import pytest

from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Call, Tensor
from osucaffe.graph.passes.sums import add_gradients

from .test_fusion import names, tensors

ADDS = {"max_pooling_backward", "average_pooling_backward"}
WINDOW: dict[str, Any] = {"kernel": [3, 3], "stride": [1, 1], "pad": [1, 1]}


def backward(
    terms: int = 2, coefficients: list[float] | None = None, between: str = "", **more: Any
) -> tuple[list[Call], list[Tensor]]:
    """A pooling's gradient, then other terms (the third is a pooling's, too), and their sum."""
    dy, index, other, *xs, dx, mask = tensors(5 + terms)
    program = Program()
    program.enter("pool", 3)
    program.max_pooling_backward(dy, index, xs[0], **WINDOW)
    program.enter("others", 2)
    if between == "dy":
        program.copy(other, dy)
    if between == "dx":
        program.copy(xs[0], other)
    program.copy(other, xs[1])
    if terms > 2:
        program.average_pooling_backward(other, xs[2], **WINDOW)
    program.enter("split", 1)
    program.sum(xs, dx, coefficients=coefficients)
    program.calls[-1].reads |= {"relu_output": mask} if more.get("masked") else {}
    return program.calls, [dy, *xs, dx, mask]


@pytest.mark.parametrize("masked", [False, True])
def test_pooling_adds_in_the_place_of_the_sum(masked: bool) -> None:
    calls, [_, _, copied, dx, mask] = backward(masked=masked)
    add_gradients([[], calls], ADDS)
    assert names(calls) == ["copy", "max_pooling_backward"]
    assert calls[1].reads["addend"] is copied
    assert calls[1].reads.get("relu_output") is (mask if masked else None)
    assert calls[1].writes["dx"] is dx
    assert calls[1].position == 1
    assert names(calls[1].fused) == ["sum"]


def test_several_add_one_after_the_other() -> None:
    calls, [_, first, second, _, dx, mask] = backward(3, masked=True)
    add_gradients([[], calls], ADDS)
    assert names(calls) == ["copy", "max_pooling_backward", "average_pooling_backward"]
    assert calls[1].reads["addend"] is second
    assert calls[2].reads["addend"] is calls[1].writes["dx"] is first
    assert calls[2].writes["dx"] is dx
    assert ["relu_output" in call.reads for call in calls] == [False, False, True]
    assert calls[2].reads["relu_output"] is mask


def test_what_cannot_add_leaves_a_sum() -> None:
    calls, [_, first, second, third, *_] = backward(3)
    add_gradients([[], calls], {"max_pooling_backward"})
    assert names(calls)[-2:] == ["max_pooling_backward", "sum"]
    assert calls[-2].reads["addend"] is second
    assert calls[-1].reads["xs"] == [first, third]


@pytest.mark.parametrize(
    ("given", "adds"),
    [
        ({}, set()),
        ({"coefficients": [1.0, 2.0]}, ADDS),
        ({"between": "dy"}, ADDS),  # what it reads is another thing later
        ({"between": "dx"}, ADDS),  # another reads what it makes
    ],
)
def test_sums_that_stay(given: dict[str, Any], adds: set[str]) -> None:
    calls, _ = backward(**given)
    before = names(calls)
    add_gradients([[], calls], adds)
    assert names(calls) == before
