"""The fusion of batch normalization with its neighbours: the copies of in-place layers, Scale,
a residual sum and ReLU forward, of which its gradient follows; maximum pooling; and gradients."""

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
    follows,
    fuse,
    is_exposed,
    is_plain_sum,
    join,
    reads,
    reads_view,
    replace_call,
    replace_read,
    replace_written,
    writes,
)


def fuse_batch_norm(forward: list[Primitive]) -> None:
    """Fuse the calls around each batch normalization, before backward is recorded."""
    if any(isinstance(call, ops.BatchNorm) for call in forward):
        skip_copies(forward)
        join_scale(forward)
        join_sum(forward)
        join_relu(forward)


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


def join_scale(calls: list[Primitive]) -> None:
    """Let a batch normalization have the scale and bias of the one without statistics (a Scale
    layer) after it."""
    users = Users([calls])
    for norm, scale in pairwise([*calls]):
        match norm, scale:
            case (
                ops.BatchNorm(
                    mean=Tensor(), scale=None, bias=None, addend=None, relu=False, y=between
                ),
                ops.BatchNorm(mean=None, inv_std=None, x=x),
            ) if x is between and users.only(between, norm, scale) and follows(scale, norm):
                scale.constant = norm.constant
                join(calls, scale, norm, x="x", mean="mean", inv_std="inv_std")


def join_sum(calls: list[Primitive]) -> None:
    """Let a batch normalization add what the sum directly after it adds."""
    users = Users([calls])
    for norm, total in pairwise([*calls]):
        match norm:
            case ops.BatchNorm(addend=None, relu=False, y=y) if is_plain_sum(total, 2):
                others = [n for n, term in enumerate(total.xs) if term.owner is not y.owner]
                if (
                    len(others) == 1
                    and y.shape == total.y.shape
                    and (total.y is y or users.only(y, norm, total))
                    and follows(total, norm)
                ):
                    norm.addend = total.xs[others[0]]
                    norm.diffs["addend"] = total.diffs["xs"][others[0]]
                    join(calls, norm, total, y="y")


def join_relu(calls: list[Primitive]) -> None:
    """Let a batch normalization apply the in-place ReLU that follows it, unless something else
    overwrites what its gradient looks at: but for dropout, after which the rest keeps its sign."""
    for norm, relu in pairwise([*calls]):
        match norm, relu:
            case ops.BatchNorm(relu=False), ops.Relu(slope=0, x=x, y=y) if (
                x is y is norm.y and follows(relu, norm)
            ):
                writers = (call for call in calls[calls.index(relu) + 1 :] if writes(call, y))
                if all(isinstance(call, ops.Dropout) for call in writers):
                    norm.relu = True
                    join(calls, norm, relu)


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
                convolution.share_work(statistics)


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


def join_sum_backward(calls: list[Primitive]) -> None:
    """Let the backward pass of a batch normalization add the two gradients that are added directly
    before it, and write their sum, if that is read later."""
    for total, norm in pairwise([*calls]):
        match norm:
            case ops.BatchNormBackward(dys=[dy]) if is_plain_sum(total, 2) and total.y is dy:
                written = dy in (norm.dx, norm.dy)
                if not written and _is_read(calls[calls.index(norm) + 1 :], dy):
                    if norm.relu or norm.dy is not None:
                        continue
                    norm.dy = dy
                norm.dys = total.xs
                fuse(calls, norm, total)


def _is_read(calls: Sequence[Primitive], tensor: Tensor) -> bool:
    """Whether a call reads a tensor before one writes it again."""
    first = next((call for call in calls if reads(call, tensor) or writes(call, tensor)), None)
    return first is not None and reads(first, tensor)


# -- pooling ---------------------------------------------------------------------------------------

MAX_WINDOW = 254
"""Elements of a window whose numbers fit into a byte, with one for none."""


def join_pooling(calls: list[Primitive]) -> None:
    """Let maximum pooling normalize what it reads, where nothing else does and backward follows:
    the largest images of a ResNet are not made, and neither are their gradients."""
    users = Users([calls])
    for norm, pooling in pairwise([*calls]):
        match norm, pooling:
            case ops.BatchNorm(y=y), ops.MaxPooling(index=Tensor() as index) if (
                follows(pooling, norm) and _may_pool(norm, pooling) and users.only(y, norm, pooling)
                # Else it stops the gradient for a ReLU.
                and not any(isinstance(user, ops.Relu) for user in users.of(pooling.y))
            ):  # fmt: skip
                made, channels = pooling.y, (norm.mean, norm.inv_std, norm.scale, norm.bias)
                max_input = Tensor(made.shape, name=f"{made.name}.max_input", like=made)
                joint = ops.BatchNormPooling(
                    norm.x, *channels, made, index, max_input, norm.relu, norm.constant,
                    **pooling.window,
                )  # fmt: skip
                joint.diffs = norm.diffs | {"y": pooling.diffs["y"]}
                replace_call(calls, pooling, joint)
                join(calls, joint, norm)


def _may_pool(norm: ops.BatchNorm, pooling: ops.MaxPooling) -> bool:
    """Whether the calls are such as can be one."""
    return (
        pooling.x is norm.y
        and pooling.index is not None
        and pooling.index.layout_undecided  # it is not a mask, which others read
        and math.prod(pooling.kernel) <= MAX_WINDOW
        and len(norm.y.shape) == 4
        and not is_exposed(norm.y)
        and norm.y not in norm.read_tensors()
        and norm.addend is None
    )
