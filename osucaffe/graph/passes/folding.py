"""Owns the pass that folds normalization into the weights before it, in nets that only run forward.

Statistics, and what Scale layers learn, are parameters there: so is all that a normalization makes
of them. What computes it goes from the program to the `Constants`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...backends.primitives import Program
from ...backends.tensor import Call, Tensor
from .constants import Constants
from .editing import Users, fuse, reads, set_operand, writes

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
        or ("addend" in norm.reads and norm.reads["addend"].owner is x.owner)
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


def _statistics(norm: Call) -> dict[str, Tensor | None]:
    """What a normalization is made of, by the names of its operands."""
    return {name: norm.reads.get(name) for name in ("mean", "rate", "scale", "bias")}


def _parameters(norm: Call, makers: Sequence[Call]) -> list[Tensor]:
    """The parameters that the constants of a normalization are made of: they name these."""
    affine = [norm.reads[name] for name in ("scale", "bias") if name in norm.reads]
    return [t.owner for t in (*(t for call in makers for t in call.read_tensors()), *affine)]


def _make_affine(norm: Call, makers: Sequence[Call], constants: Constants) -> None:
    """Let a normalization multiply by one constant and add another."""

    def record(program: Program) -> tuple[Tensor, ...]:
        return _affine(program, norm.reads["x"].shape[1], _statistics(norm))

    name = (norm.position, *_parameters(norm, makers), "affine")
    scale, bias = constants.get(name, record, *makers)
    norm.trade(*makers)
    for operand, tensor in (("mean", None), ("rate", None), ("scale", scale), ("bias", bias)):
        set_operand(norm.reads, norm, operand, tensor)


def _affine(
    program: Program, channels: int, given: Mapping[str, Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Record factor and offset (channels,): those of (x + before - mean) * rate * scale + bias."""
    factor, offset = Tensor((channels,), name="factor"), Tensor((channels,), name="offset")
    inputs = {name: t.view((channels,)) for name, t in given.items() if t is not None}
    letters = dict(zip(inputs, "abcde", strict=False))
    factors = [letters[name] for name in ("rate", "scale") if name in letters]
    product = " * ".join(factors) or "1"
    shift = letters.get("before", "0")
    shift += f" - {letters['mean']}" if "mean" in letters else ""
    end = f" + {letters['bias']}" if "bias" in letters else ""
    formula = f"y = {product}; z = ({shift}) * {product}{end}"
    program.broadcast(list(inputs.values()), [factor, offset], formula=formula)
    return factor, offset


def _fold(maker: Call, norm: Call, makers: Sequence[Call], constants: Constants) -> None:
    """Let what makes the normalization's input have weights into which it is folded. The
    normalization keeps its addend and its ReLU."""
    w = maker.reads["w"]
    channels = -1 if maker.settings.get("transpose", False) else 0

    def record(program: Program) -> tuple[Tensor, ...]:
        given = _statistics(norm) | {"before": maker.reads.get("b")}
        factor, offset = _affine(program, w.shape[channels], given)
        shape = [1] * len(w.shape)
        shape[channels] = w.shape[channels]
        product = Tensor(w.shape, name=f"{w.name} scaled")
        folded = Tensor(w.shape, name=f"{w.name} folded", flexible=True)
        program.broadcast([w, factor.view(tuple(shape))], [product], formula="y = a * b")
        program.copy(product, folded)
        return folded, offset

    name = (norm.position, w.owner, *_parameters(norm, makers), "folded")
    folded, offset = constants.get(name, record, *makers)
    maker.reads["w"] = folded
    set_operand(maker.reads, maker, "b", offset)
    for operand in _statistics(norm):
        set_operand(norm.reads, norm, operand, None)
