"""Passes that copy: between layouts and element types, and columns of a matrix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ...tensor import Run, Tensor
from ..layout import ITEM_BYTES, c_type, dtype_of, is_channels_last
from ..runtime.compile import kernel, kernel_from
from ..runtime.launch import blocks_for, launch
from .elementwise import Operand, element_step

FEW_CHANNELS = 8
"""Up to that many, a thread moves all channels of a pixel; more are transposed tile by tile."""


def convert(source: Tensor, target: Tensor, *, accumulate: bool = False) -> Run:
    """A step that copies (or adds) values between tensors of any layouts."""
    from_channels_last = is_channels_last(source)
    if from_channels_last == is_channels_last(target):
        operands = [Operand("x", source), Operand("y", target, stored=True, loaded=accumulate)]
        return element_step(operands, "y = x + y;" if accumulate else "y = x;")
    # A stack of matrices to transpose: (channels, pixels) row-major is (pixels, channels) in NHWC.
    shape = (source if from_channels_last else target).layout.shape
    batch, channels, pixels = shape[0], shape[1], math.prod(shape[2:])
    rows, columns = (pixels, channels) if from_channels_last else (channels, pixels)
    if channels <= FEW_CHANNELS:
        count = batch * pixels
        function = kernel(
            "movement", "few_channels", S=source, T=target, FEW=channels,
            FROM_LAST=from_channels_last,
        )  # fmt: skip
        return launch(function, blocks_for(count), [source, target, count, pixels, accumulate])
    return transpose(source, target, rows, columns, batch, accumulate=accumulate)


def transpose(
    source: Tensor,
    target: Tensor,
    rows: int,
    columns: int,
    matrices: int = 1,
    *,
    accumulate: bool = False,
) -> Run:
    """A step that transposes matrices of rows x columns, which lie one after the other."""
    function = kernel("movement", "transpose", S=source, T=target)
    grid = (-(-columns // 32), -(-rows // 32), matrices)
    return launch(function, grid, [source, target, rows, columns, accumulate], block=(32, 8))


def copy_parts(
    whole: Tensor,
    parts: Sequence[Tensor],
    rows: int,
    begin: int,
    *,
    cut: bool,
    columns: Sequence[tuple[int, int]] = (),
    relu_outputs: Sequence[Tensor | None] = (),
) -> Run:
    """A step that copies matrices of that many rows next to one another into columns of the whole,
    from `begin` on; cut: the other way round.

    columns: of each part those that are meant, the first and how many, if not all. relu_outputs:
    for each of the parts that are cut off what lies as it does, and zeros it where not positive.
    """
    masks = [*relu_outputs] or [None] * len(parts)
    types = {dtype_of(each) for each in (whole, *parts, *masks) if each is not None}
    pitches, pitch = [part.size // rows for part in parts], whole.size // rows
    skipped, widths = zip(*(columns or [(0, each) for each in pitches]), strict=True)
    vector = math.gcd(
        16 // max(ITEM_BYTES[dtype] for dtype in types), begin, pitch, *pitches, *skipped, *widths
    )
    first, *stops = (at // vector for at in itertools.accumulate(widths, initial=begin))
    index = "int" if whole.size < 2**31 else "int64_t"
    declared = [
        f"{c_type(whole)}* whole",
        *(f"{index} {name}" for name in ("pitch", "first", "last")),
    ]
    arguments: list[Tensor | int | None] = [whole, pitch // vector, first, stops[-1]]
    branches = []
    for number, (part, mask, stop) in enumerate(zip(parts, masks, stops, strict=True)):
        kind, shown = c_type(part), c_type(mask or part)
        declared += [f"{kind}* part{number}", f"{shown}* mask{number}", f"{index} stop{number}"]
        declared += [f"{index} pitch{number}", f"{index} before{number}"]
        start = stops[number - 1] if number else first
        arguments += [part, mask, stop, pitches[number] // vector]
        arguments.append(start - skipped[number] // vector)  # may be negative
        place = f"((int64_t)row * pitch{number} + at - before{number}) * VEC"
        copy = (
            f"store_masked(part{number}, mask{number}, {place}, values);"
            if cut
            else f"load<{kind}, VEC>(part{number} + {place}, values);"
        )
        branches.append(f"if (at < stop{number}) {copy}")
    count = rows * (stops[-1] - first)
    text = f"""
#define VEC {vector}
template <typename T, typename P>
__device__ __forceinline__ void store_masked(T* y, P* mask, int64_t to, float (&values)[VEC]) {{
    if (mask) {{
        float shown[VEC];
        load<P, VEC>(mask + to, shown);
        for (int j = 0; j < VEC; ++j) values[j] = relu_backward(values[j], shown[j]);
    }}
    store<T, VEC>(y + to, values);
}}

extern "C" __global__ void copy_parts({", ".join(declared)}, int64_t count) {{
    PDL_BEGIN;
    FOR_EACH(count) {{
        {index} wide = last - first, row = ({index})id / wide;
        {index} at = first + ({index})id - row * wide;
        int64_t place = ((int64_t)row * pitch + at) * VEC;
        float values[VEC];
        {f"load<{c_type(whole)}, VEC>(whole + place, values);" if cut else ""}
        {" else ".join(branches)}
        {"" if cut else f"store<{c_type(whole)}, VEC>(whole + place, values);"}
    }}
}}
"""
    return launch(kernel_from(text, "copy_parts"), blocks_for(count), [*arguments, count])
