"""The fusion of calls: which are folded into which, and which must not be."""

from __future__ import annotations

from typing import Any

import pytest

from osucaffe.backends.primitives import Program
from osucaffe.backends.primitives.formulas import Sum
from osucaffe.backends.primitives.movement import Split
from osucaffe.backends.primitives.normalization import LrnBackward
from osucaffe.backends.primitives.pooling import MaxPoolingBackward
from osucaffe.backends.primitives.recording import Primitive
from osucaffe.backends.tensor import Tensor
from osucaffe.graph.passes import fusion

FUSES = MaxPoolingBackward, LrnBackward, Split, Sum
POOLING: dict[str, Any] = {"kernel": [2, 2], "stride": [2, 2], "pad": [0, 0]}
LRN: dict[str, Any] = {"size": 5, "alpha": 1, "beta": 1, "k": 1, "within_channel": False}


def fuse(programs: list[list[Primitive]], fuses: Any) -> list[list[Primitive]]:
    """The fusions of ReLUs, one after the other, as the passes run them."""
    fusion.relu_before_pooling(programs)
    fusion.fuse_relu(programs[0])
    fusion.fuse_relu_backward(programs, fuses)
    return programs


def tensors(count: int) -> list[Tensor]:
    return [Tensor((1, 2, 4, 4), name=str(index)) for index in range(count)]


def names(calls: list[Primitive]) -> list[str]:
    return [call.name for call in calls]


def test_a_relu_joins_the_convolution_before_it() -> None:
    x, y, w = tensors(3)
    program = Program()
    settings: dict[str, Any] = {"stride": [1], "pad": [0], "dilation": [1], "group": 1}
    program.convolution(x, w, None, y, **settings)
    program.relu(y, y, slope=0.5)
    program.relu(y, x, slope=0.0)
    fused, _ = fuse([program.calls, []], ())
    assert names(fused) == ["convolution", "relu"]
    assert fused[0].relu == 0.5


def test_relu_backward_joins_the_call_that_wrote_its_gradient() -> None:
    x, dx, a, b = tensors(4)
    program = Program()
    program.sum([a, b], dx)
    program.relu_backward(x, dx, dx, slope=0.0)
    _, calls = fuse([[], program.calls], FUSES)
    assert names(calls) == ["sum"]
    assert calls[0].relu_output is x


def test_relu_backward_stays_where_it_cannot_join() -> None:
    x, dx, a, b = tensors(4)
    for fuses, slope, between, target in [
        ((), 0.0, False, dx), (FUSES, 0.1, False, dx), (FUSES, 0.0, True, dx),
        (FUSES, 0.0, False, b),
    ]:  # fmt: skip
        program = Program()
        program.sum([a, b], dx)
        if between:
            program.copy(dx, b)
        program.relu_backward(x, dx, target, slope=slope)
        _, calls = fuse([[], program.calls], fuses)
        assert names(calls)[-1] == "relu_backward"


def concatenated(
    slopes: tuple[float, float] = (0.0, 0.0), maker: str = "sum", behind: str = ""
) -> tuple[list[list[Primitive]], Tensor, Tensor]:
    """Programs in which ReLUs were concatenated, what they became, and its gradient."""
    a, b, da, db, other, *rest = tensors(7)
    y, dy = Tensor((1, 4, 4, 4), name="y"), Tensor((1, 4, 4, 4), name="dy")
    forward, backward = Program(), Program()
    forward.concat([a, b], y, axis=1)
    if behind == "y":
        forward.relu(y, y, slope=0.0)
    if maker == "sum":
        backward.sum([Tensor(y.shape), Tensor(y.shape)], dy)
    elif maker:
        backward.copy(Tensor(y.shape), dy)
    backward.split(dy, [da, db], axis=1)
    if behind == "dx":
        backward.sum([da, other], rest[0])
    backward.relu_backward(b, db, db, slope=slopes[1])
    backward.relu_backward(a, da, da, slope=slopes[0])
    if behind == "dy":
        backward.copy(dy, Tensor(dy.shape))
    return [forward.calls, backward.calls], y, dy


@pytest.mark.parametrize("fuses", [(), FUSES])
def test_one_relu_looks_at_what_was_concatenated(fuses: Any) -> None:
    programs, y, dy = concatenated((0.1, 0.1) if not fuses else (0.0, 0.0))
    fusion.relu_before_split(programs, fuses)
    assert names(programs[1]) == ["sum", "relu_backward", "split"]
    relu = programs[1][1]
    assert relu.x is y
    assert relu.dy is relu.dx is dy
    assert relu.slope == (0.0 if fuses else 0.1)
    fusion.fuse_relu_backward(programs, fuses)
    if fuses:
        assert names(programs[1]) == ["sum", "split"]
        assert programs[1][0].relu_output is y


@pytest.mark.parametrize(
    ("given", "fuses"),
    [
        ({"slopes": (0.0, 0.1)}, ()),
        ({"behind": "y"}, ()),  # the whole has changed
        ({"behind": "dx"}, ()),  # one reads its gradient before
        ({"behind": "dy"}, ()),  # one reads the whole gradient later
        ({"maker": ""}, ()),  # a loss's weight lies there for ever
        ({"maker": "copy"}, FUSES),  # it would be a pass of its own
    ],
)
def test_relus_of_parts_that_stay(given: dict[str, Any], fuses: Any) -> None:
    programs, _, _ = concatenated(**given)
    before = [names(calls) for calls in programs]
    fusion.relu_before_split(programs, fuses)
    assert [names(calls) for calls in programs] == before


@pytest.mark.parametrize("masked", [False, True])
def test_pooling_notes_positive_maxima_only_where_nothing_else_reads_them(masked: bool) -> None:
    x, y, index, dy, dx, mask = tensors(6)
    forward, backward = Program(), Program()
    forward.max_pooling(x, y, index, **POOLING)
    if masked:
        forward.copy(index, mask)
    backward.max_pooling_backward(dy, index, dx, **POOLING)
    backward.relu_backward(x, dx, dx, slope=0.0)
    first, second = fuse([forward.calls, backward.calls], FUSES)
    assert names(second) == ["max_pooling_backward", "relu_backward"][: 1 + masked]
    assert first[0].after_relu is not masked


def test_normalization_joins_only_the_relu_that_made_its_input() -> None:
    x, other, y, note, dy, dx = tensors(6)
    for relu, expected in (x, 1), (other, 2):
        program = Program()
        program.lrn_backward(x, y, dy, note, dx, **LRN)
        program.relu_backward(relu, dx, dx, slope=0.0)
        _, calls = fuse([[], program.calls], FUSES)
        assert len(calls) == expected


def test_each_part_of_a_split_has_its_own_relu() -> None:
    whole, a, b, da, db = tensors(5)
    program = Program()
    program.split(whole, [da, None, db], axis=1)
    program.relu_backward(b, db, db, slope=0.0)
    program.copy(db, a)
    program.relu_backward(a, da, da, slope=0.0)
    _, calls = fuse([[], program.calls], FUSES)
    assert names(calls) == ["split", "copy"]
    assert calls[0].relu_output == [a, None, b]


def test_a_relu_behind_max_pooling_moves_to_the_convolution() -> None:
    x, y, pooled, index, w, dpooled, dy = tensors(7)
    settings: dict[str, Any] = {"stride": [1], "pad": [0], "dilation": [1], "group": 1}

    def forward() -> list[Primitive]:
        program = Program()
        program.convolution(x, w, None, y, **settings)
        program.max_pooling(y, pooled, index, **POOLING)
        program.relu(pooled, pooled, slope=0.0)
        return program.calls

    backward = Program()
    backward.relu_backward(pooled, dpooled, dpooled, slope=0.0)
    backward.max_pooling_backward(dpooled, index, dy, **POOLING)

    fused = fuse([forward(), backward.calls], ())
    assert names(fused[0]) == ["convolution", "max_pooling"]
    assert fused[0][0].relu == 0.0
    assert names(fused[1]) == ["relu_backward", "max_pooling_backward"]

    # Where the backend folds ReLUs, the pooling notes the maxima whose gradient stops.
    fused = fuse([forward(), backward.calls], FUSES)
    assert names(fused[1]) == ["max_pooling_backward"]
    assert fused[0][1].after_relu

    for other in (y, y.view((y.count,))):
        looking = Program()
        looking.copy(other, x)  # something else wants the convolution's output as it is
        fused = fuse([forward(), looking.calls], ())
        assert names(fused[0]) == ["convolution", "max_pooling", "relu"]
    y.persistent = True
    assert names(fuse([forward(), []], ())[0]) == ["convolution", "max_pooling", "relu"]
