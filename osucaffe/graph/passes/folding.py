"""Owns the pass that folds normalization into the weights before it, in nets that only run forward.

Statistics, and what Scale layers learn, are parameters there: so is all that a normalization makes
of them. What computes it goes from the program to the `Constants`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...backends.primitives import Program
from ...backends.tensor import Call, Tensor
from .constants import Constants
from .editing import Users, fuse, give, key, reads, take, writes

MADE_OF_WEIGHTS = {"convolution", "inner_product"}
"""Primitives that are linear in their weights."""
_PURE = {"broadcast", "copy", "elementwise"}
"""Primitives of which a constant may be made."""


def fold_batch_norm(calls: list[Call], constants: Constants) -> None:
    """Make a scale and a bias of each normalization by what is constant, and let the convolution or
    inner product before it have them in its weights: those are folded, not the net's own."""
    users = Users([calls])
    for norm in [call for call in calls if call.name == "batch_norm"]:
        makers = _constant_makers(norm, users, constants)
        if makers is None:
            continue
        maker = _linear_maker(norm, calls, users, constants)
        if maker is not None:
            _fold(maker, norm, makers, constants)
            if "addend" in norm.reads:
                maker.trade(norm)  # it still adds, and may be a ReLU
            else:
                if norm.settings["relu"]:
                    maker.settings["relu"] = 0.0
                maker.writes["y"] = norm.writes["y"]
                fuse(calls, maker, norm)
        elif makers:
            _make_affine(norm, makers, constants)
        for call in makers:
            calls.remove(call)


def _constant_makers(norm: Call, users: Users, constants: Constants) -> list[Call] | None:
    """The calls that make its mean and rate, of parameters alone and for nobody else. None: it is
    not constant."""
    makers: dict[int, Call] = {}
    for name in ("mean", "rate", "scale", "bias"):
        tensor = norm.reads.get(name)
        if tensor is None or constants.is_parameter(tensor):
            continue
        maker = users.other(tensor, norm, _PURE)
        if maker is None or tensor.persistent:
            return None
        makers[id(maker)] = maker
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
    maker = users.other(x, norm, MADE_OF_WEIGHTS)
    if (
        maker is None
        or x.base
        or x.viewed
        or ("addend" in norm.reads and key(norm.reads["addend"]) == key(x))
    ):
        return None
    weights = [maker.reads[name] for name in ("w", "b") if name in maker.reads]
    if (
        maker.settings["relu"] is not None
        or "addend" in maker.reads
        or not users.only(x, maker, norm)
        or not all(map(constants.is_parameter, weights))
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
    norm.trade(*makers)
    take(norm.reads, norm, "mean", "rate")
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
    take(norm.reads, norm, "mean", "rate", "scale", "bias")
