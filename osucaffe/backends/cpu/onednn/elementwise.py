"""ReLU, ELU, PReLU, products and sums, copy, concat and split on oneDNN."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...formula import ELU, PRELU
from ...primitives import formulas, movement
from ...tensor import Step
from . import api
from .api import Descriptor, PostOperation, PrimitiveDescriptor, Unsupported
from .memory import in_sequence
from .preparation import Operand, Preparation

_LARGEST = float(np.finfo(np.float32).max)


def relu_operation(slope: float) -> PostOperation:
    """ReLU after another primitive. NaN stays: oneDNN's own makes it 0 where there is no slope.
    There x is multiplied by x * _LARGEST, cut off at 0 and 1."""
    return ("eltwise", api.RELU, slope, 0.0) if slope else ("eltwise", api.HARDSWISH, _LARGEST, 0.0)


def _forward(p: Preparation, form: Descriptor, kind: int, *numbers: float) -> PrimitiveDescriptor:
    return p.library.describe("eltwise_forward", api.FORWARD_TRAINING, kind, form, form, *numbers)


def relu6_operations(n: float, slope: float) -> list[PostOperation]:
    """ReLU6 behind another primitive; NaN stays, as of ReLU: n + min(y - n, 0)."""
    below = ("eltwise", api.HARDSWISH, -_LARGEST, 0.0)
    moved, back = (("eltwise", api.LINEAR, 1.0, offset) for offset in (-n, n))
    return [relu_operation(slope), moved, below, back]


def relu(p: Preparation, a: formulas.Relu) -> Step:
    source = p.operand(a.x)
    chosen = _forward(p, source.chosen_form, *relu_operation(a.slope)[1:])
    return p.step(chosen, {api.SRC: source}, {api.DST: p.operand(a.y)})


def relu_backward(p: Preparation, a: formulas.ReluBackward) -> Step:
    source = p.operand(a.x)
    form = source.chosen_form
    hint = _forward(p, form, api.RELU, a.slope, 0.0)
    chosen = p.library.describe("eltwise_backward", api.RELU, form, form, form, a.slope, 0.0, hint)
    return p.step(
        chosen, {api.SRC: source, api.DIFF_DST: p.operand(a.dy)}, {api.DIFF_SRC: p.operand(a.dx)}
    )


def elementwise(p: Preparation, a: formulas.Elementwise) -> Step | None:
    """All but ELU is left to NumPy."""
    if a.formula != ELU:
        return None
    source = p.operand(a.inputs[0])
    chosen = _forward(p, source.chosen_form, api.ELU, (a.constants or {})["alpha"], 0.0)
    return p.step(chosen, {api.SRC: source}, {api.DST: p.operand(a.outputs[0])})


_BINARY = {
    "y = a * b": [api.BINARY_MULTIPLY],
    "y = a + b": [api.BINARY_ADD],
    "y = a * b + c": [api.BINARY_MULTIPLY, api.BINARY_ADD],
}


def broadcast(p: Preparation, a: formulas.Broadcast) -> Step | None:
    """All but PReLU, products and sums is left to NumPy."""
    if a.formula in _BINARY:
        first = sorted(a.inputs[:2], key=lambda x: x.count, reverse=True)
        operands = [p.operand(x) for x in (*first, *a.inputs[2:])]
        return binary(p, _BINARY[a.formula], operands, p.operand(a.outputs[0]))
    if a.formula != PRELU:
        return None
    x, slopes = a.inputs
    in_place = x.owner is a.outputs[0].owner
    if in_place and x.count == slopes.count and x.count % 16:
        return None  # oneDNN gives what is after its last whole vector the slope twice
    source, slope = map(p.operand, a.inputs)
    form = source.chosen_form
    free = p.library.any(slope.tensor.shape)
    chosen = p.library.describe("prelu_forward", api.FORWARD_TRAINING, form, free, form)
    if chosen.is_reference:
        return None
    return p.step(chosen, {api.SRC: source, api.WEIGHTS: slope}, {api.DST: p.operand(a.outputs[0])})


def binary(
    p: Preparation,
    kinds: Sequence[int],
    operands: Sequence[Operand],
    y: Operand,
    relu: bool = False,
) -> Step | None:
    """y = the first operand, multiplied by or added to each of the others, which may have extents
    of 1; then ReLU.

    Left to NumPy is what only reference code can do, and what oneDNN 3.2 gets wrong: numbers for
    each channel that it adds besides, to planes of one element.
    """
    first, *others = operands
    form = first.chosen_form
    extents = y.plain.dimensions
    repeats = any(other.tensor.count < y.tensor.count for other in others[1:])
    if form.dimensions != extents or (repeats and math.prod(extents[2:]) == 1):
        return None
    forms = [other.plain if other.tensor.layout_undecided else other.form for other in others]
    post_ops: list[PostOperation] = [
        ("binary", kind, other) for kind, other in zip(kinds[1:], forms[1:], strict=True)
    ]
    if relu:
        post_ops.append(relu_operation(0.0))

    def describe(second: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe("binary", kinds[0], form, second, form, post_ops=post_ops)

    chosen = describe(forms[0])
    if chosen.is_reference:  # with blocks of channels it wants the other in blocks, too
        chosen = describe(p.library.any(forms[0].dimensions))
    if chosen.is_reference:
        return None
    reads: dict[int, Operand | None] = {api.SRC: first, api.SRC_1: others[0]}
    for number, other in enumerate(others[1:], 1):
        reads[number * api.POST_OPERATION | api.SRC_1] = other
    return p.step(chosen, reads, {api.DST: y})


def sum(p: Preparation, a: formulas.Sum) -> Step:
    factors = a.coefficients or [1.0] * len(a.xs)
    # Where y is one of xs that comes first: oneDNN overwrites y with it, then adds the others.
    order = sorted(range(len(a.xs)), key=lambda i: a.xs[i] is not a.y)
    operands = [p.operand(a.xs[i]) for i in order]
    form = operands[0].chosen_form
    chosen = p.library.describe(
        "sum", form, len(a.xs), [factors[i] for i in order], [form] * len(a.xs)
    )
    return p.step(chosen, _numbered(operands), {api.DST: p.operand(a.y)})


def copy(p: Preparation, a: movement.Copy) -> Step:
    layout = a.x.layout or a.y.layout
    plain = None if layout is None else layout.plain
    source, target = p.operand(a.x, plain), p.operand(a.y, plain)
    form = source.chosen_form
    chosen = p.library.describe("reorder", form, form if a.y.layout_undecided else target.form)
    return p.step(chosen, {api.SRC: source}, {api.DST: target})


def concat(p: Preparation, a: movement.Concat) -> Step | None:
    """Of whole tensors; else it is left to NumPy."""
    if a.slices:
        return None
    operands, target = [p.operand(x) for x in a.xs], p.operand(a.y)
    forms = [operand.chosen_form for operand in operands]
    form = _concatenated(p, a, forms) if a.y.layout_undecided else target.form
    chosen = p.library.describe("concat", form, len(a.xs), a.axis, forms)
    return p.step(chosen, _numbered(operands), {api.DST: target})


def _concatenated(
    p: Preparation, a: movement.Concat, forms: Sequence[Descriptor]
) -> Descriptor | None:
    """The first format in blocks, for y; None, which is for oneDNN to choose, if there is none, or
    a part would begin inside a block.

    oneDNN 3.2 itself would go by that one's strides. Those of axes of extent 1, such as 16 channels
    in one block, say nothing of their place: y could have its channels before its images, where
    oneDNN's binary operations (Scale) then take wrong ones.
    """
    for x, form in zip(a.xs, forms, strict=True):
        if form in (p.library.plain(x.shape), p.channels_last(x.shape)):
            continue
        made, start = form.like(a.y.shape), [0] * len(a.y.shape)
        if made is None:
            return None
        try:
            for part in a.xs:
                made.window(part.shape, start)
                start[a.axis] += part.shape[a.axis]
        except Unsupported:
            return None
        return made
    return None


def split(p: Preparation, a: movement.Split) -> Step:
    """Each part is a reorder out of a window of x, into x's format where that is open."""
    form = p.operand(a.x).chosen_form
    steps: list[Step] = []
    start = [0] * len(a.x.shape)
    for y in a.ys:
        if y is None:
            raise Unsupported("a part of unknown extent")
        part = p.operand(y)
        if y.layout_undecided and (own := form.like(y.shape)):
            p.choose_layout(part, own)
        steps.append(p.reorder((a.x, form.window(y.shape, start)), part.formatted))
        start[a.axis] += y.shape[a.axis]
    return in_sequence(steps)


def _numbered(operands: Sequence[Operand]) -> dict[int, Operand | None]:
    return {api.MULTIPLE_SRC + i: operand for i, operand in enumerate(operands)}
