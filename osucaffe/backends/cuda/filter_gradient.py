"""Owns the gradients of the filters of large convolutions in tf32, where cuDNN is slow.

Hopper's fast instructions take tf32 operands only with the axis that is summed over varying
fastest; here that axis is pixels, with channels last. This kernel takes them as they lie, by older
instructions. How the work is divided is a `Division`: an estimate ranks them, timing decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tensor import Shape, Step, Tensor, sequence
from .cudnn import channels_last
from .folding import Folding
from .kernels import kernel, launch
from .layout import dtype_of, is_nhwc, strides
from .registry import CudaCall
from .ways import Maker, Way, measured, temporary

LEAST_WORK = 4e9
"""Multiplications from which on it is worth trying."""
MOST_ELEMENTS = 2**31 - 2**24
"""Offsets are of 32 bits."""
MOST_EXTENT = 2**13
PIXELS, STAGES = 16, 4
SHARED, REGISTERS = 227 << 10, 1 << 16
"""Of a processor: bytes of shared memory for blocks, registers of 4 bytes."""
PROCESSORS = 132
TRIED = 3
"""Divisions of the work that are timed."""
MULTIPLICATION, SHARED_BYTES, BYTES, MEMORY_BYTES = 1.6, 128, 26, 2000
"""Cycles of a processor for a product of tiles; bytes a cycle of its shared memory, from the cache
that all share, and of the memory in all. About those of a large GPU."""
LATENCY = 5000
"""Cycles in which a block begins and ends."""


@dataclass(frozen=True)
class Division:
    """Work divided among blocks: grid: tiles of the gradient x shares of the pixels.

    share: pixels in each. shared: bytes of shared memory. macros: for the kernel.
    """

    grid: tuple[int, int]
    share: int
    threads: int
    shared: int
    macros: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class FilterGradient:
    """A convolution of images x to maps y, both (N, C, H, W). x_strides: in elements."""

    x: Shape
    x_strides: Shape
    y: Shape
    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape
    group: int

    @property
    def channels(self) -> int:
        """Of a group."""
        return self.x[1] // self.group

    @property
    def outputs(self) -> int:
        """Of a group."""
        return self.y[1] // self.group

    @property
    def columns(self) -> int:
        """Weights of a filter."""
        return math.prod(self.kernel) * self.channels

    @property
    def pixels(self) -> int:
        """Of the output, in all images."""
        return self.y[0] * self.y[2] * self.y[3]

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.pixels * self.y[1] * self.columns

    @property
    def vector(self) -> int:
        """Channels that can be copied at once."""
        n, c, h, w = self.x_strides
        return 4 if c == 1 and math.gcd(self.channels, n, h, w) % 4 == 0 else 1

    @property
    def possible(self) -> bool:
        """Whether the kernel can compute it, and well."""
        sizes = math.prod(self.x), math.prod(self.y), self.y[1] * self.columns
        return (
            self.outputs % 8 == 0
            and (self.channels % 8 == 0 or self.channels <= 4)
            and max(sizes) < MOST_ELEMENTS
            and max(*self.x[2:], *self.y[2:]) < MOST_EXTENT
        )

    def _part(self, columns: int) -> int:
        """Channels of a part: such that a block has all columns of the kernel for them."""
        if self.x_strides[1] != 1:
            return 1
        parts = [part for part in range(8, self.channels + 1, 8) if self.channels % part == 0]
        fitting = [part for part in parts if part * self.kernel[1] <= columns]
        return max(fitting) if fitting else min([*parts, self.channels])

    @property
    def divisions(self) -> list[Division]:
        """The most promising divisions."""
        best: dict[tuple[int, int], tuple[float, Division]] = {}
        warps = ((1, 4), (2, 2), (4, 1), (2, 4), (4, 2))
        for (wm, wn), mt, nt in itertools.product(warps, (2, 3, 4, 6), range(4, 15)):
            for cycles, division in self._divisions(wm, wn, mt, nt):
                tile = wm * mt, wn * nt
                if tile not in best or cycles < best[tile][0]:
                    best[tile] = cycles, division
        ranked = sorted(best.values(), key=lambda found: found[0])
        return [division for _, division in ranked[:TRIED]]

    def _divisions(self, wm: int, wn: int, mt: int, nt: int) -> Iterator[tuple[float, Division]]:
        """The best division with so many warps and tiles of each, if there is one, with an estimate
        of its time."""
        outputs, columns, threads = wm * mt * 16, wn * nt * 8, wm * wn * 32
        fragments = 4 * mt + 2 * nt
        registers = -(-(4 * mt * nt + fragments + 32) // 8) * 8
        pitches = outputs + 8, columns + (8 if columns % 16 == 0 else 0)
        shared = (STAGES * sum(pitches) * 4 + 2 * 8) * PIXELS
        together = min(REGISTERS // (threads * registers), SHARED // (shared + 1024), 3)
        if registers > 255 or together * wm * wn < 8:
            return
        ahead = registers + fragments + 8 <= min(255, REGISTERS // (threads * together))
        tiles = -(-self.outputs // outputs) * -(-self.columns // columns) * self.group
        part = self._part(columns)
        # Columns of the kernel next to each other read the same from the cache that all share.
        reused = max(1, min(self.kernel[1] // self.stride[1], columns // part))
        multiplied = wm * wn * mt * nt * MULTIPLICATION
        touched = (wm * wn * fragments * 32 + (outputs + columns) * 8) * 4 / SHARED_BYTES
        fetched = (outputs + columns / reused) * 8 * 4 / BYTES
        each = max(multiplied, touched, fetched) + (multiplied + touched + fetched) / 10
        slots = PROCESSORS * together

        def estimate(shares: int) -> float:
            share = -(-self.pixels // (shares * PIXELS)) * PIXELS
            waves = -(-tiles * shares // slots)
            added = shares * self.columns * self.y[1] * 8 / MEMORY_BYTES
            return waves * (together * share / 8 * each + LATENCY) + added

        most = min(self.pixels // (8 * PIXELS), 4 * slots // tiles + 1)
        shares = min(range(1, max(1, most) + 1), key=estimate)
        share = -(-self.pixels // (shares * PIXELS)) * PIXELS
        macros = {
            "MT": mt, "NT": nt, "WM": wm, "WN": wn, "BLOCKS": together, "PART": part,
            "PIXELS": PIXELS, "STAGES": STAGES, "AHEAD": int(ahead),
        }  # fmt: skip
        grid = tiles, -(-self.pixels // share)
        yield estimate(shares), Division(grid, share, threads, shared, tuple(macros.items()))

    def macros(self, division: Division) -> dict[str, Any]:
        """What the kernels are told."""
        n, c, h, w = self.x_strides
        return {
            "BATCH": self.x[0], "H": self.x[2], "W": self.x[3], "O": self.y[1], "OH": self.y[2],
            "OW": self.y[3], "G": self.group, "CG": self.channels, "OG": self.outputs,
            "KH": self.kernel[0], "KW": self.kernel[1], "SH": self.stride[0], "SW": self.stride[1],
            "PH": self.pad[0], "PW": self.pad[1], "DH": self.dilation[0], "DW": self.dilation[1],
            "XN": n, "XC": c, "XH": h, "XW": w, "VEC": self.vector, **dict(division.macros),
        }  # fmt: skip

    def step(
        self, division: Division, call: CudaCall, x: Tensor, dy: Tensor, dw: Tensor, *, add: bool
    ) -> Step:
        """A step for the gradients of the filters; dy and dw have the channels last."""
        macros = self.macros(division)
        shares = division.grid[1]
        partial = call.temporary((shares, self.y[1] * self.columns))
        finish = kernel("filter_gradient", "finish_filter_gradient", **macros)
        blocks = -(-self.outputs // 32), -(-self.columns // 8), self.group
        return sequence([
            launch(
                kernel("filter_gradient", "filter_gradient", **macros), division.grid,
                [x, dy, partial, np.int32(division.share)],
                block=division.threads, shared=division.shared,
            ),
            launch(finish, blocks, [partial, dw, np.int32(shares), np.int32(add)], block=(32, 8)),
        ])  # fmt: skip


def large_gradients(
    call: CudaCall,
    x: Tensor,
    dy: Tensor,
    dw: Tensor,
    window: Sequence[Sequence[int]],
    group: int,
    folding: Folding | None = None,
) -> list[Way]:
    """The ways to compute the gradients of filters by this kernel, if it is worth trying.

    window: stride, pad, dilation. folding: how x may be folded first, of one pixel.
    """
    lies = len(x.shape) == 4 and dtype_of(x) == "float32" and is_nhwc(dw)
    if call.backend.precision != "tf32" or not lies:
        return []
    stride, pad, dilation = (tuple(map(int, each)) for each in window)
    found = FilterGradient(
        x.shape, strides(x), dy.shape, dw.shape[2:], stride, pad, dilation, group
    )
    if not found.possible or found.work < LEAST_WORK:
        return []
    add = "dw" in call.accumulates

    def maker(division: Division) -> Maker:
        return lambda call, t: found.step(division, call, t["x"], t["dy"], t["dw"], add=add)

    makers = {f"{found} {division}": maker(division) for division in found.divisions}
    if folding is not None:
        makers |= _folded(folding, add=add)
    return measured(call, {"x": x, "dy": dy, "dw": dw}, makers)


def _folded(folding: Folding, *, add: bool) -> dict[str, Maker]:
    """What makes the steps for images that are folded first, by texts that tell them apart."""
    lies = channels_last(folding.folded_x)
    found = FilterGradient(
        folding.folded_x, lies, folding.folded_y, folding.kernel, (1, 1), (0, 0), (1, 1), 1
    )

    def maker(division: Division) -> Maker:
        def make(call: CudaCall, t: Mapping[str, Tensor]) -> Step:
            x, dw = temporary(call, folding.folded_x), temporary(call, folding.folded_w)
            return sequence([
                folding.fold_images(t["x"], x),
                found.step(division, call, x, t["dy"], dw, add=False),
                folding.unfold_filters(dw, t["dw"], accumulate=add),
            ])  # fmt: skip

        return make

    divisions = found.divisions if found.possible else []
    return {f"{folding} {division}": maker(division) for division in divisions}
