"""The element-wise primitives."""

from __future__ import annotations

from ... import primitives as ops
from ...random import keep_threshold
from ...tensor import Run, Tensor
from ..layout import Opaque, is_channels_last
from ..passes.elementwise import Operand, element_step, formula_step, row_major_place
from ..registry import Context, primitive


@primitive("flat")
def elementwise(ctx: Context, a: ops.Elementwise) -> Run:
    named, inputs = list(a.operands.items()), len(a.inputs)
    return formula_step(a.formula, named[:inputs], named[inputs:], a.constants)


@primitive("flat")
def sum(ctx: Context, a: ops.Sum) -> Run:
    coefficients = a.coefficients or [1.0] * len(a.xs)
    named = [(f"x{i}", x) for i, x in enumerate(a.xs)]
    total = " + ".join(
        name if factor == 1 else f"{float(factor)!r} * {name}"
        for factor, (name, _) in zip(coefficients, named, strict=True)
    )
    if a.relu_output is not None:
        named.append(("p", a.relu_output))
        total = f"where(p > 0, {total}, 0)"
    return formula_step(f"y = {total}", named, [("y", a.y)])


@primitive("flat")
def relu(ctx: Context, a: ops.Relu) -> Run:
    return formula_step(
        "y = where(x > 0, x, slope * x)", [("x", a.x)], [("y", a.y)], {"slope": a.slope}
    )


@primitive("flat")
def relu_backward(ctx: Context, a: ops.ReluBackward) -> Run:
    formula = "dx = where(x > 0, dy, slope * dy)"
    return formula_step(formula, [("x", a.x), ("dy", a.dy)], [("dx", a.dx)], {"slope": a.slope})


@primitive("own")
def dropout(ctx: Context, a: ops.Dropout) -> Run:
    if a.mask.flexible:
        a.mask.layout = Opaque("uint8")
    return _dropout(ctx, a, a.x, a.y)


@primitive("own")
def dropout_backward(ctx: Context, a: ops.DropoutBackward) -> Run:
    return _dropout(ctx, a, a.dy, a.dx, a.relu_output)


def _dropout(
    ctx: Context, a: ops.RandomPrimitive, x: Tensor, y: Tensor, relu_output: Tensor | None = None
) -> Run:
    """Both directions draw the same numbers, so no mask is kept."""
    backend = ctx.backend
    ctx.choose_layouts(x, y)
    x = ctx.in_layout(x, nhwc=(nhwc := is_channels_last(y)))
    place = row_major_place(y) if nhwc else "at"
    counter = f"(step[0] << 32) + step[1] * {y.count}ull + (uint64_t)({place})"
    drawn = f"squares32({counter}, key) >= {keep_threshold(a.ratio)}u"
    operands = [Operand("x", x), Operand("y", y, stored=True, loaded=False)]
    if relu_output is not None:
        operands.append(Operand("p", ctx.in_layout(relu_output, nhwc=nhwc)))
        drawn = f"p > 0 && {drawn}"
    body = f"y = {drawn} ? x * {1 / (1 - a.ratio)!r}f : 0.0f;"
    drawing = {"step": ("const uint64_t*", backend.counter())}
    return element_step(operands, body, drawing | {"key": ("uint64_t", backend.key(a.key))})
