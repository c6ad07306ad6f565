"""The pass that folds normalization into the weights before it, in nets that only run forward.

Statistics, and what Scale layers learn, are parameters there: so is all that a normalization makes
of them. What computes it goes from the program to the `Constants`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...backends import primitives as ops
from ...backends.primitives import Program
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor
from .constants import Constants
from .editing import Users, fuse, reads, writes

Linear = ops.Convolution | ops.InnerProduct
"""Calls that are linear in their weights."""
Pure = ops.Copy | ops.Elementwise
"""Calls of which a constant may be made."""


def fold_batch_norm(calls: list[Primitive], constants: Constants) -> None:
    """Make a scale and a bias of each normalization by what is constant, and let the convolution or
    inner product before it have them in its weights: those are folded, not the net's own."""
    users = Users([calls])
    for norm in [call for call in calls if isinstance(call, ops.BatchNorm)]:
        makers = _constant_makers(norm, users, constants)
        if makers is None:
            continue
        maker = _linear_maker(norm, calls, users, constants)
        if maker is not None:
            _fold(maker, norm, makers, constants)
            if norm.addend is not None:
                maker.share_work(norm)  # it still adds, and may be a ReLU
            else:
                maker.relu = 0.0 if norm.relu else None
                maker.y = norm.y
                fuse(calls, maker, norm)
        elif makers:
            _make_affine(norm, makers, constants)
        for call in makers:
            calls.remove(call)


def _constant_makers(
    norm: ops.BatchNorm, users: Users, constants: Constants
) -> list[Primitive] | None:
    """The calls that make its mean and inv_std, of parameters alone and for nobody else. None: it
    is not constant."""
    makers: dict[Primitive, None] = {}
    for tensor in norm.channel_params.values():
        if tensor is None or constants.is_parameter(tensor):
            continue
        maker = users.other(tensor, norm)
        if not isinstance(maker, Pure) or tensor.persistent:
            return None
        makers[maker] = None
    known = [norm, *makers]
    for call in makers:
        if not all(constants.is_parameter(tensor) for tensor in call.read_tensors()):
            return None
        if not all(users.only(tensor, *known) for tensor in call.written_tensors()):
            return None
    return list(makers)


def _linear_maker(
    norm: ops.BatchNorm, calls: Sequence[Primitive], users: Users, constants: Constants
) -> Linear | None:
    """The convolution or inner product that makes what it normalizes, for it alone."""
    x = norm.x
    maker = users.other(x, norm)
    if (
        not isinstance(maker, Linear)
        or x.base
        or x.viewed
        or (norm.addend is not None and norm.addend.owner is x.owner)
        or maker.relu is not None
        or (isinstance(maker, ops.Convolution) and maker.addend is not None)
        or not users.only(x, maker, norm)
        or not constants.is_parameter(maker.w)
        or not (maker.b is None or constants.is_parameter(maker.b))
        or len(x.shape) < 2
        or (isinstance(maker, ops.InnerProduct) and len(x.shape) != 2)
    ):
        return None
    between = calls[calls.index(maker) + 1 : calls.index(norm)]
    if any(writes(call, norm.y) or reads(call, norm.y) for call in between):
        return None
    return maker


def _parameters(norm: ops.BatchNorm, makers: Sequence[Primitive]) -> list[Tensor]:
    """The parameters that the constants of a normalization are made of: they name these."""
    affine = [tensor for tensor in (norm.scale, norm.bias) if tensor is not None]
    return [t.owner for t in (*(t for call in makers for t in call.read_tensors()), *affine)]


def _make_affine(norm: ops.BatchNorm, makers: Sequence[Primitive], constants: Constants) -> None:
    """Let a normalization multiply by one constant and add another."""
    given, channels = norm.channel_params, norm.x.shape[1]

    def record(program: Program) -> tuple[Tensor, ...]:
        return _affine(program, channels, given)

    name = (norm.position, *_parameters(norm, makers), "affine")
    norm.scale, norm.bias = constants.get(name, record, *makers)
    norm.mean = norm.inv_std = None
    norm.share_work(*makers)


def _affine(
    program: Program, channels: int, given: Mapping[str, Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Record factor and offset (channels,) of (x + before - mean) * inv_std * scale + bias."""
    factor, offset = Tensor((channels,), name="factor"), Tensor((channels,), name="offset")
    inputs = {name: t.view((channels,)) for name, t in given.items() if t is not None}
    letters = dict(zip(inputs, "abcde", strict=False))
    factors = [letters[name] for name in ("inv_std", "scale") if name in letters]
    product = " * ".join(factors) or "1"
    shift = letters.get("before", "0")
    shift += f" - {letters['mean']}" if "mean" in letters else ""
    end = f" + {letters['bias']}" if "bias" in letters else ""
    formula = f"y = {product}; z = ({shift}) * {product}{end}"
    program.broadcast(list(inputs.values()), [factor, offset], formula=formula)
    return factor, offset


def _fold(
    maker: Linear, norm: ops.BatchNorm, makers: Sequence[Primitive], constants: Constants
) -> None:
    """Let what makes the normalization's input have weights into which it is folded. The
    normalization keeps its addend and its ReLU."""
    w, given = maker.w, norm.channel_params | {"before": maker.b}
    channels = -1 if isinstance(maker, ops.InnerProduct) and maker.transpose else 0

    def record(program: Program) -> tuple[Tensor, ...]:
        factor, offset = _affine(program, w.shape[channels], given)
        shape = [1] * len(w.shape)
        shape[channels] = w.shape[channels]
        product = Tensor(w.shape, name=f"{w.name} scaled")
        folded = Tensor(w.shape, name=f"{w.name} folded", flexible=True)
        program.broadcast([w, factor.view(tuple(shape))], [product], formula="y = a * b")
        program.copy(product, folded)
        return folded, offset

    name = (norm.position, w.owner, *_parameters(norm, makers), "folded")
    maker.w, maker.b = constants.get(name, record, *makers)
    for field in ops.CHANNELS:
        setattr(norm, field, None)
