"""Owns the fusion of adjacent calls that the libraries can compute as one: activations with what
makes their input, and backward ReLUs with what makes the gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ...backends.tensor import Call, Tensor
from .editing import Programs, Users, fuse, is_call, neighbours, reads, writes

_LINEAR = {"convolution", "inner_product"}


def relu_before_pooling(programs: Programs) -> None:
    """Move an in-place ReLU behind max pooling to the convolution before it, which has it for
    nothing: a ReLU keeps the order of values, so that the maximum is the same.

    Only where nothing but the pooling reads the convolution's output, whose values change: no
    other call, through a view either, and no user (who may look at a persistent tensor).
    """
    readers = Counter(
        tensor.owner for calls in programs for call in calls for tensor in call.read_tensors()
    )
    forward = programs[0]
    for index in range(2, len(forward)):
        convolution, pooling, call = forward[index - 2 : index + 1]
        if (
            call.name == "relu"
            and call.settings["slope"] >= 0
            and pooling.name == "max_pooling"
            and convolution.name == "convolution"
            and convolution.settings["relu"] is None
            and call.reads["x"] is call.writes["y"] is pooling.writes["y"]
            and pooling.reads["x"] is convolution.writes["y"]
            and not pooling.reads["x"].persistent
            and readers[pooling.reads["x"].owner] == 1
        ):
            call.reads["x"] = call.writes["y"] = pooling.reads["x"]
            call.position = pooling.position
            call.trade(pooling)
            forward[index - 1 : index + 1] = [call, pooling]


def fuse_relu(calls: list[Call]) -> None:
    """Let a convolution or inner product apply the in-place ReLU that follows it."""
    for before, call in neighbours(calls, _LINEAR):
        if (
            call.name == "relu"
            and before.settings["relu"] is None
            and call.reads["x"] is call.writes["y"] is before.writes["y"]
        ):
            before.settings["relu"] = call.settings["slope"]
            fuse(calls, before, call)


def fuse_activations(calls: list[Call], formulas: Collection[str]) -> None:
    """Let what makes the input of an activation of one of these formulas apply it: its setting
    `activation` is that call, which then works in place on what its maker writes."""
    users = Users([calls])
    for maker, call in neighbours(calls, _LINEAR):
        if (
            call.name not in ("elementwise", "broadcast")
            or call.settings["formula"] not in formulas
        ):
            continue
        x, y = call.reads["inputs"][0], call.writes["outputs"][0]
        if maker.writes["y"] is not x or maker.settings["relu"] is not None:
            continue
        if x is not y and (x.base or x.viewed or not users.only(x, maker, call)):
            continue
        call.reads["inputs"] = [y, *call.reads["inputs"][1:]]
        maker.writes["y"] = y
        maker.settings["activation"] = call
        fuse(calls, maker, call)


# -- backward --------------------------------------------------------------------------------------


def relu_before_split(programs: Programs, fuses: Collection[str]) -> None:
    """Let one ReLU run backward in front of a concatenation's gradient, in place of one behind it
    for each part: it looks at what was concatenated, so that the parts themselves need not be kept.

    fuses: as for `fuse_relu_backward`. Where a backend fuses ReLUs to what cuts the gradient, this
    is only worth it if it fuses this one to what makes the gradient, too.
    """
    forward, *backward = programs
    concats = {call.position: call for call in forward if call.name == "concat"}
    for calls in backward:
        for split in [call for call in calls if call.name == "split"]:
            concat = concats.get(split.position)
            if concat is not None and concat.settings["axis"] == split.settings["axis"]:
                _relu_before_split(forward, calls, concat, split, fuses)


def _relu_before_split(
    forward: list[Call], calls: list[Call], concat: Call, split: Call, fuses: Collection[str]
) -> None:
    y, dy, index = concat.writes["y"], split.reads["x"], calls.index(split)
    users = [call for call in calls if reads(call, dy) or writes(call, dy)]
    writer = users[users.index(split) - 1] if users[0] is not split else None
    behind = forward[forward.index(concat) + 1 :]
    if (
        writer is None
        or users[-1] is not split
        or ("split" in fuses and writer.name not in fuses)
        or dy.persistent
        or dy.base
        or len(split.writes["ys"]) != len(concat.reads["xs"])
        or any(writes(call, x) for call in behind for x in (y, *concat.reads["xs"]))
    ):
        return
    relus: list[Call] = []
    for x, dx in zip(concat.reads["xs"], split.writes["ys"], strict=True):
        first = next(
            (c for c in calls[index + 1 :] if dx and (reads(c, dx) or writes(c, dx))), None
        )
        if first is None or not is_call(first, "relu_backward", x=x, dy=dx, dx=dx):
            return
        relus.append(first)
    if len({call.settings["slope"] for call in relus}) != 1:
        return
    relu = relus.pop(0)
    fuse(calls, relu, *relus)
    calls.remove(relu)
    calls.insert(calls.index(split), relu)
    relu.reads["x"], relu.reads["dy"], relu.writes["dx"] = y, dy, dy
    relu.position = split.position
    relu.trade(split, concat)


def fuse_relu_backward(programs: Programs, fuses: Collection[str]) -> None:
    """Let the call that writes a gradient apply the in-place ReLU backward that comes next.

    It gets the ReLU's output as `relu_output`: where that is not positive, the gradient is zero. A
    maximum that is not positive needs no gradient at all: its forward call does not note it.
    fuses: the backend's primitives that can do that.
    """
    forward, *backward = programs
    read = {tensor.owner for call in forward for tensor in call.read_tensors()}  # a mask as a top
    pooled = {
        call.writes["index"]: call
        for call in forward
        if call.name == "max_pooling"
        and "index" in call.writes
        and call.writes["index"].owner not in read
    }
    for calls in backward:
        _fuse_relu_backward(calls, pooled, fuses)


def _fuse_relu_backward(
    calls: list[Call], pooled: dict[Tensor, Call], fuses: Collection[str]
) -> None:
    writer: dict[Tensor, Call | None] = {}  # of each tensor; None when it was used since
    last: Call | None = None
    for call in list(calls):
        if call.name == "relu_backward" and call.settings["slope"] == 0:
            before = writer.get(call.reads["dy"])
            if (
                call.reads["dy"] is call.writes["dx"]
                and before is not None
                and before.name in fuses
                and _fuse_mask(before, call.reads["x"], call.writes["dx"], pooled)
            ):
                fuse(calls, before, call)
                continue
        if (
            call.name == "max_pooling_backward"
            and call.name in fuses
            and last is not None
            and _stops_nothing_more(last, call, pooled)
        ):
            fuse(calls, call, last)
        last = call
        for tensor in call.read_tensors():
            writer[tensor.owner] = None
        for tensor in call.written_tensors():
            writer[tensor.owner] = None if tensor.base else call


def _stops_nothing_more(relu: Call, pooling: Call, pooled: dict[Tensor, Call]) -> bool:
    """Whether a backward ReLU of what was pooled can go, since the pooling notes the maxima that
    are not positive."""
    maker = pooled.get(pooling.reads["index"])
    if (
        maker is None
        or relu.name != "relu_backward"
        or relu.settings["slope"] != 0
        or relu.reads["x"] is not maker.writes["y"]
        or not relu.reads["dy"] is relu.writes["dx"] is pooling.reads["dy"]
    ):
        return False
    maker.settings["behind_relu"] = True
    return True


def _fuse_mask(call: Call, x: Tensor, dx: Tensor, pooled: dict[Tensor, Call]) -> bool:
    """Let the call zero dx, which it writes, where x is not positive; False: it cannot."""
    if call.accumulates:
        return False
    match call.name:
        case "max_pooling_backward":
            maker = pooled.get(call.reads["index"])
            if maker is None or maker.reads["x"] is not x:
                return False
            maker.settings["behind_relu"] = True
        case "lrn_backward":
            if call.reads["x"] is not x:
                return False
            call.reads["relu_output"] = x
        case "split":
            parts = call.writes["ys"]
            masks = call.reads.setdefault("relu_output", [None] * len(parts))
            masks[next(i for i, part in enumerate(parts) if part is dx)] = x
        case _:
            call.reads["relu_output"] = x
    return True
