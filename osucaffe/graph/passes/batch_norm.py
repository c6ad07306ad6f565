"""Owns the fusion of batch normalization with its neighbours: the copies of in-place layers, Scale,
a residual sum, ReLU and maximum pooling, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...backends.primitives.normalization import CHANNELS
from ...backends.tensor import Call, Tensor
from .editing import (
    Programs,
    Users,
    fuse,
    is_call,
    is_exposed,
    is_handed_over,
    is_plain_sum,
    neighbours,
    normalization_gradient,
    reads,
    reads_view,
    replace_read,
    set_operand,
    writes,
)


def fuse_batch_norm(programs: Programs) -> None:
    """Fuse the calls around each batch normalization in forward and in each form of backward."""
    forward, *backward = programs
    if not any(call.name == "batch_norm" for call in forward):
        return
    skip_copies(forward)
    join_scale(programs)
    join_sum(programs)
    join_relu(forward)
    for calls in backward:
        share_gradients(calls)
        join_relu_backward(calls, forward)
        join_sum_backward(calls)


# -- forward ---------------------------------------------------------------------------------------


def skip_copies(calls: list[Call]) -> None:
    """Let what is copied, because an in-place layer is about to overwrite it, be written to where
    the copy would be."""
    users = Users([calls])
    for call in [call for call in calls if call.name == "copy"]:
        x, copy = call.reads["x"], call.writes["y"]
        there = [user for user in users.of(x) if user in calls]
        index = there.index(call)
        if not 0 < index < len(there) - 1 or copy.persistent or x.base or copy.base:
            continue
        maker, following = there[index - 1], there[index + 1]
        names = [name for name, tensor in maker.writes.items() if tensor is x]
        if names and maker.name != "host" and writes(following, x) and not reads(following, x):
            maker.writes[names[0]] = copy
            calls.remove(call)


def join_scale(programs: Programs) -> None:
    """Let a batch normalization without scale and bias have those of the one without statistics
    (a Scale layer) behind it, in all programs."""
    users = Users(programs)
    forward, *backward = programs
    for norm, scale in neighbours(forward, {"batch_norm"}):
        between = norm.writes["y"]
        if (
            not is_call(norm, "batch_norm", scale=None, bias=None, addend=None)
            or "mean" not in norm.reads
            or norm.settings["relu"]
            or not is_call(scale, "batch_norm", mean=None, rate=None, x=between)
        ):
            continue
        both = [_backward_pair(calls, norm, scale) for calls in backward]
        if None in both:
            continue
        known = [call for pair in both if pair for call in pair]
        if not users.only(between, norm, scale, *known):
            continue
        for calls, pair in zip(backward, both, strict=True):
            if pair:
                _join_backward(calls, norm, *pair)
        _take_statistics(scale, norm)
        fuse(forward, scale, norm)


def _take_statistics(scale: Call, norm: Call) -> None:
    for name in "x", "mean", "rate":
        set_operand(scale.reads, scale, name, norm.reads[name])


def _backward_pair(calls: Sequence[Call], norm: Call, scale: Call) -> list[Call] | None:
    """The backward calls of a scale and of the normalization before it, neighbours, that can be
    one: both, the first alone, or none. None: they cannot be."""
    between = norm.writes["y"]
    indices = [
        index
        for index, call in enumerate(calls)
        if call.name == "batch_norm_backward" and call.reads["x"] in (between, norm.reads["x"])
    ]
    if not indices:
        return []
    first = calls[indices[0]]
    if first.reads["x"] is not between:
        return None
    gradient = first.writes.get("dx")
    if gradient is None:
        return [first] if len(indices) == 1 else None
    if len(indices) != 2 or indices[1] != indices[0] + 1:
        return None
    second = calls[indices[1]]
    written = second.writes.get("dx")
    if written is None or second.reads["dys"] != [gradient]:
        return None
    if written is not gradient and not Users([calls]).only(gradient, first, second):
        return None
    return [first, second]


def _join_backward(calls: list[Call], norm: Call, scale: Call, inner: Call | None = None) -> None:
    _take_statistics(scale, norm)
    scale.trade(norm)
    if inner is not None:
        scale.settings["constant"] = inner.settings["constant"]
        scale.writes["dx"] = inner.writes["dx"]
        fuse(calls, scale, inner)


def join_sum(programs: Programs) -> None:
    """Let a batch normalization add what the sum directly behind it adds."""
    users, forward = Users(programs), programs[0]
    for norm, total in neighbours(forward, {"batch_norm"}):
        if "addend" in norm.reads or norm.settings["relu"] or not is_plain_sum(total, 2):
            continue
        y, terms = norm.writes["y"], total.reads["xs"]
        others = [term for term in terms if term.owner is not y.owner]
        if (
            len(others) == 1
            and y.shape == total.writes["y"].shape
            and (total.writes["y"] is y or users.only(y, norm, total))
        ):
            set_operand(norm.reads, norm, "addend", others[0])
            norm.writes["y"] = total.writes["y"]
            fuse(forward, norm, total)


def join_relu(calls: list[Call]) -> None:
    """Let a batch normalization apply the in-place ReLU that follows it."""
    for norm, relu in neighbours(calls, {"batch_norm"}):
        y = norm.writes["y"]
        in_place = is_call(relu, "relu", x=y, y=y)
        if in_place and relu.settings["slope"] == 0 and not norm.settings["relu"]:
            norm.settings["relu"] = True
            fuse(calls, norm, relu)


def sum_outputs(programs: Programs) -> None:
    """Let a convolution make the sums of its output that the statistics directly behind it want:
    where the output is free to lie as convolutions like it."""
    for convolution, statistics in neighbours(programs[0], {"convolution"}):
        y = convolution.writes["y"]
        if is_call(statistics, "batch_norm_statistics", x=y) and y.flexible and not y.base:
            sums = Tensor(y.shape[1:2], name=f"{y.name}.sums", flexible=True)
            set_operand(convolution.writes, convolution, "sums", sums)
            set_operand(statistics.reads, statistics, "sums", sums)
            convolution.trade(statistics)


# -- backward --------------------------------------------------------------------------------------


def share_gradients(calls: list[Call]) -> None:
    """Drop copies of gradients (the sum of a residual block makes them), where neither the copy
    nor the original changes while the copy is live: its readers read the original. One that is read
    through a view stays: what is viewed is row-major, the original may not be."""
    for call in [call for call in calls if is_plain_sum(call, 1)]:
        (x,), y = call.reads["xs"], call.writes["y"]
        if x.base or y.base or y.persistent or x is y:
            continue
        readers = _readers_of_copy(calls[calls.index(call) + 1 :], x, y)
        if readers is not None:
            for reader in readers:
                replace_read(reader, y, x)
            calls.remove(call)


def _readers_of_copy(calls: Sequence[Call], x: Tensor, y: Tensor) -> list[Call] | None:
    """The calls that read y, a copy of x, before it is written anew; None: one comes too late, when
    x has changed, or reads a view of y."""
    readers, changed = [], False
    for call in calls:
        changed = changed or writes(call, x)
        if reads(call, y):
            if changed or reads_view(call, y):
                return None
            readers.append(call)
        if writes(call, y):
            break
    return readers


def join_relu_backward(calls: list[Call], forward: Sequence[Call]) -> None:
    """Let the backward pass of a batch normalization do that of its ReLU, directly before it."""
    makers = {call.writes["y"]: call for call in forward if call.name == "batch_norm"}
    for relu, norm in neighbours(calls, {"relu_backward"}):
        dy, maker = relu.writes["dx"], makers.get(relu.reads["x"])
        if (
            norm.name != "batch_norm_backward"
            or maker is None
            or not maker.settings["relu"]
            or any(maker.reads.get(n) is not norm.reads.get(n) for n in ("x", "mean", "scale"))
            or relu.reads["dy"] is not dy
            or norm.reads["dys"] != [dy]
            or relu.settings["slope"] != 0
        ):
            continue
        overwriting = [
            call for call in forward[forward.index(maker) + 1 :] if writes(call, relu.reads["x"])
        ]
        if any(call.name != "dropout" for call in overwriting):
            continue
        norm.trade(*overwriting)  # what it drops has no gradient, the rest keeps its sign
        norm.settings["relu"] = True
        if "addend" in maker.reads:
            set_operand(norm.reads, norm, "relu_output", relu.reads["x"])
        _keep_gradient(calls, norm, dy)
        fuse(calls, norm, relu)


def join_sum_backward(calls: list[Call]) -> None:
    """Let the backward pass of a batch normalization add the two gradients that are added directly
    before it."""
    for total, norm in neighbours(calls, {"sum"}):
        dy = total.writes["y"]
        if (
            norm.name == "batch_norm_backward"
            and is_plain_sum(total, 2)
            and norm.reads["dys"] == [dy]
        ):
            norm.reads["dys"] = total.reads["xs"]
            _keep_gradient(calls, norm, dy)
            fuse(calls, norm, total)


def _keep_gradient(calls: Sequence[Call], norm: Call, dy: Tensor) -> None:
    """Let norm write dy, which nothing writes before it any more, if it is read later, before it is
    written anew."""
    if norm.writes.get("dx") is dy:
        return
    behind = calls[calls.index(norm) + 1 :]
    first = next((call for call in behind if reads(call, dy) or writes(call, dy)), None)
    if first is not None and reads(first, dy):
        set_operand(norm.writes, norm, "dy", dy)


# -- both ------------------------------------------------------------------------------------------

MOST_NOTED = 254
"""Elements of a window whose numbers fit into a byte, with one for none."""


def join_pooling(programs: Programs) -> None:
    """Let maximum pooling normalize what it reads, where nothing else does: the largest images of a
    ResNet are not made, and neither are their gradients."""
    forward, *backward = programs
    candidates = [
        (norm, pooling)
        for norm, pooling in neighbours(forward, {"batch_norm"} if backward else ())
        if _may_pool(norm, pooling)
    ]
    if not candidates:
        return
    users = [Users(each) for each in (programs, *([calls] for calls in backward))]
    for norm, pooling in candidates:
        if not users[0].only(norm.writes["y"], norm, pooling):
            continue
        pairs = [
            _pooled_gradient(calls, users_in_pass, norm, pooling)
            for calls, users_in_pass in zip(backward, users[1:], strict=True)
        ]
        found = [pair for pair in pairs if pair]
        if len(found) == len(pairs):
            _join_pooling(programs, norm, pooling, found)


def _may_pool(norm: Call, pooling: Call) -> bool:
    """Whether the calls are such as can be one."""
    y = norm.writes["y"]
    return (
        pooling.name == "max_pooling"
        and pooling.reads["x"] is y
        and "index" in pooling.writes
        and pooling.writes["index"].is_open  # it is not a mask, which others read
        and not pooling.settings.get("behind_relu")  # it stops the gradient for another ReLU
        and math.prod(pooling.settings["kernel"]) <= MOST_NOTED
        and len(y.shape) == 4
        and not is_exposed(y)
        and y not in norm.read_tensors()
        and "addend" not in norm.reads
    )


def _pooled_gradient(
    calls: list[Call], users: Users, norm: Call, pooling: Call
) -> tuple[Call, Call] | None:
    """The backward calls of a normalization and of the pooling behind it, if they can be one."""
    index, back = pooling.writes["index"], normalization_gradient(calls, norm)
    spreads = [call for call in users.of(index) if call.name.endswith("pooling_backward")]
    if back is None or len(spreads) != 1:
        return None
    (spread,) = spreads
    dy = spread.writes["dx"]
    if (
        back.reads["dys"] != [dy]
        or back.settings["relu"] != norm.settings["relu"]
        or any(back.reads.get(n) is not norm.reads.get(n) for n in ("mean", "rate", "scale"))
        or "relu_output" in back.reads
        or "dy" in back.writes
        or spread.reads.keys() & {"addend", "relu_output"}
        or not is_handed_over(calls, users, dy, spread, back)
    ):
        return None
    return spread, back


def _join_pooling(
    programs: Programs, norm: Call, pooling: Call, gradients: list[tuple[Call, Call]]
) -> None:
    y, index, x = pooling.writes["y"], pooling.writes["index"], norm.reads["x"]
    small = {name: norm.reads[name] for name in CHANNELS if name in norm.reads}
    settings = {name: pooling.settings[name] for name in ("kernel", "stride", "pad")}
    settings |= {"relu": norm.settings["relu"]}
    settings |= {name: None for name in CHANNELS if name not in small}
    peaks = Tensor(y.shape, name=f"{y.name}.peaks", like=y)
    pooling.name, pooling.reads = "batch_norm_pooling", {"x": x, **small}
    pooling.writes, pooling.settings = {"y": y, "index": index, "peaks": peaks}, dict(settings)
    fuse(programs[0], pooling, norm)
    for calls, (spread, back) in zip(programs[1:], gradients, strict=True):
        back.name = "batch_norm_pooling_backward"
        back.reads = {"x": x, "dy": spread.reads["dy"], "index": index, "peaks": peaks, **small}
        without = {"dx", "dscale", "dbias"} - back.writes.keys()
        back.settings = settings | dict.fromkeys(without) | {"constant": back.settings["constant"]}
        fuse(calls, back, spread)
