"""Owns convolutions so small that libraries are slow at them: LeNet's, or on three channels.

Shared memory holds what a block of threads needs; tensor cores multiply, at best in tf32 (so not in
fp32 runs). Two kernels: `correlate` for outputs and the gradients of inputs, `gradient`
for those of filters and biases, with a sum over its blocks behind it, in a fixed order. How the
work is divided among blocks and warps is a `Division`: an estimate ranks them, timing decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tensor import Shape, Step, Tensor, sequence
from .kernels import Kernel, kernel, launch
from .layout import C_TYPES, ITEM_BYTES, dtype_of, strides
from .registry import CudaCall
from .ways import Problem

if TYPE_CHECKING:
    from .backend import Cuda

MOST_WORK = 7e8
"""Multiplications up to which it is worth trying whether these kernels are the fastest."""
SHARED = 227 << 10
"""Bytes of shared memory that a block may take."""
PROCESSORS, LATENCY, WORDS_A_CYCLE = 132, 3000, 12
"""Of a large GPU, about: what `Division.cycles` counts with."""
BLOCKS = 128
"""About one for each processor."""
WARPS = 16
TRIED = 4
"""Divisions of the work that are timed."""

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
class Division:
    """Work divided among blocks.

    threads, words: of each block, the latter of 4 bytes of shared memory. macros: for the kernel.
    """

    grid: tuple[int, ...]
    threads: int
    words: int
    macros: tuple[tuple[str, int], ...]

    def function(self, name: str, macros: dict[str, Any]) -> Kernel:
        """A kernel of small.cu, compiled for this."""
        return kernel("small", name, **macros | dict(self.macros), THREADS=self.threads)

    def launch(self, name: str, macros: dict[str, Any], arguments: Sequence[Any]) -> Step:
        """A step that launches it."""
        function = self.function(name, macros)
        return launch(function, self.grid, arguments, block=self.threads, shared=self.words * 4)

    def cycles(self, loaded: int, multiplied: int) -> float:
        """An estimate of its time: blocks on a processor share its units, and come in waves.

        loaded, multiplied: words that a block loads, and cycles that its tiles take there.
        """
        together = min((SHARED + 1024) // (self.words * 4 + 1024), 2048 // self.threads)
        waves = -(-math.prod(self.grid) // (PROCESSORS * together))
        at_once = min(together, -(-math.prod(self.grid) // PROCESSORS))
        return waves * (LATENCY + at_once * (loaded / WORDS_A_CYCLE + multiplied))


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

    def macros(self, x: Tensor, most: int) -> dict[str, Any]:
        """What each kernel is told. most: elements that are loaded at once."""
        n, c, h, w = strides(x)
        channels = self.x[1]
        # Neighbouring channels in one load, where they are neighbours.
        vector = math.gcd(channels, most) if c == 1 else 1
        return {
            "S": C_TYPES[dtype_of(x)], "T": C_TYPES[self.dtype], "C": channels, "H": self.x[2],
            "W": self.x[3], "O": self.y[1], "OH": self.y[2], "OW": self.y[3],
            "KH": self.kernel[0], "KW": self.kernel[1], "PH": self.pad[0], "PW": self.pad[1],
            "SN": n, "SC": c, "SH": h, "SW": w, "VEC": vector,
        }  # fmt: skip

    def _macros(self, x: Tensor, pair: int, most: int) -> dict[str, Any]:
        """And those of small.cu."""
        word = ("float32", 1) if pair == 1 else (self.dtype, 2)
        mma = f'"mma.sync.aligned.{INSTRUCTIONS[word]}"'
        return {**self.macros(x, most), "PAIR": pair, "MMA": mma, "ONE": ONES[word]}

    # -- outputs ---------------------------------------------------------------------------------

    def correlations(self, *, flipped: bool = False) -> list[Division]:
        """The most promising divisions for `correlate`; none if it cannot compute this."""
        if min(self.pad) < 0:
            return []
        found = {
            division: estimate
            for rows, deep, parts in itertools.product(_halves(self.y[2]), (1, 2, 4), (1, 2))
            for division, estimate in self._correlation(rows, deep, parts, flipped)
        }
        return sorted(found, key=lambda division: found[division])[:TRIED]

    def _correlation(
        self, rows: int, deep: int, parts: int, flipped: bool
    ) -> Iterator[tuple[Division, float]]:
        """The division into so many rows, tiles of a warp and parts of the outputs, with an
        estimate of its time, where it is possible."""
        area, pair = math.prod(self.kernel), self._pair(self.x[1])
        channels, outputs = self.x[1] // pair, self.y[1]
        steps = -(-area * channels // 8)
        own = outputs if parts == 1 else _up(-(-outputs // parts), 0)
        across = -(-own // 8)
        neighbours = channels % 2 == 0
        if neighbours:
            pitch = _up(channels, 8, 16)
        else:
            pitch = channels if channels < 4 else _up(channels, 4)
        if flipped:
            run = _up(area * own, 4) if neighbours else _up(area * own, 8, 16)
            filters = channels * run + across * 8
        else:
            run = _up(steps * 8, 8, 16) if neighbours else _up(steps * 8, 4)
            filters = across * 8 * run
        tiles = -(-rows * self.y[3] // (16 * deep))
        splits = max(1, min(WARPS // tiles, steps // 6, 8))
        loaded = self._patch(rows, self.kernel[0], pitch) + filters
        sums = (splits - 1) * tiles * deep * 16 * (across * 8 + 2)
        words = max(loaded + steps * (8 if neighbours else 16), sums)
        if tiles > WARPS or deep * across > 16 or words * 4 > SHARED:
            return
        if (parts - 1) * own >= outputs:
            return
        macros = {
            "ROWS": rows, "PITCH": pitch, "TILES": tiles, "SPLITS": splits, "RUN": run,
            "FLIPPED": int(flipped), "KROWS": self.kernel[0], "DEEP": deep, "OWN": own,
        }  # fmt: skip
        grid = (self.y[0], -(-self.y[2] // rows), parts)
        division = Division(grid, tiles * splits * 32, words, tuple(macros.items()))
        multiplied = tiles * steps * max(4 * deep + 2 * across + 1, 2 * deep * across)
        yield division, division.cycles(loaded, multiplied)

    def correlate(
        self,
        division: Division,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        positive: Tensor | None,
        y: Tensor,
        slope: float,
    ) -> Step:
        """A step for y = x correlated with w, plus b, then y or slope * y where it is negative.

        w and y have the channels last, and so has x where it has an even number of them. Where the
        division is for it `flipped`, w is the filter of the convolution that this is `turned` from.
        positive: lies as y does; where it is not positive, y becomes 0.
        """
        divided = dict(division.macros)
        own = [divided["OWN"], self.y[1] - (division.grid[2] - 1) * divided["OWN"]]
        most = 16 // ITEM_BYTES[self.dtype]
        macros = self._macros(x, self._pair(self.x[1]), most)
        macros["MASKED"] = int(positive is not None)
        if divided["FLIPPED"]:
            macros["WVEC"] = math.gcd(*own, 4)
        else:
            macros["WVEC"] = math.gcd(*(n * math.prod(self.kernel) * self.x[1] for n in own), most)
        return division.launch("correlate", macros, [x, w, b, positive, y, np.float32(slope)])

    # -- gradients of filters --------------------------------------------------------------------

    @property
    def summations(self) -> list[Division]:
        """The divisions for `gradients`; none if it cannot compute this."""
        rows = dict.fromkeys((self.kernel[0], 1))
        return [division for each in rows for division in self._summation(each)]

    def _summation(self, kernel_rows: int) -> Iterator[Division]:
        """The division where a block has so many rows of the kernel, if it is possible."""
        channels, outputs = self.x[1], self.y[1]
        height, width = self.y[2:]
        high, pair = -(-outputs // 16), self._pair(width)
        pitch = channels
        if channels >= 4:
            pitch = _up(channels, 4) if pair == 2 else _up(channels, 8, 16)
        maps_pitch = _up(high * 16, 8, 16)
        most = max(1, 16 // high)
        tiles = -(-(kernel_rows * self.kernel[1] * channels + 1) // 8)
        groups = -(-tiles // most)
        parts = self.kernel[0] // kernel_rows

        def size(rows: int) -> int:
            words = -(-rows * width // (8 * pair)) * 8
            return self._patch(rows, kernel_rows, pitch) + words * maps_pitch

        divisors = [rows for rows in range(height, 0, -1) if height % rows == 0]
        fitting = [rows for rows in divisors if size(rows) * 4 <= SHARED // 2 - 1024]
        if not fitting or high > 4 or groups > WARPS:
            return
        enough = [r for r in fitting if self.x[0] * (height // r) * parts >= BLOCKS * 3 // 4]
        rows = (enough or fitting[-1:])[0]
        units = self.x[0] * (height // rows)
        # Warps in fours, one for each of a processor's quarters, as far as that goes.
        wide = -(-tiles // (_up(groups, 0, 4) if groups > 2 else groups))
        groups = -(-tiles // wide)
        steps = -(-rows * width // (8 * pair))
        shares = max(1, min(8 // groups, steps // 2))
        a_block = max(1, -(-units * parts // (2 * BLOCKS)))
        words = size(rows)
        if shares > 1:
            words = max(words, high * 16 * (groups * wide * 8 + 2))
        if words * 4 > SHARED:
            return
        macros = {
            "ROWS": rows, "PITCH": pitch, "OPITCH": maps_pitch, "UNITS": a_block,
            "KROWS": kernel_rows, "WIDE": wide, "GROUPS": groups, "SHARES": shares,
            "OVEC": math.gcd(outputs, 4),
        }  # fmt: skip
        grid = (-(-units // a_block), parts)
        yield Division(grid, groups * shares * 32, words, tuple(macros.items()))

    def gradient_macros(self, x: Tensor) -> dict[str, Any]:
        """What the kernels of `gradients` are told."""
        return self._macros(x, self._pair(self.y[3]), 4)

    def gradients(
        self,
        division: Division,
        call: CudaCall,
        x: Tensor,
        dy: Tensor,
        dw: Tensor,
        db: Tensor | None,
    ) -> Step:
        """A step for the gradients of filters, with the channels last, and biases.

        x may lie in any layout; dy has the channels last.
        """
        macros = self.gradient_macros(x)
        splits = division.grid[0]
        units = self.x[0] * (self.y[2] // dict(division.macros)["ROWS"])
        columns = self.y[1] * (self.x[1] * math.prod(self.kernel) + 1)
        partial = call.temporary((splits, columns))
        added = [np.int32(name in call.accumulates) for name in ("dw", "db")]
        finish = division.function("finish_gradient", macros)
        return sequence([
            division.launch("gradient", macros, [x, dy, partial, np.int32(units)]),
            launch(
                finish, -(-columns // 32), [partial, dw, db, np.int32(splits), *added],
                block=(32, 8),
            ),
        ])  # fmt: skip


def _halves(count: int) -> Iterator[int]:
    """count, then half of what there was before, rounded up, down to 1."""
    while count > 1:
        yield count
        count = -(-count // 2)
    yield 1


def small(backend: Cuda, problem: Problem) -> Small | None:
    """The convolution as a small one, if it is worth trying as such."""
    stride, pad, dilation = problem.window
    if (
        len(problem.x) != 4 or {*stride, *dilation} != {1} or problem.group > 1
        or backend.precision == "fp32" or math.prod(problem.kernel) == 1
    ):  # fmt: skip
        return None
    found = Small(problem.x, problem.y, problem.kernel, pad, backend.dtype)
    return found if found.work <= MOST_WORK else None
