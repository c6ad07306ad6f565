"""Element-wise passes: kernels generated from formulas, or from C."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...formula import to_c
from ...tensor import Run, Tensor
from ..layout import ITEM_BYTES, c_type, dtype_of
from ..runtime.compile import kernel_from
from ..runtime.launch import blocks_for, launch

WIDTHS = 4, 8
"""Elements that a thread loads at once at least, and at most."""


@dataclass(frozen=True)
class Operand:
    """A variable of a generated kernel: the tensor after it, and whether it is stored."""

    name: str
    tensor: Tensor
    stored: bool = False
    loaded: bool = True

    @property
    def type(self) -> str:
        """Of its elements, in C."""
        return c_type(self.tensor)


def vector_function(
    operands: Sequence[Operand], body: str, parameters: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """C of `elements<N>(start, ...)`, which runs `body` (C, over float variables) for N
    neighbouring elements of the operands, loaded and stored as vectors; and what to pass as its
    other arguments where variables have their names (the pointer to operand x is `x_`).

    Operands lie in one memory order; `at` is an element's place in it. parameters: types of other
    variables that `body` reads, by their names.
    """
    types = {f"{each.name}_": f"{each.type}*" for each in operands} | dict(parameters or {})
    declared = ", ".join(f"{kind} {name}" for name, kind in types.items())
    loads, picks, puts, stores = [], [], [], []
    for each in operands:
        n, t = each.name, each.type
        loads.append(f"float {n}s[N];")
        picks.append(f"float {n};")
        if each.loaded:
            loads.append(f"load<{t}, N>({n}_ + start, {n}s);")
            picks[-1] = f"float {n} = {n}s[lane];"
        if each.stored:
            puts.append(f"{n}s[lane] = {n};")
            stores.append(f"store<{t}, N>({n}_ + start, {n}s);")
    text = f"""
template <int N> __device__ __forceinline__ void elements(int64_t start, {declared}) {{
    {" ".join(loads)}
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {{
        int64_t at = start + lane;
        {" ".join(picks)}
        {{ {body} }}
        {" ".join(puts)}
    }}
    {" ".join(stores)}
}}
"""
    return text, ", ".join(types)


def element_kernel(
    name: str,
    operands: Sequence[Operand],
    body: str,
    parameters: Mapping[str, str] | None = None,
) -> str:
    """The text of a kernel that runs `body` for each element: see `vector_function`."""
    text, passed = vector_function(operands, body, parameters)
    least, most = WIDTHS
    smallest = min(ITEM_BYTES[dtype_of(each.tensor)] for each in operands)
    width = max(least, min(most, 16 // smallest))
    declared = ", ".join(f"{each.type}* {each.name}_" for each in operands)
    others = "".join(f", {kind} {name}" for name, kind in (parameters or {}).items())
    return f"""{text}
extern "C" __global__ void {name}({declared}, int64_t count{others}) {{
    PDL_BEGIN;
    FOR_EACH(count / {width}) elements<{width}>(id * {width}, {passed});
    FOR_EACH(count % {width}) elements<1>(count / {width} * {width} + id, {passed});
}}
"""


def element_step(
    operands: Sequence[Operand], body: str, others: Mapping[str, tuple[str, Any]] | None = None
) -> Run:
    """A step that runs `body` for each element of the operands. others: types and values of other
    variables that it reads, by their names."""
    count, others = operands[0].tensor.size, others or {}
    types = {name: kind for name, (kind, _) in others.items()}
    function = kernel_from(element_kernel("elementwise", operands, body, types), "elementwise")
    values = [value for _, value in others.values()]
    arguments = [*(each.tensor for each in operands), count, *values]
    return launch(function, blocks_for(count, 8), arguments)


def formula_step(
    formula: str,
    inputs: Sequence[tuple[str, Tensor]],
    outputs: Sequence[tuple[str, Tensor]],
    constants: dict[str, float] | None = None,
) -> Run:
    """A step that evaluates a formula over flat tensors, by their names in it."""
    operands = [Operand(name, tensor) for name, tensor in inputs]
    operands += [Operand(name, tensor, stored=True, loaded=False) for name, tensor in outputs]
    body = to_c(formula, [each.name for each in operands], constants=constants)
    return element_step(operands, body)


def fill_step(y: Tensor, value: float) -> Run:
    """A step that sets every element."""
    return element_step([Operand("y", y, stored=True, loaded=False)], f"y = {float(value)!r}f;")


def add_and_mask(dx: Tensor, addend: Tensor | None, relu_output: Tensor | None) -> Run:
    """A step that adds to dx, then sets it to 0 where `relu_output` is not positive: what there is
    of these, which lie as dx does."""
    given = {"more": addend, "positive": relu_output}
    operands = [Operand(name, each) for name, each in given.items() if each is not None]
    body = "dx += more;" * (addend is not None)
    body += "if (!(positive > 0)) dx = 0;" * (relu_output is not None)
    return element_step([*operands, Operand("dx", dx, stored=True)], body)


def bias_step(y: Tensor, b: Tensor | None, slope: float | None, columns: int) -> Run:
    """A step that adds the bias to y, whose `columns` vary fastest, and applies a ReLU of this
    slope (None, 1: none)."""
    index = "(uint32_t)at" if y.size < 2**32 else "at"  # to divide 64 bits takes much longer
    body = f"y += b[{index} % {columns}];" * (b is not None)
    body += f"y = relu(y, {1.0 if slope is None else slope!r}f);"
    others = {} if b is None else {"b": ("const float*", b)}
    return element_step([Operand("y", y, stored=True)], body, others)


def row_major_place(tensor: Tensor) -> str:
    """C for the row-major place of the element that lies at `at` of a channels-last tensor."""
    channels, pixels = tensor.shape[1], math.prod(tensor.shape[2:])
    return (
        f"at / {channels * pixels} * {channels * pixels} + at % {channels} * {pixels}"
        f" + at / {channels} % {pixels}"
    )
