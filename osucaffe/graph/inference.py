"""Owns the passes for nets that only run forward: constants of the parameters are computed once,
normalization goes into the weights before it, and what nobody reads is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ..backends.primitives import Program
from ..backends.tensor import Call, Tensor
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
from .fusion import fuse_relu

Forward = list[Call]
Pass = Callable[[Forward, Constants, Collection[str]], Forward]
"""pass(forward, constants, adds): the calls of forward, fewer. adds: the backend's primitives that
can add a tensor to what they compute."""

_MADE_OF_WEIGHTS = {"convolution": 0, "inner_product": -1}
"""Primitives that are linear in their weights, and the axis of the outputs there (0, or the last
of those that are transposed)."""
_PURE = {"broadcast", "copy", "elementwise"}
"""Primitives of which a constant may be made."""
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


def fold_batch_norm(calls: Forward, constants: Constants, adds: Collection[str]) -> Forward:
    """Make a scale and a bias of each normalization by what is constant, and let the convolution or
    inner product before it have them in its weights: those are folded, not the net's own."""
    users = Users([calls])
    dropped: set[int] = set()
    for norm in [call for call in calls if call.name == "batch_norm"]:
        makers = _constant_makers(norm, users, constants)
        if makers is None:
            continue
        maker = _linear_maker(norm, calls, users, constants)
        if maker is not None:
            _fold(maker, norm, makers, constants)
            dropped.update(map(id, makers))
            if "addend" in norm.reads or norm.settings["relu"]:
                if "addend" not in norm.reads:
                    maker.settings["relu"] = 0.0
                else:
                    continue  # what it still does: add, and be a ReLU
            maker.writes["y"] = norm.writes["y"]
            maker.fuse(norm)
            dropped.add(id(norm))
        elif makers:
            _make_affine(norm, makers, constants)
            dropped.update(map(id, makers))
    return without(calls, dropped)


def _constant_makers(norm: Call, users: Users, constants: Constants) -> list[Call] | None:
    """The calls that make its mean and rate, of parameters alone and for nobody else. None: it is
    not constant."""
    small = [norm.reads.get(name) for name in ("mean", "rate", "scale", "bias")]
    makers: dict[int, Call] = {}
    for tensor in small:
        if tensor is None or constants.is_parameter(tensor):
            continue
        found = [call for call in users.of(tensor) if call is not norm]
        if len(found) != 1 or found[0].name not in _PURE or tensor.persistent:
            return None
        makers[id(found[0])] = found[0]
    known = [norm, *makers.values()]
    for call in makers.values():
        if not all(constants.is_parameter(tensor) for tensor in call.read_tensors()):
            return None
        if not all(users.only(tensor, *known) for tensor in call.written_tensors()):
            return None
    return list(makers.values())


def _linear_maker(
    norm: Call, calls: Sequence[Call], users: Users, constants: Constants
) -> Call | None:
    """The convolution or inner product that makes what it normalizes, for it alone."""
    x = norm.reads["x"]
    found = [call for call in users.of(x) if call is not norm]
    if len(found) != 1 or found[0].name not in _MADE_OF_WEIGHTS or x.base or x.viewed:
        return None
    if "addend" in norm.reads and key(norm.reads["addend"]) == key(x):
        return None
    maker = found[0]
    tensors = [maker.reads["w"], *([maker.reads["b"]] if "b" in maker.reads else [])]
    if (
        maker.settings["relu"] is not None
        or "addend" in maker.reads
        or not users.only(x, maker, norm)
        or not all(map(constants.is_parameter, tensors))
        or len(x.shape) < 2
        or (maker.name == "inner_product" and len(x.shape) != 2)
    ):
        return None
    between = calls[calls.index(maker) + 1 : calls.index(norm)]
    if any(writes(call, norm.writes["y"]) or reads(call, norm.writes["y"]) for call in between):
        return None
    return maker


def _name(norm: Call, *others: Call) -> tuple[object, ...]:
    """What names the constants of a normalization: its place in the net, and the parameters."""
    tensors = [tensor for call in others for tensor in call.read_tensors()]
    own = [norm.reads.get(name) for name in ("scale", "bias")]
    return norm.position, *(key(each) for each in [*tensors, *own] if each is not None)


def _make_affine(norm: Call, makers: Sequence[Call], constants: Constants) -> None:
    """Let a normalization multiply by one constant and add another."""
    statistics = {name: norm.reads.get(name) for name in ("mean", "rate", "scale", "bias")}

    def record(program: Program) -> tuple[Tensor, ...]:
        return _affine(program, norm.reads["x"].shape[1], **statistics, b=None)

    scale, bias = constants.get((*_name(norm, *makers), "affine"), record, *makers)
    for name in "mean", "rate":
        norm.reads.pop(name, None)
        norm.settings[name] = None
    give(norm.reads, norm, "scale", scale)
    give(norm.reads, norm, "bias", bias)


def _affine(
    program: Program,
    channels: int,
    mean: Tensor | None,
    rate: Tensor | None,
    scale: Tensor | None,
    bias: Tensor | None,
    b: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Record factor and offset (channels,): those of (x + b - mean) * rate * scale + bias."""
    factor, offset = Tensor((channels,), name="factor"), Tensor((channels,), name="offset")
    given = {"mean": mean, "rate": rate, "scale": scale, "bias": bias, "before": b}
    inputs = {n: t.view((channels,)) for n, t in given.items() if t is not None}
    letters = dict(zip(inputs, "abcde", strict=False))
    factors = [letters[name] for name in ("rate", "scale") if name in letters]
    product = " * ".join(factors) or "1"
    shift = letters.get("before", "0")
    shift += f" - {letters['mean']}" if mean is not None else ""
    end = f" + {letters['bias']}" if bias is not None else ""
    formula = f"y = {product}; z = ({shift}) * {product}{end}"
    program.broadcast(list(inputs.values()), [factor, offset], formula=formula)
    return factor, offset


def _fold(maker: Call, norm: Call, makers: Sequence[Call], constants: Constants) -> None:
    """Let what makes the normalization's input have weights into which it is folded. The
    normalization keeps its addend and its ReLU."""
    w, b = maker.reads["w"], maker.reads.get("b")
    statistics = {name: norm.reads.get(name) for name in ("mean", "rate", "scale", "bias")}
    transposed = maker.settings.get("transpose", False)
    outputs = w.shape[-1] if transposed else w.shape[0]

    def record(program: Program) -> tuple[Tensor, ...]:
        factor, offset = _affine(program, outputs, **statistics, b=b)
        shape = [1] * len(w.shape)
        shape[-1 if transposed else 0] = outputs
        product = Tensor(w.shape, name=f"{w.name} scaled")
        folded = Tensor(w.shape, name=f"{w.name} folded", flexible=True)
        program.broadcast([w, factor.view(tuple(shape))], [product], formula="y = a * b")
        program.copy(product, folded)
        return folded, offset

    name = (*_name(norm, maker, *makers)[:1], key(w), *_name(norm, *makers)[1:], "folded")
    folded, offset = constants.get(name, record, *makers)
    maker.reads["w"] = folded
    give(maker.reads, maker, "b", offset)
    for name_ in "mean", "rate", "scale", "bias":
        norm.reads.pop(name_, None)
        norm.settings[name_] = None


def pack_weights(calls: Forward, constants: Constants, adds: Collection[str]) -> Forward:
    """Let convolutions and inner products read copies of weights that must lie row-major (another
    net's, say): they lie, and are, as the backend wants it."""
    for call in calls:
        w = call.reads.get("w")
        if call.name not in _MADE_OF_WEIGHTS or w is None or w.layout is not None:
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
    ("fold batch norm", fold_batch_norm),
    ("add in place", add_in_place),
    ("fuse ReLU of sums", lambda calls, constants, adds: fuse_relu(calls)),
    ("drop notes", drop_notes),
    ("drop unread results", drop_unread),
    ("pack weights", pack_weights),
)
"""By name, in the order in which they run."""
