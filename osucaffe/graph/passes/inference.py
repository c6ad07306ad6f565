"""Owns the passes for nets that only run forward: they keep what the outputs need, and compute
constants of the parameters once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...backends.primitives import Program
from ...backends.tensor import Call, Tensor
from .calls import (
    Users,
    give,
    is_plain_sum,
    key,
    reads,
    replace_read,
    without,
    writes,
)
from .constants import Constants
from .folding import MADE_OF_WEIGHTS, fold_batch_norm
from .fusion import fuse_relu

Forward = list[Call]
Pass = Callable[[Forward, Constants, Collection[str]], Forward]
"""pass(forward, constants, adds): the calls of forward, fewer. adds: the backend's primitives that
can add a tensor to what they compute."""

_NOTES = {"lrn": "note", "max_pooling": "index"}
"""What primitives note for their backward pass."""


def drop_copies(calls: Forward, constants: Constants, adds: Collection[str]) -> Forward:
    """Let who reads a copy read the original, where neither changes any more (a Dropout layer with
    a top of its own makes one)."""
    dropped: set[int] = set()
    for place, call in enumerate(calls):
        if call.name != "copy":
            continue
        x, y = call.reads["x"], call.writes["y"]
        if y.persistent or y.base or y.viewed or x.dtype != y.dtype or x.shape != y.shape:
            continue
        others = [each for each in calls if each is not call]
        if any(writes(each, y) for each in others) or any(
            writes(each, x) for each in calls[place + 1 :]
        ):
            continue
        for each in others:
            replace_read(each, y, x)
        dropped.add(id(call))
    return without(calls, dropped)


def drop_notes(calls: Forward, constants: Constants, adds: Collection[str]) -> Forward:
    """Leave out what is noted for a backward pass alone."""
    users = Users([calls])
    for call in calls:
        name = _NOTES.get(call.name, "")
        note = call.writes.get(name)
        if note is not None and users.only(note, call):
            del call.writes[name]
            call.settings[name] = None
    return calls


def drop_unread(calls: Forward, constants: Constants, adds: Collection[str]) -> Forward:
    """Leave out calls whose results nobody reads."""
    wanted: set[int] = set()
    left: Forward = []
    for call in reversed(calls):
        written = [tensor.base or tensor for tensor in call.written_tensors()]
        if (
            call.name == "host"
            or any(tensor.persistent or tensor.array is not None for tensor in written)
            or any(id(tensor) in wanted or constants.is_parameter(tensor) for tensor in written)
        ):
            wanted.update(map(key, call.read_tensors()))
            left.append(call)
    return left[::-1]


def pack_weights(calls: Forward, constants: Constants, adds: Collection[str]) -> Forward:
    """Let convolutions and inner products read copies of weights that must lie row-major (another
    net's, say): they lie, and are, as the backend wants it."""
    for call in calls:
        w = call.reads.get("w")
        if call.name not in MADE_OF_WEIGHTS or w is None or w.layout is not None:
            continue
        if constants.is_parameter(w) and not w.is_open:
            call.reads["w"] = _packed(call, w, constants)
    return calls


def _packed(call: Call, w: Tensor, constants: Constants) -> Tensor:
    def record(program: Program) -> tuple[Tensor, ...]:
        packed = Tensor(w.shape, name=f"{w.name} packed", flexible=True)
        program.copy(w, packed)
        return (packed,)

    (packed,) = constants.get((call.position, key(w), w.shape, "packed"), record)
    return packed


def add_in_place(calls: Forward, constants: Constants, adds: Collection[str]) -> Forward:
    """Let a convolution add the other term of a residual sum, in that term's memory, and apply the
    ReLU behind it, where nobody wants that term any more."""
    result = list(calls)
    for call in calls:
        found = _sum_of_two(call)
        if found is None:
            continue
        users = Users([result])
        place = next(i for i, each in enumerate(result) if each is call)
        for term, other in found:
            maker = _adding_maker(term, other, call, result[:place], users, adds)
            y = call.writes["y"]
            later = result[place + 1 :]
            if (
                maker is None
                or any(reads(each, other) for each in later)
                or y.viewed
                or y.persistent
            ):
                continue
            give(maker.reads, maker, "addend", other)
            maker.writes["y"] = other
            maker.settings["relu"] = 0.0 if call.settings.get("relu") else None
            maker.position = call.position  # it runs in the sum's turn, also layer by layer
            maker.fuse(call)
            for each in later:
                _replace(each, y, other)
            result = [each for each in result[:place] if each is not maker] + [maker, *later]
            break
    return result


def _sum_of_two(call: Call) -> list[tuple[Tensor, Tensor]] | None:
    """What a call adds, and nothing more but a ReLU; both ways round."""
    if is_plain_sum(call, 2):
        first, second = call.reads["xs"]
    elif call.name == "batch_norm" and set(call.reads) == {"x", "addend"}:
        first, second = call.reads["x"], call.reads["addend"]
    else:
        return None
    return [(first, second), (second, first)] if first is not second else None


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
    found = [call for call in users.of(term) if call is not total]
    if len(found) != 1 or found[0].name not in adds or term.base or term.viewed or term.persistent:
        return None
    maker = found[0]
    if maker.settings["relu"] is not None or "addend" in maker.reads or reads(maker, other):
        return None  # what it reads may not change while it writes
    if (
        other.base
        or other.viewed
        or other.persistent
        or other.array is not None
        or not other.flexible
    ):
        return None
    behind = before[[id(call) for call in before].index(id(maker)) + 1 :]
    if any(writes(call, maker.reads["x"]) for call in behind):
        return None
    return maker


def _replace(call: Call, old: Tensor, new: Tensor) -> None:
    """Let a call read and write another tensor."""
    replace_read(call, old, new)
    for name, value in call.writes.items():
        if isinstance(value, list):
            call.writes[name] = [new if each is old else each for each in value]
        elif value is old:
            call.writes[name] = new


INFERENCE: tuple[tuple[str, Pass], ...] = (
    ("drop copies", drop_copies),
    ("fold batch norm", lambda calls, constants, adds: fold_batch_norm(calls, constants)),
    ("add in place", add_in_place),
    ("fuse ReLU of sums", lambda calls, constants, adds: fuse_relu(calls)),
    ("drop notes", drop_notes),
    ("drop unread results", drop_unread),
    ("pack weights", pack_weights),
)
"""By name, in the order in which they run."""
