"""Gradients of a blob that several read are added by those who compute them, where they can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from osucaffe.backends.primitives import Program
from osucaffe.backends.primitives.recording import Primitive
from osucaffe.backends.tensor import Tensor
from osucaffe.graph.passes.sums import add_gradients

from .test_fusion import names, tensors


def adding(*names: str) -> Callable[[Primitive], bool]:
    """Whether a call is of one of these primitives."""
    return lambda call: call.name in names


ADDS = adding("max_pooling_backward", "average_pooling_backward")
WINDOW: dict[str, Any] = {"kernel": [3, 3], "stride": [1, 1], "pad": [1, 1]}


def backward(
    terms: int = 2, coefficients: list[float] | None = None, between: str = "", **more: Any
) -> tuple[list[Any], list[Tensor]]:
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
    setattr(program.calls[-1], "relu_output", mask if more.get("masked") else None)  # noqa: B010
    return program.calls, [dy, *xs, dx, mask]


@pytest.mark.parametrize("masked", [False, True])
def test_pooling_adds_in_the_place_of_the_sum(masked: bool) -> None:
    calls, [_, _, copied, dx, mask] = backward(masked=masked)
    add_gradients(calls, ADDS)
    assert names(calls) == ["copy", "max_pooling_backward"]
    assert calls[1].addend is copied
    assert calls[1].relu_output is (mask if masked else None)
    assert calls[1].dx is dx
    assert calls[1].position == 1
    assert names(calls[1].fused) == ["sum"]


def test_several_add_one_after_the_other() -> None:
    calls, [_, first, second, _, dx, mask] = backward(3, masked=True)
    add_gradients(calls, ADDS)
    assert names(calls) == ["copy", "max_pooling_backward", "average_pooling_backward"]
    assert calls[1].addend is second
    assert calls[2].addend is calls[1].dx is first
    assert calls[2].dx is dx
    assert [call.relu_output is None for call in calls[1:]] == [True, False]
    assert calls[2].relu_output is mask


def test_what_cannot_add_leaves_a_sum() -> None:
    calls, [_, first, second, third, *_] = backward(3)
    add_gradients(calls, adding("max_pooling_backward"))
    assert names(calls)[-2:] == ["max_pooling_backward", "sum"]
    assert calls[-2].addend is second
    assert calls[-1].xs == [first, third]


@pytest.mark.parametrize(
    ("given", "adds"),
    [
        ({}, adding()),
        ({"coefficients": [1.0, 2.0]}, ADDS),
        ({"between": "dy"}, ADDS),  # what it reads is another thing later
        ({"between": "dx"}, ADDS),  # another reads what it makes
    ],
)
def test_sums_that_stay(given: dict[str, Any], adds: Callable[[Primitive], bool]) -> None:
    calls, _ = backward(**given)
    before = names(calls)
    add_gradients(calls, adds)
    assert names(calls) == before


CONVOLVES = adding("convolution_backward_data")
ONE: dict[str, Any] = {"stride": [1, 1], "pad": [0, 0], "dilation": [1, 1], "group": 1}


def residual(*, relu: str = "of a sum", kept: str = "") -> tuple[list[Any], dict[str, Tensor]]:
    """A convolution's gradient, and the batch normalization before it, to whose output another
    gradient comes, too. kept: where the gradient behind the ReLU goes, which others read."""
    named = "dy", "w", "made", "skip", "x", "relu_output", "kept", "dx"
    given = dict(zip(named, tensors(len(named)), strict=True))
    program = Program()
    program.convolution_backward_data(given["dy"], given["w"], given["made"], **ONE)
    program.batch_norm_backward(
        given["x"], [given["made"]], *[None] * 5, given.get(kept), given["dx"], None, None,
        constant=False,
    )  # fmt: skip
    norm: Any = program.calls[1]
    norm.dys = [given["skip"], given["made"]]
    norm.relu = bool(relu)
    norm.relu_output = given["relu_output"] if relu == "of a sum" else None
    return program.calls, given


@pytest.mark.parametrize("kept", ["", "kept"])
def test_a_convolution_adds_and_masks_in_the_place_of_batch_normalization(kept: str) -> None:
    calls, given = residual(kept=kept)
    add_gradients(calls, CONVOLVES)
    convolution, norm = calls
    assert convolution.addend is given["skip"]
    assert convolution.relu_output is given["relu_output"]
    assert norm.dys == [convolution.dx] == [given[kept or "made"]]
    assert not norm.relu
    assert norm.relu_output is None
    assert norm.dy is None


def test_a_relu_that_follows_from_x_stays_with_batch_normalization() -> None:
    calls, given = residual(relu="of x", kept="kept")
    add_gradients(calls, CONVOLVES)
    convolution, norm = calls
    assert convolution.addend is given["skip"]
    assert convolution.relu_output is None
    assert norm.dys == [convolution.dx] == [given["made"]]
    assert norm.relu
    assert norm.dy is given["kept"]


@pytest.mark.parametrize("kept", ["skip", "dy"])
def test_what_would_be_overwritten_while_it_is_read_is_not_added(kept: str) -> None:
    calls, given = residual(kept=kept)
    add_gradients(calls, CONVOLVES)
    assert calls[0].addend is None
    assert calls[1].dys == [given["skip"], given["made"]]


@pytest.mark.parametrize("into", [0, 1])
def test_a_sum_in_the_place_of_a_term(into: int) -> None:
    """Of its own gradient, the convolution may take the place; what it adds, it would overwrite."""
    dy, w, dx, other = tensors(4)
    program = Program()
    program.convolution_backward_data(dy, w, dx, **ONE)
    program.sum([dx, other], (dx, other)[into])
    add_gradients(program.calls, CONVOLVES)
    assert names(program.calls) == ["convolution_backward_data", "sum"][: 1 + into]
    assert program.calls[0].addend is (None if into else other)


@pytest.mark.parametrize("maker", ["convolution", "pooling"])
def test_what_is_added_twice_stays_a_sum(maker: str) -> None:
    dy, w, index, dx, y = tensors(5)
    program = Program()
    if maker == "pooling":
        program.max_pooling_backward(dy, index, dx, **WINDOW)
    else:
        program.convolution_backward_data(dy, w, dx, **ONE)
    program.sum([dx, dx], y)
    before = names(program.calls)
    add_gradients(program.calls, lambda call: CONVOLVES(call) or ADDS(call))
    assert names(program.calls) == before


def test_a_gradient_that_is_seen_under_another_shape_is_not_added_to() -> None:
    dy, w, other, y = tensors(4)
    dx = Tensor((2, 4, 4), name="dx")
    program = Program()
    program.convolution_backward_data(dy, w, dx.view((1, 2, 4, 4)), **ONE)
    program.sum([dx, other], y)
    add_gradients(program.calls, CONVOLVES)
    assert names(program.calls) == ["convolution_backward_data", "sum"]
    assert program.calls[0].addend is None


def test_pooling_adds_rather_than_a_convolution() -> None:
    dy, w, index, first, second, dx = tensors(6)
    program = Program()
    program.convolution_backward_data(dy, w, first, **ONE)
    program.max_pooling_backward(dy, index, second, **WINDOW)
    program.sum([first, second], dx)
    add_gradients(program.calls, lambda call: CONVOLVES(call) or ADDS(call))
    assert names(program.calls) == ["convolution_backward_data", "max_pooling_backward"]
    assert program.calls[1].addend is first
