"""The instructions of tensor cores that kernels multiply by, as macros of their texts: those
of a warp (mma.sync, see kernels/headers/mma.cuh) and those of four on Hopper GPUs (wgmma)."""

from __future__ import annotations

from typing import Any

from ..runtime.device import Device
from .problem import Problem

INSTRUCTIONS = {
    ("float32", 1): "m16n8k8.row.col.f32.tf32.tf32.f32",
    ("bfloat16", 2): "m16n8k16.row.col.f32.bf16.bf16.f32",
    ("float16", 2): "m16n8k16.row.col.f32.f16.f16.f32",
}
"""The multiplication of tiles of words, by what is in a word."""
WGMMA = {
    "float32": "k8.f32.tf32.tf32", "bfloat16": "k16.f32.bf16.bf16", "float16": "k16.f32.f16.f16",
}  # fmt: skip
"""The same of Hopper's."""
ONES = {
    ("float32", 1): "0x3f800000u",
    ("bfloat16", 2): "0x3f803f80u",
    ("float16", 2): "0x3c003c00u",
}


def mma_macros(dtype: str, pair: int) -> dict[str, Any]:
    """Macros of kernels that use mma.cuh. dtype: of what they multiply; pair: elements of a
    word."""
    word = ("float32", 1) if pair == 1 else (dtype, 2)
    return {"PAIR": pair, "MMA": f'"mma.sync.aligned.{INSTRUCTIONS[word]}"', "ONE": ONES[word]}


def can_use_mma(device: Device, precision: str) -> bool:
    """Whether kernels by a warp's instructions may multiply on a device."""
    return precision != "fp32" and device.has_mma


def can_use_wgmma(device: Device, precision: str, problem: Problem) -> bool:
    """Whether kernels by Hopper's instructions may compute a convolution on a device."""
    return precision != "fp32" and problem.is_dense and device.has_wgmma


def wgmma(
    dtype: str,
    outputs: int,
    *,
    from_registers: bool = False,
    transposed: tuple[bool, bool] = (False, False),
) -> str:
    """The instruction d (64 x outputs, of 128 threads) += a b, in C++; of floats in tf32.

    d: a thread's sums; b, a: operands in shared memory, or a: four words of each thread's.
    transposed: whether in shared memory the axis that is summed over does not vary fastest, in a
    and in b (in 16 bits).
    """
    order = "" if dtype == "float32" else f", {transposed[0]:d}, {transposed[1]:d}"
    sums, words = outputs // 2, 4 if from_registers else 1
    *places, right = (f"%{i}" for i in range(sums + words + 1))
    left = f"{{{', '.join(places[sums:])}}}" if from_registers else places[sums]
    given = [f'"r"((a)[{i}])' for i in range(words)] if from_registers else ['"l"(a)']
    constraints = ", ".join(f'"+f"((d)[{i}])' for i in range(sums))
    return (
        f'asm volatile("{{.reg .pred add; setp.eq.u32 add, 1, 1; '
        f"wgmma.mma_async.sync.aligned.m64n{outputs}{WGMMA[dtype]} "
        f"{{{', '.join(places[:sums])}}}, "
        f'{left}, {right}, add, 1, 1{order};}}" : {constraints} : {", ".join(given)}, "l"(b))'
    )
