"""Owns the fusion of adjacent calls that the libraries can compute as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from ...backends.tensor import Call, Tensor
from .batch_norm import fuse_batch_norm
from .calls import Programs

_WITH_RELU = {"convolution", "inner_product"}


Fusion = Callable[[Programs, Collection[str]], Programs]
"""fusion(programs, fuses): the programs with fewer calls. fuses: the backend's primitives that can
apply the backward pass of a ReLU to what they write."""


def relu_before_pooling(calls: list[Call], programs: Sequence[list[Call]]) -> list[Call]:
    """Move an in-place ReLU behind max pooling to the convolution before it, which has it for
    nothing: a ReLU keeps the order of values, so that the maximum is the same.

    Only where nothing but the pooling reads the convolution's output, whose values change: no
    other call, through a view either, and no user (what is kept may be looked at).
    """
    readers = Counter(
        id(tensor.base or tensor)
        for program in programs
        for call in program
        for tensor in call.read_tensors()
    )
    moved: list[Call] = []
    for call in calls:
        convolution, pooling = moved[-2:] if len(moved) > 1 else (None, None)
        if (
            call.name == "relu"
            and call.settings["slope"] >= 0
            and pooling is not None
            and convolution is not None
            and pooling.name == "max_pooling"
            and convolution.name == "convolution"
            and convolution.settings["relu"] is None
            and call.reads["x"] is call.writes["y"] is pooling.writes["y"]
            and pooling.reads["x"] is convolution.writes["y"]
            and not pooling.reads["x"].persistent
            and readers[id(pooling.reads["x"].base or pooling.reads["x"])] == 1
        ):
            x = pooling.reads["x"]
            call.reads["x"], call.writes["y"] = x, x
            call.position = pooling.position
            call.trade(pooling)
            moved.insert(-1, call)
        else:
            moved.append(call)
    return moved


def fuse_relu(calls: list[Call]) -> list[Call]:
    """Let a convolution or inner product apply the in-place ReLU that follows it."""
    fused: list[Call] = []
    for call in calls:
        before = fused[-1] if fused else None
        if (
            call.name == "relu"
            and before is not None
            and before.name in _WITH_RELU
            and before.settings["relu"] is None
            and call.reads["x"] is call.writes["y"] is before.writes["y"]
        ):
            before.settings["relu"] = call.settings["slope"]
            before.fuse(call)
        else:
            fused.append(call)
    return fused


def fuse_relu_backward(
    calls: list[Call], forward: Sequence[Call], fuses: Collection[str]
) -> list[Call]:
    """Let the call that writes a gradient apply the in-place ReLU backward that comes next.

    It gets the ReLU's output as `relu_output`: where that is not positive, the gradient is zero. A
    maximum that is not positive needs no gradient at all: its forward call does not note it.
    """
    pooled = {id(call.writes.get("index")): call for call in forward if call.name == "max_pooling"}
    writer: dict[int, Call | None] = {}  # of each tensor; None when it was touched since
    fused: list[Call] = []
    for call in calls:
        if call.name == "relu_backward" and call.settings["slope"] == 0:
            before = writer.get(id(call.reads["dy"]))
            if (
                call.reads["dy"] is call.writes["dx"]
                and before is not None
                and before.name in fuses
                and _fuse_mask(before, call.reads["x"], call.writes["dx"], pooled)
            ):
                before.fuse(call)
                continue
        if (
            call.name == "max_pooling_backward"
            and call.name in fuses
            and fused
            and _stops_nothing_more(fused[-1], call, pooled)
        ):
            call.fuse(fused.pop())
        fused.append(call)
        for tensor in call.read_tensors():
            writer[id(tensor.base or tensor)] = None
        for tensor in call.written_tensors():
            writer[id(tensor.base or tensor)] = None if tensor.base else call
    return fused


def _stops_nothing_more(relu: Call, pooling: Call, pooled: dict[int, Call]) -> bool:
    """Whether a backward ReLU of what was pooled can go, since the pooling notes the maxima that
    are not positive."""
    maker = pooled.get(id(pooling.reads["index"]))
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


def _fuse_mask(call: Call, x: Tensor, dx: Tensor, pooled: dict[int, Call]) -> bool:
    """Whether the call could be told to zero dx, which it writes, where x is not positive."""
    if call.accumulates:
        return False
    match call.name:
        case "max_pooling_backward":
            maker = pooled.get(id(call.reads["index"]))
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


def _forward_relu_before_pooling(programs: Programs, fuses: Collection[str]) -> Programs:
    return [relu_before_pooling(programs[0], programs), *programs[1:]]


def _forward_relu(programs: Programs, fuses: Collection[str]) -> Programs:
    return [fuse_relu(programs[0]), *programs[1:]]


def _batch_norm(programs: Programs, fuses: Collection[str]) -> Programs:
    return fuse_batch_norm(programs)


def _relu_backward(programs: Programs, fuses: Collection[str]) -> Programs:
    forward, *backward = programs
    return [forward, *(fuse_relu_backward(calls, forward, fuses) for calls in backward)]


FUSIONS: tuple[tuple[str, Fusion], ...] = (
    ("ReLU before pooling", _forward_relu_before_pooling),
    ("fuse ReLU", _forward_relu),
    ("fuse batch norm", _batch_norm),
    ("fuse ReLU backward", _relu_backward),
)
"""By name, in the order in which they run."""
