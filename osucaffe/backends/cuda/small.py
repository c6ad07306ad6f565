"""Owns convolutions so small that libraries are slow at them: LeNet's, or on three channels.

Shared memory holds what a block of threads needs; tensor cores multiply, at best in tf32 (so not in
fp32 runs). Two kernels: `correlate` for outputs and the gradients of inputs, `gradient`
for those of filters and biases, with a sum over its blocks behind it, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tensor import Shape, Step, Tensor, sequence
from .kernels import kernel, launch
from .layout import C_TYPES, ITEM_BYTES, dtype_of, strides
from .registry import CudaCall

MOST_WORK = 7e8
"""Multiplications up to which it is worth trying whether these kernels are the fastest."""
SHARED = 227 << 10
"""Bytes of shared memory that a block may take."""
BLOCKS = 128
"""About one for each processor."""
WARPS = 16


INSTRUCTIONS = {
    ("float32", 1): "m16n8k8.row.col.f32.tf32.tf32.f32",
    ("bfloat16", 2): "m16n8k16.row.col.f32.bf16.bf16.f32",
    ("float16", 2): "m16n8k16.row.col.f32.f16.f16.f32",
}
"""The multiplication of tiles of words, by what is in a word."""
ONES = {
    ("float32", 1): "0x3f800000u",
    ("bfloat16", 2): "0x3f803f80u",
    ("float16", 2): "0x3c003c00u",
}


def _up(count: int, rest: int, modulus: int = 8) -> int:
    """The least number from count on that leaves this rest."""
    return count + (rest - count) % modulus


@dataclass(frozen=True)
class Small:
    """A convolution with stride 1 of images x to maps y, both as (N, C, H, W).

    dtype: of the maps and the filters.
    """

    x: Shape
    y: Shape
    kernel: Shape
    pad: Shape
    dtype: str

    @property
    def work(self) -> int:
        """Multiplications."""
        return math.prod(self.y) * self.x[1] * math.prod(self.kernel)

    @property
    def turned(self) -> Small:
        """The convolution of y's gradient that gives x's."""
        pad = tuple(size - 1 - before for size, before in zip(self.kernel, self.pad, strict=True))
        return Small(self.y, self.x, self.kernel, pad, self.dtype)

    def _patch(self, rows: int, kernel_rows: int, pitch: int) -> int:
        """Words that `rows` rows of the output need of an image for so many of the kernel's."""
        pixels = (rows + kernel_rows - 1) * (self.y[3] + self.kernel[1] - 1)
        return -(-pixels * pitch // 4) * 4

    def _pair(self, even: int) -> int:
        """How many elements a word holds: two of 16 bits, if the extent summed over is even."""
        return 2 if self.dtype != "float32" and even % 2 == 0 else 1

    def _macros(
        self, x: Tensor, rows: int, pitch: int, pair: int, threads: int, most: int
    ) -> dict[str, Any]:
        n, c, h, w = strides(x)
        channels = self.x[1]
        # Neighbouring channels in one load, where they are neighbours.
        vector = math.gcd(channels, most) if c == 1 else 1
        word = ("float32", 1) if pair == 1 else (self.dtype, 2)
        return {
            "S": C_TYPES[dtype_of(x)], "T": C_TYPES[self.dtype], "C": channels, "H": self.x[2],
            "W": self.x[3], "O": self.y[1], "OH": self.y[2], "OW": self.y[3],
            "KH": self.kernel[0], "KW": self.kernel[1], "PH": self.pad[0], "PW": self.pad[1],
            "SN": n, "SC": c, "SH": h, "SW": w, "ROWS": rows, "PITCH": pitch, "VEC": vector,
            "PAIR": pair, "MMA": f'"mma.sync.aligned.{INSTRUCTIONS[word]}"', "ONE": ONES[word],
            "THREADS": threads,
        }  # fmt: skip

    # -- outputs ---------------------------------------------------------------------------------

    def _correlation(self, flipped: bool) -> tuple[dict[str, int], int] | None:
        """Macros and words of shared memory, or None where it does not fit."""
        channels, outputs = self.x[1], self.y[1]
        area = math.prod(self.kernel)
        pair = self._pair(channels)
        words = area * channels // pair
        steps, across = -(-words // 8), -(-outputs // 8)
        if flipped:
            run = _up(area * outputs, 8, 16)
            filters = channels // pair * run + across * 8
        else:
            run = _up(steps * 8, 4)
            filters = across * 8 * run
        pitch = channels if channels < 4 else _up(channels // pair, 4)
        height, width = self.y[2:]
        rows = height
        while rows > 1 and (self.y[0] * -(-height // rows) < BLOCKS or rows * width > WARPS * 12):
            rows = -(-rows // 2)
        tiles = -(-rows * width // 16)
        splits = max(1, min(WARPS // tiles, steps // 6, 4))
        size = self._patch(rows, self.kernel[0], pitch) + filters + steps * 16
        size = max(size, (splits - 1) * tiles * 16 * (across * 8 + 2))
        if tiles > WARPS or across > 8 or size * 4 > SHARED:
            return None
        macros = {
            "ROWS": rows, "PITCH": pitch, "PAIR": pair, "TILES": tiles, "SPLITS": splits,
            "RUN": run, "FLIPPED": int(flipped), "KROWS": self.kernel[0],
        }  # fmt: skip
        return macros, size

    def correlates(self, *, flipped: bool = False) -> bool:
        """Whether `correlate` can compute it."""
        return min(self.pad) >= 0 and self._correlation(flipped) is not None

    def correlate(
        self,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        y: Tensor,
        slope: float,
        *,
        flipped: bool = False,
    ) -> Step:
        """A step for y = x correlated with w, plus b, then y or slope * y where it is negative.

        w and y have the channels last, and so has x where it has an even number of them. flipped:
        w is the filter of the convolution that this one is `turned` from.
        """
        found = self._correlation(flipped)
        assert found is not None
        macros, size = found
        threads = macros["TILES"] * macros["SPLITS"] * 32
        most = 16 // ITEM_BYTES[self.dtype]
        filters = math.prod(self.kernel) * self.y[1] * (1 if flipped else self.x[1])
        macros["WVEC"] = math.gcd(filters, 4 if flipped else most)
        defined = self._macros(x, macros["ROWS"], macros["PITCH"], macros["PAIR"], threads, most)
        return launch(
            kernel("small", "correlate", **defined | macros),
            (self.y[0], -(-self.y[2] // macros["ROWS"])), [x, w, b, y, np.float32(slope)],
            block=threads, shared=size * 4,
        )  # fmt: skip

    # -- gradients of filters --------------------------------------------------------------------

    def _summation(self) -> tuple[dict[str, int], int, int] | None:
        """Macros, units of work and words of shared memory, or None where it does not fit."""
        channels, outputs = self.x[1], self.y[1]
        height, width = self.y[2:]
        high, pair = -(-outputs // 16), self._pair(width)
        pitch = channels
        if channels >= 4:
            pitch = _up(channels, 4) if pair == 2 else _up(channels, 8, 16)
        maps_pitch = _up(high * 16, 8, 16)

        def tiles(kernel_rows: int) -> int:
            return -(-(kernel_rows * self.kernel[1] * channels + 1) // 8)

        most = max(1, 16 // high)
        kernel_rows = self.kernel[0] if tiles(self.kernel[0]) <= 4 * most else 1
        parts = self.kernel[0] // kernel_rows

        def size(rows: int) -> int:
            words = -(-rows * width // (8 * pair)) * 8
            return self._patch(rows, kernel_rows, pitch) + words * maps_pitch

        divisors = [rows for rows in range(height, 0, -1) if height % rows == 0]
        fitting = [rows for rows in divisors if size(rows) * 4 <= SHARED // 2 - 1024]
        if not fitting or high > 4:
            return None
        enough = [r for r in fitting if self.x[0] * (height // r) * parts >= BLOCKS * 3 // 4]
        rows = (enough or fitting[-1:])[0]
        units = self.x[0] * (height // rows)
        groups = -(-tiles(kernel_rows) // most)
        wide = -(-tiles(kernel_rows) // groups)
        steps = -(-rows * width // (8 * pair))
        shares = max(1, min(8 // groups, steps // 2))
        a_block = max(1, -(-units * parts // (2 * BLOCKS)))
        words = size(rows)
        if shares > 1:
            words = max(words, high * 16 * (groups * wide * 8 + 2))
        if groups > WARPS or words * 4 > SHARED:
            return None
        macros = {
            "ROWS": rows, "PITCH": pitch, "PAIR": pair, "OPITCH": maps_pitch, "UNITS": a_block,
            "KROWS": kernel_rows, "WIDE": wide, "GROUPS": groups, "SHARES": shares,
            "OVEC": math.gcd(outputs, 4),
        }  # fmt: skip
        return macros, units, words

    @property
    def sums(self) -> bool:
        """Whether `gradients` can compute the gradients of its filters."""
        return self._summation() is not None

    def gradients(
        self, call: CudaCall, x: Tensor, dy: Tensor, dw: Tensor, db: Tensor | None
    ) -> Step:
        """A step for the gradients of filters, with the channels last, and biases.

        x may lie in any layout; dy has the channels last.
        """
        found = self._summation()
        assert found is not None
        macros, units, words = found
        threads = macros["GROUPS"] * macros["SHARES"] * 32
        defined = self._macros(x, macros["ROWS"], macros["PITCH"], macros["PAIR"], threads, 4)
        defined |= macros
        splits = -(-units // macros["UNITS"])
        columns = self.y[1] * (self.x[1] * math.prod(self.kernel) + 1)
        partial = call.temporary((splits, columns))
        added = [np.int32(name in call.accumulates) for name in ("dw", "db")]
        return sequence([
            launch(
                kernel("small", "gradient", **defined),
                (splits, self.kernel[0] // macros["KROWS"]), [x, dy, partial, np.int32(units)],
                block=threads, shared=words * 4,
            ),
            launch(
                kernel("small", "finish_gradient", **defined), -(-columns // 32),
                [partial, dw, db, np.int32(splits), *added], block=(32, 8),
            ),
        ])  # fmt: skip


def small(
    call: CudaCall,
    x: Tensor,
    y: Tensor,
    kernel: Sequence[int],
    window: Sequence[Sequence[int]],
    group: int,
    operation: str,
) -> Small | None:
    """The convolution of x to y as a small one, if the operation ("forward", "data", "filter") can
    be tried as such. window: stride, pad, dilation."""
    stride, pad, dilation = (tuple(map(int, each)) for each in window)
    if (
        len(x.shape) != 4 or set(stride) != {1} or set(dilation) != {1} or group > 1
        or call.backend.precision == "fp32" or math.prod(kernel) == 1
    ):  # fmt: skip
        return None
    found = Small(x.shape, y.shape, tuple(kernel), pad, call.backend.dtype)
    possible = {
        "forward": lambda: found.correlates(),
        "data": lambda: found.turned.correlates(flipped=True),
        "filter": lambda: found.sums,
    }
    return found if found.work <= MOST_WORK and possible[operation]() else None
