"""The fusion of adjacent calls that the libraries can compute as one: activations with what
makes their input, and backward ReLUs with what makes the gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import chain, pairwise
from typing import Any

from ...backends import primitives as ops
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor
from .editing import Kinds, Programs, Users, fuse, reads, writes


def relu_before_pooling(programs: Programs) -> None:
    """Move an in-place ReLU after max pooling to the convolution before it, which has it for
    nothing: a ReLU keeps the order of values, so that the maximum is the same.

    Only where nothing but the pooling reads the convolution's output, whose values change: no
    other call, through a view either, and no user (who may look at a persistent tensor).
    """
    readers = Counter(t.owner for call in chain(*programs) for t in call.read_tensors())
    forward = programs[0]
    for index in range(2, len(forward)):
        match forward[index - 2 : index + 1]:
            case ops.Convolution(relu=None, y=x), ops.MaxPooling(
                y=y
            ) as pooling, ops.Relu() as relu if (
                relu.slope >= 0
                and relu.x is relu.y is y
                and pooling.x is x
                and not x.persistent
                and readers[x.owner] == 1
            ):
                relu.x = relu.y = x
                relu.position = pooling.position
                relu.share_work(pooling)
                forward[index - 1 : index + 1] = [relu, pooling]


def fuse_relu(calls: list[Primitive]) -> None:
    """Let a convolution or inner product apply the in-place ReLU that follows it."""
    for before, call in pairwise([*calls]):
        match before, call:
            case ops.Convolution(relu=None) | ops.InnerProduct(relu=None), ops.Relu(x=x, y=y) if (
                x is y is before.y
            ):
                before.relu = call.slope
                fuse(calls, before, call)


def fuse_activations(calls: list[Primitive], formulas: Collection[str]) -> None:
    """Let what makes the input of an activation of one of these formulas apply it: its
    `activation` is that call, which then works in place on what its maker writes."""
    users = Users([calls])
    for maker, call in pairwise([*calls]):
        match maker, call:
            case ops.Convolution(relu=None) | ops.InnerProduct(relu=None), ops.Elementwise(
                formula=formula, inputs=[x, *others], outputs=[y, *_]
            ) if formula in formulas and x is maker.y:
                if x is not y and (x.base or x.viewed or not users.only(x, maker, call)):
                    continue
                call.inputs = [y, *others]
                maker.y = y
                maker.activation = call
                fuse(calls, maker, call)


# -- backward --------------------------------------------------------------------------------------


def relu_before_split(programs: Programs, fuses: Kinds) -> None:
    """Let one ReLU run backward in front of a concatenation's gradient, in place of one after it
    for each part: it looks at what was concatenated, so that the parts themselves need not be kept.

    fuses: as for `fuse_relu_backward`. Where a backend fuses ReLUs to what cuts the gradient, this
    is only worth it if it fuses this one to what makes the gradient, too.
    """
    forward, backward = programs
    concats = {call.position: call for call in forward if isinstance(call, ops.Concat)}
    for split in [call for call in backward if isinstance(call, ops.Split)]:
        concat = concats.get(split.position)
        if concat is not None and concat.axis == split.axis:
            _relu_before_split(forward, backward, concat, split, fuses)


def _relu_before_split(
    forward: list[Primitive],
    calls: list[Primitive],
    concat: ops.Concat,
    split: ops.Split,
    fuses: Kinds,
) -> None:
    y, dy, index = concat.y, split.x, calls.index(split)
    users = [call for call in calls if reads(call, dy) or writes(call, dy)]
    writer = users[users.index(split) - 1] if users[0] is not split else None
    behind = forward[forward.index(concat) + 1 :]
    if (
        writer is None
        or users[-1] is not split
        or (ops.Split in fuses and not isinstance(writer, fuses))
        or dy.persistent
        or dy.base
        or len(split.ys) != len(concat.xs)
        or any(writes(call, x) for call in behind for x in (y, *concat.xs))
    ):
        return
    relus: list[ops.ReluBackward] = []
    for x, dx in zip(concat.xs, split.ys, strict=True):
        first = next(
            (c for c in calls[index + 1 :] if dx and (reads(c, dx) or writes(c, dx))), None
        )
        match first:
            case ops.ReluBackward() if first.x is x and first.dy is first.dx is dx:
                relus.append(first)
            case _:
                return
    if len({call.slope for call in relus}) != 1:
        return
    relu = relus.pop(0)
    fuse(calls, relu, *relus)
    calls.remove(relu)
    calls.insert(calls.index(split), relu)
    relu.x, relu.dy, relu.dx = y, dy, dy
    relu.position = split.position
    relu.share_work(split, concat)


def fuse_relu_backward(programs: Programs, fuses: Kinds) -> None:
    """Let the call that writes a gradient apply the in-place ReLU backward that comes next.

    It gets the ReLU's output as `relu_output`: where that is not positive, the gradient is zero. A
    maximum that is not positive needs no gradient at all: its forward call does not note it.
    fuses: the backend's primitives that can do that.
    """
    forward, backward = programs
    read = {tensor.owner for call in forward for tensor in call.read_tensors()}  # a mask as a top
    pooled = {
        call.index: call
        for call in forward
        if isinstance(call, ops.MaxPooling)
        and call.index is not None
        and call.index.owner not in read
    }
    writer: dict[Tensor, Primitive | None] = {}  # of each tensor; None when it was used since
    last: Primitive | None = None
    for call in list(backward):
        match call:
            case ops.ReluBackward(slope=0, x=x, dy=dy, dx=dx) if dy is dx:
                before = writer.get(dy)
                if isinstance(before, fuses) and _fuse_mask(before, x, dx, pooled):
                    fuse(backward, before, call)
                    continue
            case ops.MaxPoolingBackward() if ops.MaxPoolingBackward in fuses and last is not None:
                if _stops_nothing_more(last, call, pooled):
                    fuse(backward, call, last)
        last = call
        for tensor in call.read_tensors():
            writer[tensor.owner] = None
        for tensor in call.written_tensors():
            writer[tensor.owner] = None if tensor.base else call


def _stops_nothing_more(
    relu: Primitive, pooling: ops.MaxPoolingBackward, pooled: dict[Tensor, ops.MaxPooling]
) -> bool:
    """Whether a backward ReLU of what was pooled can go, since the pooling notes the maxima that
    are not positive."""
    match relu, pooled.get(pooling.index):
        case ops.ReluBackward(slope=0, dy=dy, dx=dx), ops.MaxPooling(y=y) as maker if (
            relu.x is y and dy is dx is pooling.dy
        ):
            maker.after_relu = True
            return True
    return False


def _fuse_mask(call: Any, x: Tensor, dx: Tensor, pooled: dict[Tensor, ops.MaxPooling]) -> bool:
    """Let the call zero dx, which it writes, where x is not positive; False: it cannot."""
    match call:
        case _ if call.accumulates:
            return False
        case ops.MaxPoolingBackward():
            maker = pooled.get(call.index)
            if maker is None or maker.x is not x:
                return False
            maker.after_relu = True
        case ops.LrnBackward() if call.x is not x:
            return False
        case ops.Split():
            call.relu_output = call.relu_output or [None] * len(call.ys)
            call.relu_output[call.ys.index(dx)] = x
        case _:
            call.relu_output = x
    return True
