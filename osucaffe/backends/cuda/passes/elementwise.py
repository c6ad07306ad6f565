"""Owns element-wise passes: kernels generated from formulas, or from C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...formula import to_c
from ...tensor import Step, Tensor
from ..layout import C_TYPES, ITEM_BYTES, dtype_of
from ..runtime.compile import kernel_from
from ..runtime.launch import blocks_for, launch


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
    PDL_BEGIN;
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


def fill_step(y: Tensor, value: float) -> Step:
    """A step that sets every element."""
    return element_step([Operand("y", y, stored=True, loaded=False)], f"y = {float(value)!r}f;")


def mask_step(dx: Tensor, relu_output: Tensor) -> Step:
    """A step that sets dx to 0 where `relu_output`, which lies as dx does, is not positive."""
    operands = [Operand("p", relu_output), Operand("dx", dx, stored=True)]
    return element_step(operands, "dx = p > 0 ? dx : 0.0f;")


def row_major_place(tensor: Tensor) -> str:
    """C for the row-major place of the element that lies at `at` of a channels-last tensor."""
    channels, pixels = tensor.shape[1], math.prod(tensor.shape[2:])
    return (
        f"at / {channels * pixels} * {channels * pixels} + at % {channels} * {pixels}"
        f" + at / {channels} % {pixels}"
    )
