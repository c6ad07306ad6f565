"""Owns the fusion of batch normalization with its neighbours: the copies of in-place layers, Scale,
a residual sum, ReLU and maximum pooling, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ...backends import primitives as ops
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor
from .editing import (
    Programs,
    Users,
    fuse,
    is_exposed,
    is_handed_over,
    is_plain_sum,
    normalization_gradient,
    reads,
    reads_view,
    replace_call,
    replace_read,
    replace_written,
    writes,
)


def fuse_batch_norm(programs: Programs) -> None:
    """Fuse the calls around each batch normalization, forward and backward."""
    forward, backward = programs
    if not any(isinstance(call, ops.BatchNorm) for call in forward):
        return
    skip_copies(forward)
    join_scale(programs)
    join_sum(programs)
    join_relu(forward)
    share_gradients(backward)
    join_relu_backward(backward, forward)
    join_sum_backward(backward)


# -- forward ---------------------------------------------------------------------------------------


def skip_copies(calls: list[Primitive]) -> None:
    """Let what is copied, because an in-place layer is about to overwrite it, be written to where
    the copy would be."""
    users = Users([calls])
    for call in [call for call in calls if isinstance(call, ops.Copy)]:
        x, copy = call.x, call.y
        there = [user for user in users.of(x) if user in calls]
        index = there.index(call)
        if not 0 < index < len(there) - 1 or copy.persistent or x.base or copy.base:
            continue
        maker, following = there[index - 1], there[index + 1]
        makes = any(getattr(maker, field) is x for field in maker.written_fields)
        if makes and writes(following, x) and not reads(following, x):
            replace_written(maker, x, copy)
            calls.remove(call)


def join_scale(programs: Programs) -> None:
    """Let a batch normalization without scale and bias have those of the one without statistics
    (a Scale layer) after it, in both programs."""
    users = Users(programs)
    forward, backward = programs
    for norm, scale in pairwise([*forward]):
        match norm, scale:
            case (
                ops.BatchNorm(
                    mean=Tensor(), scale=None, bias=None, addend=None, relu=False, y=between
                ),
                ops.BatchNorm(mean=None, rate=None, x=x),
            ) if x is between:
                pair = _backward_pair(backward, norm, scale)
                if pair is None or not users.only(between, norm, scale, *pair):
                    continue
                if pair:
                    _join_backward(backward, norm, *pair)
                _take_statistics(scale, norm)
                fuse(forward, scale, norm)


def _take_statistics(scale: ops.BatchNorm | ops.BatchNormBackward, norm: ops.BatchNorm) -> None:
    scale.x, scale.mean, scale.rate = norm.x, norm.mean, norm.rate


def _backward_pair(
    calls: Sequence[Primitive], norm: ops.BatchNorm, scale: ops.BatchNorm
) -> list[ops.BatchNormBackward] | None:
    """The backward calls of a scale and of the normalization before it, neighbours, that can be
    one: both, the first alone, or none. None: they cannot be."""
    between = norm.y
    pair = [
        call
        for call in calls
        if isinstance(call, ops.BatchNormBackward) and call.x in (between, norm.x)
    ]
    match pair:
        case []:
            return []
        case [first] if first.x is between and first.dx is None:
            return pair
        case [first, second] if (
            first.x is between
            and first.dx is not None
            and calls.index(second) == calls.index(first) + 1
            and second.dx is not None
            and second.dys == [first.dx]
            and (second.dx is first.dx or Users([calls]).only(first.dx, first, second))
        ):
            return pair
    return None


def _join_backward(
    calls: list[Primitive],
    norm: ops.BatchNorm,
    scale: ops.BatchNormBackward,
    inner: ops.BatchNormBackward | None = None,
) -> None:
    _take_statistics(scale, norm)
    scale.trade(norm)
    if inner is not None:
        scale.constant, scale.dx = inner.constant, inner.dx
        fuse(calls, scale, inner)


def join_sum(programs: Programs) -> None:
    """Let a batch normalization add what the sum directly after it adds."""
    users, forward = Users(programs), programs[0]
    for norm, total in pairwise([*forward]):
        match norm:
            case ops.BatchNorm(addend=None, relu=False, y=y) if is_plain_sum(total, 2):
                others = [term for term in total.xs if term.owner is not y.owner]
                if (
                    len(others) == 1
                    and y.shape == total.y.shape
                    and (total.y is y or users.only(y, norm, total))
                ):
                    norm.addend, norm.y = others[0], total.y
                    fuse(forward, norm, total)


def join_relu(calls: list[Primitive]) -> None:
    """Let a batch normalization apply the in-place ReLU that follows it."""
    for norm, relu in pairwise([*calls]):
        match norm, relu:
            case ops.BatchNorm(relu=False), ops.Relu(slope=0, x=x, y=y) if x is y is norm.y:
                norm.relu = True
                fuse(calls, norm, relu)


def sum_outputs(programs: Programs) -> None:
    """Let a convolution make the sums of its output that the statistics directly after it want:
    where the output is free to lie as convolutions like it."""
    for convolution, statistics in pairwise(programs[0]):
        match convolution, statistics:
            case ops.Convolution(y=y), ops.BatchNormStatistics(x=x) if (
                x is y and y.flexible and not y.base
            ):
                sums = Tensor(y.shape[1:2], name=f"{y.name}.sums", flexible=True)
                convolution.sums = statistics.sums = sums
                convolution.trade(statistics)


# -- backward --------------------------------------------------------------------------------------


def share_gradients(calls: list[Primitive]) -> None:
    """Drop copies of gradients (the sum of a residual block makes them), where neither the copy
    nor the original changes while the copy is live: its readers read the original. One that is read
    through a view stays: what is viewed is row-major, the original may not be."""
    for call in [call for call in calls if is_plain_sum(call, 1)]:
        (x,), y = call.xs, call.y
        if x.base or y.base or y.persistent or x is y:
            continue
        readers = _readers_of_copy(calls[calls.index(call) + 1 :], x, y)
        if readers is not None:
            for reader in readers:
                replace_read(reader, y, x)
            calls.remove(call)


def _readers_of_copy(calls: Sequence[Primitive], x: Tensor, y: Tensor) -> list[Primitive] | None:
    """The calls that read y, a copy of x, before it is rewritten; None: one comes too late, when
    x has changed, or reads a view of y."""
    readers, changed = list[Primitive](), False
    for call in calls:
        changed = changed or writes(call, x)
        if reads(call, y):
            if changed or reads_view(call, y):
                return None
            readers.append(call)
        if writes(call, y):
            break
    return readers


def join_relu_backward(calls: list[Primitive], forward: Sequence[Primitive]) -> None:
    """Let the backward pass of a batch normalization do that of its ReLU, directly before it."""
    makers = {call.y: call for call in forward if isinstance(call, ops.BatchNorm)}
    for relu, norm in pairwise([*calls]):
        match relu, norm:
            case ops.ReluBackward(slope=0, dy=dy, dx=dx), ops.BatchNormBackward(dys=[only]) if (
                dy is dx is only
                and (maker := makers.get(relu.x))
                and maker.relu
                and maker.x is norm.x
                and maker.mean is norm.mean
                and maker.scale is norm.scale
            ):
                behind = forward[forward.index(maker) + 1 :]
                overwriting = [call for call in behind if writes(call, relu.x)]
                if not all(isinstance(call, ops.Dropout) for call in overwriting):
                    continue
                # What it drops has no gradient, the rest keeps its sign.
                norm.trade(*overwriting)
                norm.relu = True
                if maker.addend is not None:
                    norm.relu_output = relu.x
                _keep_gradient(calls, norm, dy)
                fuse(calls, norm, relu)


def join_sum_backward(calls: list[Primitive]) -> None:
    """Let the backward pass of a batch normalization add the two gradients that are added directly
    before it."""
    for total, norm in pairwise([*calls]):
        match norm:
            case ops.BatchNormBackward(dys=[dy]) if is_plain_sum(total, 2) and total.y is dy:
                norm.dys = total.xs
                _keep_gradient(calls, norm, dy)
                fuse(calls, norm, total)


def _keep_gradient(calls: Sequence[Primitive], norm: ops.BatchNormBackward, dy: Tensor) -> None:
    """Let norm write dy, which nothing writes before it any more, if it is read later, before it is
    written again."""
    if norm.dx is dy:
        return
    behind = calls[calls.index(norm) + 1 :]
    first = next((call for call in behind if reads(call, dy) or writes(call, dy)), None)
    if first is not None and reads(first, dy):
        norm.dy = dy


# -- both ------------------------------------------------------------------------------------------

MOST_NOTED = 254
"""Elements of a window whose numbers fit into a byte, with one for none."""


def join_pooling(programs: Programs) -> None:
    """Let maximum pooling normalize what it reads, where nothing else does: the largest images of a
    ResNet are not made, and neither are their gradients."""
    forward, backward = programs
    users = Users(programs)
    for norm, pooling in pairwise([*forward]):
        if (
            isinstance(norm, ops.BatchNorm)
            and isinstance(pooling, ops.MaxPooling)
            and _may_pool(norm, pooling)
            and users.only(norm.y, norm, pooling)
            and (pair := _pooled_gradient(backward, users, norm, pooling))
        ):
            _join_pooling(programs, norm, pooling, *pair)


def _may_pool(norm: ops.BatchNorm, pooling: ops.MaxPooling) -> bool:
    """Whether the calls are such as can be one."""
    return (
        pooling.x is norm.y
        and pooling.index is not None
        and pooling.index.layout_undecided  # it is not a mask, which others read
        and not pooling.behind_relu  # it stops the gradient for another ReLU
        and math.prod(pooling.kernel) <= MOST_NOTED
        and len(norm.y.shape) == 4
        and not is_exposed(norm.y)
        and norm.y not in norm.read_tensors()
        and norm.addend is None
    )


def _pooled_gradient(
    calls: list[Primitive], users: Users, norm: ops.BatchNorm, pooling: ops.MaxPooling
) -> tuple[ops.MaxPoolingBackward, ops.BatchNormBackward] | None:
    """The backward calls of a normalization and of the pooling after it, if they can be one."""
    assert pooling.index is not None
    back = normalization_gradient(calls, norm)
    spreads = [call for call in users.of(pooling.index) if isinstance(call, ops.MaxPoolingBackward)]
    match back, spreads:
        case ops.BatchNormBackward(dys=[dy], relu_output=None, dy=None), [
            ops.MaxPoolingBackward(addend=None, relu_output=None) as spread
        ] if (
            spread.dx is dy
            and back.relu == norm.relu
            and all(getattr(back, n) is getattr(norm, n) for n in ("mean", "rate", "scale"))
            and is_handed_over(users, dy, spread, back)
        ):
            return spread, back
    return None


def _join_pooling(
    programs: Programs,
    norm: ops.BatchNorm,
    pooling: ops.MaxPooling,
    spread: ops.MaxPoolingBackward,
    back: ops.BatchNormBackward,
) -> None:
    forward, backward = programs
    y, index = pooling.y, pooling.index
    assert index is not None
    peaks = Tensor(y.shape, name=f"{y.name}.peaks", like=y)
    window = {name: getattr(pooling, name) for name in ("kernel", "stride", "pad")}
    channels = norm.mean, norm.rate, norm.scale, norm.bias
    joint = ops.BatchNormPooling(norm.x, *channels, y, index, peaks, norm.relu, **window)
    replace_call(forward, pooling, joint)
    fuse(forward, joint, norm)
    joint_back = ops.BatchNormPoolingBackward(
        norm.x, spread.dy, index, peaks, *channels, back.dx, back.dscale, back.dbias,
        back.constant, norm.relu, **window,
    )  # fmt: skip
    replace_call(backward, back, joint_back)
    fuse(backward, joint_back, spread)
