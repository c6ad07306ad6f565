"""Owns the element-wise primitives."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

import numpy as np

from ...random import keep_threshold
from ...tensor import Step, Tensor
from ..layout import Unused, is_channels_last
from ..passes.elementwise import Operand, element_kernel, formula_step, row_major_place
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel_from
from ..runtime.launch import blocks_for, launch

OUTPUTS = "yz"


@primitive("flat")
def elementwise(
    call: CudaCall,
    inputs: list[Tensor],
    outputs: list[Tensor],
    *,
    formula: str,
    constants: dict[str, float] | None = None,
) -> Step:
    named_inputs = list(zip(ascii_lowercase, inputs, strict=False))
    named_outputs = list(zip(OUTPUTS, outputs, strict=False))
    return formula_step(formula, named_inputs, named_outputs, constants)


@primitive("flat")
def sum(
    call: CudaCall,
    xs: list[Tensor],
    y: Tensor,
    *,
    coefficients: Sequence[float] | None = None,
    relu_output: Tensor | None = None,
) -> Step:
    coefficients = coefficients or [1.0] * len(xs)
    named = [(f"x{i}", x) for i, x in enumerate(xs)]
    total = " + ".join(
        name if factor == 1 else f"{float(factor)!r} * {name}"
        for factor, (name, _) in zip(coefficients, named, strict=True)
    )
    if relu_output is not None:
        named.append(("p", relu_output))
        total = f"where(p > 0, {total}, 0)"
    return formula_step(f"y = {total}", named, [("y", y)])


@primitive("flat")
def relu(call: CudaCall, x: Tensor, y: Tensor, *, slope: float) -> Step:
    return formula_step("y = where(x > 0, x, slope * x)", [("x", x)], [("y", y)], {"slope": slope})


@primitive("flat")
def relu_backward(call: CudaCall, x: Tensor, dy: Tensor, dx: Tensor, *, slope: float) -> Step:
    formula = "dx = where(x > 0, dy, slope * dy)"
    return formula_step(formula, [("x", x), ("dy", dy)], [("dx", dx)], {"slope": slope})


@primitive("own")
def dropout(call: CudaCall, x: Tensor, y: Tensor, mask: Tensor, *, ratio: float, key: int) -> Step:
    if mask.flexible:
        mask.layout = Unused("uint8")
    return _dropout(call, x, y, ratio, key)


@primitive("own")
def dropout_backward(
    call: CudaCall,
    dy: Tensor,
    mask: Tensor,
    dx: Tensor,
    *,
    ratio: float,
    key: int,
    relu_output: Tensor | None = None,
) -> Step:
    return _dropout(call, dy, dx, ratio, key, relu_output)


def _dropout(
    call: CudaCall, x: Tensor, y: Tensor, ratio: float, key: int, relu_output: Tensor | None = None
) -> Step:
    """Both directions draw the same numbers, so no mask is kept."""
    backend = call.backend
    backend.choose_layout(x)
    backend.choose_layout(y)
    x = call.in_layout(x, nhwc=(nhwc := is_channels_last(y)))
    place = row_major_place(y) if nhwc else "at"
    counter = f"(step[0] << 32) + step[1] * {y.count}ull + (uint64_t)({place})"
    drawn = f"squares32({counter}, key) >= {keep_threshold(ratio)}u"
    operands = [Operand("x", x), Operand("y", y, stored=True, loaded=False)]
    if relu_output is not None:
        operands.append(Operand("p", call.in_layout(relu_output, nhwc=nhwc)))
        drawn = f"p > 0 && {drawn}"
    text = element_kernel(
        "dropout",
        operands,
        f"y = {drawn} ? x * {1 / (1 - ratio)!r}f : 0.0f;",
        ", const uint64_t* step, uint64_t key",
    )
    tensors = [each.tensor for each in operands]
    arguments = [*tensors, np.int64(y.size), backend.counter(), np.uint64(backend.key(key))]
    return launch(kernel_from(text, "dropout"), blocks_for(y.size, 8), arguments)
