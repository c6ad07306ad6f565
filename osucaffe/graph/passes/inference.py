"""Owns the passes for nets that only run forward: they keep what the outputs need, and compute
constants of the parameters once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import permutations
from typing import Any

from ...backends.formula import PRELU
from ...backends.primitives import Program
from ...backends.tensor import Call, Tensor
from .constants import Constants
from .editing import (
    Users,
    fuse,
    is_call,
    is_exposed,
    is_plain_sum,
    owners,
    reads,
    replace_read,
    replace_written,
    set_operand,
    writes,
)
from .folding import MADE_OF_WEIGHTS

_NOTES = {"lrn": "note", "max_pooling": "index"}
"""What primitives note for their backward pass."""


def make_prelu(calls: list[Call], constants: Constants) -> None:
    """Make a PReLU and a Scale of what nets without such a layer write as two ReLUs, two Scales and
    a sum (s and t: a number for each channel):

        relu(x) + t * relu(s * x) = k * prelu(x, slope)
        slope = t * min(s, 0)     k = 1 + t * max(s, 0)

    Where s is negative, as it should be, k is 1; else the second term is there where x is positive.
    """
    for total in [call for call in calls if is_plain_sum(call, 2)]:
        for first, second in permutations(total.reads["xs"]):
            relu = _chain(calls, total, first, "relu")
            bent = _chain(calls, total, second, "batch_norm", "relu", "batch_norm")
            if relu and bent and _is_prelu([*relu, *bent], relu[-1], bent[-1], total, calls):
                _become_prelu(total, bent[-1], bent[0], calls, constants)
                fuse(calls, total, *(call for call in (*relu, *bent) if call is not bent[0]))
                break


def _chain(calls: Sequence[Call], user: Call, tensor: Tensor, *names: str) -> list[Call]:
    """The calls of these primitives that make, one for the other, what a call reads: the last of
    them first, and the copies between them. Empty: it is made otherwise."""
    chain: list[Call] = []
    index, remaining = calls.index(user), list(names)
    while remaining:
        makers = [i for i in range(index) if writes(calls[i], tensor)]
        if not makers or calls[makers[-1]].writes.get("y") is not tensor:
            return []
        index = makers[-1]
        if calls[index].name != "copy" and calls[index].name != remaining.pop(0):
            return []
        chain.append(calls[index])
        tensor = calls[index].reads["x"]
    return chain


def _is_prelu(
    terms: Sequence[Call], relu: Call, scale: Call, total: Call, calls: Sequence[Call]
) -> bool:
    """Whether the terms of a sum are those of `make_prelu`, of one x, and nothing else reads them.

    relu, scale: what reads x.
    """
    x, users = relu.reads["x"], Users([calls])
    plain: dict[str, dict[str, Any]] = {"copy": {}, "relu": {}}
    plain["batch_norm"] = {"mean": None, "rate": None, "bias": None, "addend": None}
    start = min(calls.index(relu), calls.index(scale))
    return (
        scale.reads["x"] is x
        and all(is_call(call, call.name, **plain[call.name]) for call in terms)
        and not any(call.settings.get("slope") for call in terms)
        and all(users.only(call.writes["y"], *terms, total) for call in terms)
        and not any(writes(call, x) for call in calls[start : calls.index(total)])
    )


def _become_prelu(
    total: Call, inner: Call, outer: Call, calls: list[Call], constants: Constants
) -> None:
    """Let the sum of `make_prelu` be the PReLU, and its outer Scale the one behind it."""
    x, y, scales = inner.reads["x"], total.writes["y"], [inner.reads["scale"], outer.reads["scale"]]
    channels = x.shape[1]

    def record(program: Program) -> tuple[Tensor, ...]:
        made = Tensor((channels,), name="slope"), Tensor((channels,), name="factor")
        formula = "y = b * min(a, 0); z = 1 + b * max(a, 0)"
        program.broadcast(scales, list(made), formula=formula)
        return made

    slope, factor = constants.get(
        (total.position, *(scale.owner for scale in scales), "PReLU"), record
    )
    program = Program()
    slope = slope.view((1, channels, *[1] * (len(x.shape) - 2)))
    program.broadcast([x, slope], [y], formula=PRELU)
    for name in "name", "reads", "writes", "settings":
        setattr(total, name, getattr(program.calls[0], name))
    outer.reads = {"x": y, "scale": factor}
    outer.writes["y"] = y
    outer.position = total.position
    total.trade(outer)
    calls.remove(outer)
    calls.insert(calls.index(total) + 1, outer)


def drop_copies(calls: list[Call]) -> None:
    """Let calls that read a copy read the original, where neither changes any more (a Dropout layer
    that does not work in place makes one)."""
    for call in [call for call in calls if call.name == "copy"]:
        x, y = call.reads["x"], call.writes["y"]
        if is_exposed(y) or x.dtype != y.dtype or x.shape != y.shape:
            continue
        others = [other for other in calls if other is not call]
        later = calls[calls.index(call) + 1 :]
        if any(writes(other, y) for other in others) or any(writes(other, x) for other in later):
            continue
        for other in others:
            replace_read(other, y, x)
        calls.remove(call)


def drop_notes(calls: list[Call]) -> None:
    """Leave out what is noted for a backward pass alone."""
    users = Users([calls])
    for call in calls:
        name = _NOTES.get(call.name, "")
        note = call.writes.get(name)
        if note is not None and users.only(note, call):
            set_operand(call.writes, call, name, None)


def drop_unread(calls: list[Call], constants: Constants) -> None:
    """Leave out calls whose results nobody reads."""
    read: set[Tensor] = set()
    for call in reversed(list(calls)):
        if call.name == "host" or any(
            tensor in read
            or tensor.persistent
            or tensor.array is not None
            or constants.is_parameter(tensor)
            for tensor in owners(call.written_tensors())
        ):
            read |= owners(call.read_tensors())
        else:
            calls.remove(call)


def pack_weights(calls: Sequence[Call], constants: Constants) -> None:
    """Let convolutions and inner products read copies of weights that must be row-major (another
    net's, say): the copies have the layout and the type that the backend wants."""
    for call in calls:
        w = call.reads.get("w")
        if call.name not in MADE_OF_WEIGHTS or w is None or w.layout is not None:
            continue
        if constants.is_parameter(w) and not w.is_open:
            name = (call.position, w.owner, w.shape, "packed")
            (call.reads["w"],) = constants.get(name, partial(_record_packed, w))


def _record_packed(w: Tensor, program: Program) -> tuple[Tensor, ...]:
    packed = Tensor(w.shape, name=f"{w.name} packed", flexible=True)
    program.copy(w, packed)
    return (packed,)


def add_in_place(calls: list[Call], adds: Collection[str]) -> None:
    """Let a convolution add the other term of a residual sum, in that term's memory, and apply the
    ReLU behind it, where nothing uses that term any more.

    adds: the backend's primitives that can add a tensor to what they compute.
    """
    for total in list(calls):
        terms = sum_of_two(total)
        if not terms:
            continue
        users, index, y = Users([calls]), calls.index(total), total.writes["y"]
        later = calls[index + 1 :]
        for term, other in terms:
            maker = _adding_maker(term, other, total, calls[:index], users, adds)
            if maker is None or any(reads(call, other) for call in later):
                continue
            if y.viewed or y.persistent:
                continue
            set_operand(maker.reads, maker, "addend", other)
            maker.writes["y"] = other
            maker.settings["relu"] = 0.0 if total.settings.get("relu") else None
            maker.position = total.position  # it runs in the sum's turn, also layer by layer
            calls.remove(maker)
            calls.insert(index, maker)  # behind the sum, which goes
            fuse(calls, maker, total)
            for call in later:
                replace_read(call, y, other)
                replace_written(call, y, other)
            break


def sum_of_two(call: Call) -> list[tuple[Tensor, Tensor]]:
    """What a call adds, and nothing more but a ReLU; both ways round."""
    if is_plain_sum(call, 2):
        first, second = call.reads["xs"]
    elif call.name == "batch_norm" and set(call.reads) == {"x", "addend"}:
        first, second = call.reads["x"], call.reads["addend"]
    else:
        return []
    return [(first, second), (second, first)] if first is not second else []


def _adding_maker(
    term: Tensor,
    other: Tensor,
    total: Call,
    before: Sequence[Call],
    users: Users,
    adds: Collection[str],
) -> Call | None:
    """The call that makes one term of a sum, for it alone, if it can add the other and be run in
    the sum's place."""
    maker = users.other(term, total, adds)
    if maker is None or is_exposed(term):
        return None
    if maker.settings["relu"] is not None or "addend" in maker.reads or reads(maker, other):
        return None  # what it reads may not change while it writes
    if is_exposed(other) or other.array is not None or not other.flexible:
        return None
    behind = before[before.index(maker) + 1 :]
    if any(writes(call, maker.reads["x"]) for call in behind):
        return None
    return maker
