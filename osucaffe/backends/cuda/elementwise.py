"""Owns the primitives that treat each element alone: kernels generated from formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np

from ..formula import to_c
from ..random import keep_threshold
from ..tensor import Step, Tensor
from .kernels import blocks_for, kernel_from, launch
from .layout import C_TYPES, ITEM_BYTES, Unused, dtype_of, is_channels_last
from .registry import CudaCall, primitive

OUTPUTS = "yz"


@dataclass(frozen=True)
class Operand:
    """A variable of a generated kernel: the tensor behind it, and whether it is stored."""

    name: str
    tensor: Tensor
    stored: bool = False
    loaded: bool = True


def element_kernel(name: str, operands: Sequence[Operand], body: str, parameters: str = "") -> str:
    """The text of a kernel that runs `body` (C, over float variables) for each element.

    Operands have as many elements each, in one memory order; `at` is an element's place in it.
    parameters: further parameters of the kernel, each with a comma in front.
    """
    width = 16 // min(ITEM_BYTES[dtype_of(each.tensor)] for each in operands)
    width = max(4, min(8, width))
    declared = ", ".join(f"{C_TYPES[dtype_of(e.tensor)]}* {e.name}_" for e in operands)
    loads, scalar_loads, stores, scalar_stores, picks, puts = [], [], [], [], [], []
    for each in operands:
        n, t = each.name, C_TYPES[dtype_of(each.tensor)]
        loads.append(f"float {n}s[WIDTH];")
        if each.loaded:
            loads.append(f"load<{t}, WIDTH>({n}_ + start, {n}s);")
            scalar_loads.append(f"float {n} = to_float({n}_[at]);")
            picks.append(f"float {n} = {n}s[lane];")
        else:
            scalar_loads.append(f"float {n};")
            picks.append(f"float {n};")
        if each.stored:
            stores.append(f"store<{t}, WIDTH>({n}_ + start, {n}s);")
            scalar_stores.append(f"{n}_[at] = from_float<{t}>({n});")
            puts.append(f"{n}s[lane] = {n};")
    one = "\n".join([*picks, f"{{ {body} }}", *puts])
    rest = "\n".join([*scalar_loads, f"{{ {body} }}", *scalar_stores])
    return f"""
#define WIDTH {width}
extern "C" __global__ void {name}({declared}, int64_t count{parameters}) {{
    FOR_EACH(count / WIDTH) {{
        int64_t start = id * WIDTH;
        {" ".join(loads)}
#pragma unroll
        for (int lane = 0; lane < WIDTH; ++lane) {{
            int64_t at = start + lane;
            {one}
        }}
        {" ".join(stores)}
    }}
    FOR_EACH(count % WIDTH) {{
        int64_t at = count / WIDTH * WIDTH + id;
        {rest}
    }}
}}
"""


def element_step(operands: Sequence[Operand], body: str) -> Step:
    """A step that runs `body` for each element of the operands."""
    count = operands[0].tensor.size
    function = kernel_from(element_kernel("elementwise", operands, body), "elementwise")
    tensors = [each.tensor for each in operands]
    return launch(function, blocks_for(count, 8), [*tensors, np.int64(count)])


def formula_step(
    formula: str,
    inputs: Sequence[tuple[str, Tensor]],
    outputs: Sequence[tuple[str, Tensor]],
    constants: dict[str, float] | None = None,
) -> Step:
    """A step that evaluates a formula over flat tensors, by their names in it."""
    operands = [Operand(name, tensor) for name, tensor in inputs]
    operands += [Operand(name, tensor, stored=True, loaded=False) for name, tensor in outputs]
    body = to_c(formula, [each.name for each in operands], constants=constants)
    return element_step(operands, body)


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
    positive: Tensor | None = None,
) -> Step:
    coefficients = coefficients or [1.0] * len(xs)
    named = [(f"x{i}", x) for i, x in enumerate(xs)]
    total = " + ".join(
        name if factor == 1 else f"{float(factor)!r} * {name}"
        for factor, (name, _) in zip(coefficients, named, strict=True)
    )
    if positive is not None:
        named.append(("p", positive))
        total = f"where(p > 0, {total}, 0)"
    return formula_step(f"y = {total}", named, [("y", y)])


@primitive("flat")
def relu(call: CudaCall, x: Tensor, y: Tensor, *, slope: float) -> Step:
    return formula_step("y = where(x > 0, x, slope * x)", [("x", x)], [("y", y)], {"slope": slope})


@primitive("flat")
def relu_backward(call: CudaCall, x: Tensor, dy: Tensor, dx: Tensor, *, slope: float) -> Step:
    formula = "dx = where(x > 0, dy, slope * dy)"
    return formula_step(formula, [("x", x), ("dy", dy)], [("dx", dx)], {"slope": slope})


def mask_step(dx: Tensor, positive: Tensor) -> Step:
    """A step that sets dx to 0 where `positive`, which lies as dx does, is not positive."""
    operands = [Operand("p", positive), Operand("dx", dx, stored=True)]
    return element_step(operands, "dx = p > 0 ? dx : 0.0f;")


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
    positive: Tensor | None = None,
) -> Step:
    return _dropout(call, dy, dx, ratio, key, positive)


def _dropout(
    call: CudaCall, x: Tensor, y: Tensor, ratio: float, key: int, positive: Tensor | None = None
) -> Step:
    """Both directions draw the same numbers, so no mask is kept."""
    backend = call.backend
    backend.settle(x)
    backend.settle(y)
    x = call.held(x, nhwc=(nhwc := is_channels_last(y)))
    place = row_major_place(y) if nhwc else "at"
    counter = f"(step[0] << 32) + step[1] * {y.count}ull + (uint64_t)({place})"
    drawn = f"squares32({counter}, key) >= {keep_threshold(ratio)}u"
    operands = [Operand("x", x), Operand("y", y, stored=True, loaded=False)]
    if positive is not None:
        operands.append(Operand("p", call.held(positive, nhwc=nhwc)))
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


def row_major_place(tensor: Tensor) -> str:
    """C for the row-major place of the element that lies at `at` of a channels-last tensor."""
    channels, pixels = tensor.shape[1], math.prod(tensor.shape[2:])
    return (
        f"at / {channels * pixels} * {channels * pixels} + at % {channels} * {pixels}"
        f" + at / {channels} % {pixels}"
    )
