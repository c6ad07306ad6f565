"""The passes for nets that only run forward: they keep what the outputs need, and compute
constants of the parameters once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations

from ...backends import primitives as ops
from ...backends.formula import PRELU
from ...backends.primitives import Program
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor
from .constants import Constants
from .editing import (
    Kinds,
    Users,
    fuse,
    is_exposed,
    is_plain_sum,
    owners,
    reads,
    replace_call,
    replace_read,
    replace_written,
    writes,
)
from .folding import Linear


def make_prelu(calls: list[Primitive], constants: Constants) -> None:
    """Make a PReLU and a Scale of what nets without such a layer write as two ReLUs, two Scales and
    a sum (s and t: a number for each channel):

        relu(x) + t * relu(s * x) = k * prelu(x, slope)
        slope = t * min(s, 0)     k = 1 + t * max(s, 0)

    Where s is negative, as it should be, k is 1; else the second term is there where x is positive.
    """
    for total in [call for call in calls if is_plain_sum(call, 2)]:
        for first, second in permutations(total.xs):
            relu = _chain(calls, total, first, ops.Relu)
            bent = _chain(calls, total, second, ops.BatchNorm, ops.Relu, ops.BatchNorm)
            match bent:
                case [ops.BatchNorm() as outer, *between, ops.BatchNorm() as inner] if (
                    relu and _is_prelu(relu, bent, total, calls)
                ):
                    prelu = _become_prelu(total, inner, outer, calls, constants)
                    fuse(calls, prelu, *relu, *between, inner)
                    break


def _chain(
    calls: Sequence[Primitive], user: Primitive, tensor: Tensor, *kinds: type[Primitive]
) -> list[ops.Copy | ops.Relu | ops.BatchNorm]:
    """The calls of these primitives that make, one for the other, what a call reads: the last of
    them first, and the copies between them. Empty: it is made otherwise."""
    chain: list[ops.Copy | ops.Relu | ops.BatchNorm] = []
    index, remaining = calls.index(user), list(kinds)
    while remaining:
        makers = [i for i in range(index) if writes(calls[i], tensor)]
        if not makers:
            return []
        index = makers[-1]
        maker = calls[index]
        if not isinstance(maker, ops.Copy | ops.Relu | ops.BatchNorm) or maker.y is not tensor:
            return []
        if not isinstance(maker, ops.Copy) and not isinstance(maker, remaining.pop(0)):
            return []
        chain.append(maker)
        tensor = maker.x
    return chain


def _is_prelu(
    relu: Sequence[ops.Copy | ops.Relu | ops.BatchNorm],
    bent: Sequence[ops.Copy | ops.Relu | ops.BatchNorm],
    total: ops.Sum,
    calls: Sequence[Primitive],
) -> bool:
    """Whether the terms of a sum are those of `make_prelu`, of one x, and nothing else reads them.
    relu, bent: what makes the terms, the last first."""
    x, users, terms = relu[-1].x, Users([calls]), [*relu, *bent]
    start = min(calls.index(relu[-1]), calls.index(bent[-1]))
    return (
        bent[-1].x is x
        and all(map(_is_plain, terms))
        and all(users.only(call.y, *terms, total) for call in terms)
        and not any(writes(call, x) for call in calls[start : calls.index(total)])
    )


def _is_plain(call: Primitive) -> bool:
    """Whether it is a copy, a ReLU that makes zeros, or a product by a number for each channel."""
    match call:
        case (
            ops.Copy()
            | ops.Relu(slope=0)
            | ops.BatchNorm(mean=None, inv_std=None, bias=None, addend=None)
        ):
            return True
    return False


def _become_prelu(
    total: ops.Sum,
    inner: ops.BatchNorm,
    outer: ops.BatchNorm,
    calls: list[Primitive],
    constants: Constants,
) -> ops.Broadcast:
    """Let a PReLU take the place of the sum of `make_prelu`, and its outer Scale come after it."""
    x, y, channels = inner.x, total.y, inner.x.shape[1]
    scales = [scale for scale in (inner.scale, outer.scale) if scale is not None]

    def record(program: Program) -> tuple[Tensor, ...]:
        made = Tensor((channels,), name="slope"), Tensor((channels,), name="factor")
        formula = "y = b * min(a, 0); z = 1 + b * max(a, 0)"
        program.broadcast(scales, list(made), formula=formula)
        return made

    slope, factor = constants.get(
        (total.position, *(scale.owner for scale in scales), "PReLU"), record
    )
    slope = slope.view((1, channels, *[1] * (len(x.shape) - 2)))
    prelu = ops.Broadcast([x, slope], [y], formula=PRELU)
    replace_call(calls, total, prelu)
    outer.x, outer.scale, outer.y = y, factor, y
    outer.position = total.position
    prelu.share_work(outer)
    calls.remove(outer)
    calls.insert(calls.index(prelu) + 1, outer)
    return prelu


def drop_copies(calls: list[Primitive]) -> None:
    """Let calls that read a copy read the original, where neither changes any more (a Dropout layer
    that does not work in place makes one)."""
    for call in [call for call in calls if isinstance(call, ops.Copy)]:
        x, y = call.x, call.y
        if is_exposed(y) or x.dtype != y.dtype or x.shape != y.shape:
            continue
        others = [other for other in calls if other is not call]
        later = calls[calls.index(call) + 1 :]
        if any(writes(other, y) for other in others) or any(writes(other, x) for other in later):
            continue
        for other in others:
            replace_read(other, y, x)
        calls.remove(call)


def drop_workspaces(calls: list[Primitive]) -> None:
    """Leave out what is noted for a backward pass alone."""
    users = Users([calls])
    for call in calls:
        match call:
            case ops.Lrn(workspace=Tensor() as workspace) if users.only(workspace, call):
                call.workspace = None
            case ops.MaxPooling(index=Tensor() as index) if users.only(index, call):
                call.index = None


def drop_unread(calls: list[Primitive], constants: Constants) -> None:
    """Leave out calls whose results nobody reads."""
    read: set[Tensor] = set()
    for call in reversed(list(calls)):
        if isinstance(call, ops.Host) or any(
            tensor in read
            or tensor.persistent
            or tensor.array is not None
            or constants.is_parameter(tensor)
            for tensor in owners(call.written_tensors())
        ):
            read |= owners(call.read_tensors())
        else:
            calls.remove(call)


def pack_weights(calls: Sequence[Primitive], constants: Constants) -> None:
    """Let convolutions and inner products read copies of weights that must be row-major (another
    net's, say): the copies have the layout and the type that the backend wants."""
    for call in calls:
        if isinstance(call, Linear) and call.w.layout is None:
            w = call.w
            if constants.is_parameter(w) and not w.layout_undecided:
                name = (call.position, w.owner, w.shape, "packed")
                (call.w,) = constants.get(name, partial(_record_packed, w))


def _record_packed(w: Tensor, program: Program) -> tuple[Tensor, ...]:
    packed = Tensor(w.shape, name=f"{w.name} packed", flexible=True)
    program.copy(w, packed)
    return (packed,)


def add_in_place(calls: list[Primitive], adds: Kinds) -> None:
    """Let a convolution add the other term of a residual sum, in that term's memory, and apply the
    ReLU after it, where nothing uses that term any more.

    adds: the backend's primitives that can add a tensor to what they compute.
    """
    for total in list(calls):
        if not isinstance(total, ops.Sum | ops.BatchNorm) or not (terms := sum_of_two(total)):
            continue
        users, index, y = Users([calls]), calls.index(total), total.y
        later = calls[index + 1 :]
        for term, other in terms:
            maker = _adding_maker(term, other, total, calls[:index], users, adds)
            if maker is None or any(reads(call, other) for call in later):
                continue
            if y.viewed or y.persistent:
                continue
            maker.addend, maker.y = other, other
            maker.relu = 0.0 if isinstance(total, ops.BatchNorm) and total.relu else None
            maker.position = total.position  # it runs in the sum's turn, also layer by layer
            calls.remove(maker)
            calls.insert(index, maker)  # after the sum, which goes
            fuse(calls, maker, total)
            for call in later:
                replace_read(call, y, other)
                replace_written(call, y, other)
            break


def sum_of_two(call: Primitive) -> list[tuple[Tensor, Tensor]]:
    """What a call adds, and nothing more but a ReLU; both ways round."""
    match call:
        case ops.Sum() if is_plain_sum(call, 2):
            first, second = call.xs
        case ops.BatchNorm(
            x=first, mean=None, inv_std=None, scale=None, bias=None, addend=Tensor() as second
        ):
            pass
        case _:
            return []
    return [(first, second), (second, first)] if first is not second else []


def _adding_maker(
    term: Tensor,
    other: Tensor,
    total: Primitive,
    before: Sequence[Primitive],
    users: Users,
    adds: Kinds,
) -> ops.Convolution | None:
    """The call that makes one term of a sum, for it alone, if it can add the other and be run in
    the sum's place."""
    maker = users.other(term, total)
    if not isinstance(maker, ops.Convolution) or not isinstance(maker, adds) or is_exposed(term):
        return None
    if maker.relu is not None or maker.addend is not None or reads(maker, other):
        return None  # what it reads may not change while it writes
    if is_exposed(other) or other.array is not None or not other.flexible:
        return None
    behind = before[before.index(maker) + 1 :]
    if any(writes(call, maker.x) for call in behind):
        return None
    return maker
