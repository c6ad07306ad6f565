"""Owns ReLU, ELU, PReLU, sum, copy, concat and split on oneDNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...formula import ELU, PRELU
from ...tensor import Step, Tensor
from . import api
from .api import Descriptor, PrimitiveDescriptor, Unsupported
from .memory import in_sequence
from .preparation import Operand, Preparation


def _relu(
    p: Preparation, form: Descriptor, slope: float, kind: int = api.RELU
) -> PrimitiveDescriptor:
    return p.library.describe("eltwise_forward", api.FORWARD_TRAINING, kind, form, form, slope, 0.0)


def relu(p: Preparation, x: Tensor, y: Tensor, *, slope: float) -> Step:
    """See `Program.relu`."""
    source = p.operand(x)
    chosen = _relu(p, source.chosen_form, slope)
    return p.step(chosen, {api.SRC: source}, {api.DST: p.operand(y)})


def relu_backward(p: Preparation, x: Tensor, dy: Tensor, dx: Tensor, *, slope: float) -> Step:
    """See `Program.relu_backward`."""
    source = p.operand(x)
    form = source.chosen_form
    hint = _relu(p, form, slope)
    chosen = p.library.describe("eltwise_backward", api.RELU, form, form, form, slope, 0.0, hint)
    return p.step(
        chosen, {api.SRC: source, api.DIFF_DST: p.operand(dy)}, {api.DIFF_SRC: p.operand(dx)}
    )


def elementwise(
    p: Preparation,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    formula: str,
    constants: Mapping[str, float] | None,
) -> Step | None:
    """See `Program.elementwise`; all but ELU is left to NumPy."""
    if formula != ELU:
        return None
    source = p.operand(inputs[0])
    chosen = _relu(p, source.chosen_form, (constants or {})["alpha"], api.ELU)
    return p.step(chosen, {api.SRC: source}, {api.DST: p.operand(outputs[0])})


def broadcast(
    p: Preparation,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    formula: str,
    constants: Mapping[str, float] | None,
) -> Step | None:
    """See `Program.broadcast`; all but PReLU is left to NumPy."""
    if formula != PRELU:
        return None
    source, slope = map(p.operand, inputs)
    form = source.chosen_form
    free = p.library.any(slope.tensor.shape)
    chosen = p.library.describe("prelu_forward", api.FORWARD_TRAINING, form, free, form)
    if chosen.is_reference:
        return None
    return p.step(chosen, {api.SRC: source, api.WEIGHTS: slope}, {api.DST: p.operand(outputs[0])})


def sum(
    p: Preparation, xs: Sequence[Tensor], y: Tensor, *, coefficients: Sequence[float] | None
) -> Step:
    """See `Program.sum`."""
    factors = coefficients or [1.0] * len(xs)
    # Where y is one of xs that comes first: oneDNN overwrites y with it, then adds the others.
    order = sorted(range(len(xs)), key=lambda i: xs[i] is not y)
    operands = [p.operand(xs[i]) for i in order]
    form = operands[0].chosen_form
    chosen = p.library.describe("sum", form, len(xs), [factors[i] for i in order], [form] * len(xs))
    return p.step(chosen, _numbered(operands), {api.DST: p.operand(y)})


def copy(p: Preparation, x: Tensor, y: Tensor) -> Step:
    """See `Program.copy`."""
    layout = x.layout or y.layout
    plain = None if layout is None else layout.plain
    source, target = p.operand(x, plain), p.operand(y, plain)
    form = source.chosen_form
    chosen = p.library.describe("reorder", form, form if y.is_open else target.form)
    return p.step(chosen, {api.SRC: source}, {api.DST: target})


def concat(p: Preparation, xs: Sequence[Tensor], y: Tensor, *, axis: int) -> Step:
    """See `Program.concat`."""
    operands, target = [p.operand(x) for x in xs], p.operand(y)
    form = None if y.is_open else target.form
    chosen = p.library.describe(
        "concat", form, len(xs), axis % len(y.shape), [operand.chosen_form for operand in operands]
    )
    return p.step(chosen, _numbered(operands), {api.DST: target})


def split(p: Preparation, x: Tensor, ys: Sequence[Tensor | None], *, axis: int) -> Step:
    """See `Program.split`. Each part is a reorder out of a window of x."""
    form = p.operand(x).chosen_form
    steps: list[Step] = []
    start = [0] * len(x.shape)
    for y in ys:
        if y is None:
            raise Unsupported("a part of unknown extent")
        window = p.library.window(form, y.shape, start)
        steps.append(p.reorder((x, window), p.operand(y).formatted))
        start[axis] += y.shape[axis]
    return in_sequence(steps)


def _numbered(operands: Sequence[Operand]) -> dict[int, Operand | None]:
    return {api.MULTIPLE_SRC + i: operand for i, operand in enumerate(operands)}
