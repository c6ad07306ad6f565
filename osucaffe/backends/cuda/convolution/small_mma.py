"""Convolutions so small that libraries are slow at them: LeNet's, or on three channels; and
inner products, which are such on one image.

Shared memory holds what a block of threads needs; tensor cores multiply, at best in tf32 (so not in
fp32 runs). The kernel `correlate` computes outputs and the gradients of inputs; `gradient`, with a
sum over its blocks in a fixed order, those of filters and biases. How the work is divided among
blocks and warps is a `TileConfig`: an estimate ranks them, timing decides.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...primitives.products import ConvolutionBackwardFilter
from ...tensor import Run, Tensor, sequence
from .. import tuned
from ..call import Context, Kernels, Provider
from ..gpu import Gpu
from ..layout import C_TYPES, ITEM_BYTES, dtype_of, is_nhwc, strides
from ..passes.rows import sum_parts
from ..runtime.compile import kernel
from ..runtime.device import Device
from ..runtime.launch import launch
from .operands import Operands, channels_last_blob, operation
from .problem import Problem
from .tensor_cores import can_use_mma, mma_macros

WARPS = 16
"""Of a block, at most."""
TRIED = 4
"""Tile configs that are timed."""
MAX_PARTIAL = 2**22
"""Numbers that blocks leave of the gradient of filters, to be summed."""
PRODUCT_OUTPUTS = (8, 16, 32, 64)
"""Of a block, where a matrix product is the convolution of one image."""


def round_up(count: int, rest: int, modulus: int = 8) -> int:
    """The least number from count on that leaves this rest."""
    return count + (rest - count) % modulus


@dataclass(frozen=True)
class TileConfig:
    """Work divided among blocks.

    threads, words: of each block, the latter of 4 bytes of shared memory. macros: for the kernel.
    """

    grid: tuple[int, ...]
    threads: int
    words: int
    macros: tuple[tuple[str, int], ...]

    def launch(self, name: str, macros: dict[str, Any], arguments: Sequence[Any]) -> Run:
        """A step that launches a kernel of small_mma.cu, compiled for this."""
        function = kernel("small_mma", name, **macros, **dict(self.macros), THREADS=self.threads)
        return launch(function, self.grid, arguments, block=self.threads, shared=self.words * 4)

    def __str__(self) -> str:
        macros = " ".join(f"{name}={value}" for name, value in self.macros)
        return f"{self.grid} {self.threads} {macros}"

    def cycles(self, device: Device, moved: int, multiplied: int) -> float:
        """An estimate of its time: blocks on a multiprocessor share its units, and come in waves.

        moved, multiplied: words that a block loads and stores, and cycles that its tiles take.
        """
        shared = device.shared_memory_per_sm // (self.words * 4 + device.reserved_shared_memory)
        together = max(1, min(shared, device.threads_per_sm // self.threads))
        waves = -(-math.prod(self.grid) // (device.sm_count * together))
        at_once = min(together, -(-math.prod(self.grid) // device.sm_count))
        most = at_once * self.threads * tuned.SMALL_MMA_WORDS_A_THREAD
        rate = min(tuned.SMALL_MMA_WORDS, most)
        return waves * (tuned.SMALL_MMA_LATENCY + at_once * (moved / rate + multiplied))


@dataclass(frozen=True, kw_only=True)
class Small(Problem):
    """A dense convolution of images. dtype: of the maps and the filters."""

    dtype: str

    def patch(self, rows: int, kernel_rows: int, pitch: int) -> int:
        """Words that `rows` rows of the output need of an image for that many of the kernel's."""
        pixels = (rows + kernel_rows - 1) * (self.y[3] + self.kernel[1] - 1)
        return -(-pixels * pitch // 4) * 4

    def pair(self, even: int) -> int:
        """How many elements a word holds: two of 16 bits, if the extent summed over is even."""
        return 2 if self.dtype != "float32" and even % 2 == 0 else 1

    def macros_for(self, x: Tensor, strides: Sequence[int], pair: int, most: int) -> dict[str, Any]:
        """Macros of each kernel. strides: the strides of x; pair: elements of a word; most: those
        loaded at once."""
        n, c, h, w = strides
        # Neighbouring channels in one load, where they are neighbours.
        vector = math.gcd(self.x[1], most) if c == 1 else 1
        return self.macros | mma_macros(self.dtype, pair) | {
            "S": C_TYPES[dtype_of(x)], "T": C_TYPES[self.dtype], "VEC": vector,
            "X_N": n, "X_C": c, "X_H": h, "X_W": w,
        }  # fmt: skip

    # -- outputs ---------------------------------------------------------------------------------

    def correlations(self, device: Device) -> list[TileConfig]:
        """The most promising tile configs for `correlate`; none if it cannot compute this."""
        if min(self.pad) < 0:
            return []
        shares = [1, 2]
        if self.is_product:
            shares = [1, *(-(-self.outputs // own) for own in PRODUCT_OUTPUTS)]
        estimates = {
            config: estimate
            for rows, m_tiles, parts in itertools.product(_shares(self.y[2]), (1, 2, 3, 4), shares)
            for config, estimate in self._correlation(device, rows, m_tiles, parts)
        }
        return sorted(estimates, key=lambda config: estimates[config])[:TRIED]

    def _correlation(
        self, device: Device, rows: int, m_tiles: int, parts: int
    ) -> Iterator[tuple[TileConfig, float]]:
        """The tile config with that many rows, tiles of a warp and parts of the outputs, with an
        estimate of its time, where it is possible."""
        area, pair = math.prod(self.kernel), self.pair(self.x[1])
        channels, outputs = self.x[1] // pair, self.y[1]
        steps = -(-area * channels // 8)
        own = outputs if parts == 1 else round_up(-(-outputs // parts), 0)
        across = -(-own // 8)
        neighbours = channels % 2 == 0
        if neighbours:
            pitch = round_up(channels, 8, 16)
        else:
            pitch = channels if channels < 4 else round_up(channels, 4)
        if self.flipped:
            filter_pitch = round_up(area * own, 4) if neighbours else round_up(area * own, 8, 16)
            filters = channels * filter_pitch + across * 8
        else:
            filter_pitch = round_up(steps * 8, 8, 16) if neighbours else round_up(steps * 8, 4)
            filters = across * 8 * filter_pitch
        tiles = -(-rows * self.y[3] // (16 * m_tiles))
        splits = max(1, min(WARPS // tiles, steps // 6, 8))
        loaded = self.patch(rows, self.kernel[0], pitch) + filters
        sums = splits * tiles * m_tiles * 16 * (across * 8 + 2)
        words = max(loaded + steps * (8 if neighbours else 16), sums)
        if tiles > WARPS or m_tiles * across > 16 or (words + own) * 4 > device.shared_memory:
            return
        if (parts - 1) * own >= outputs:
            return
        macros = {
            "ROWS": rows, "PITCH": pitch, "TILES": tiles, "SPLITS": splits,
            "FILTER_PITCH": filter_pitch, "KROWS": self.kernel[0], "M_TILES": m_tiles,
            "BLOCK_K": own,
        }  # fmt: skip
        grid = (self.y[0], -(-self.y[2] // rows), parts)
        config = TileConfig(grid, tiles * splits * 32, words, tuple(macros.items()))
        multiplied = tiles * steps * max(4 * m_tiles + 2 * across + 1, 2 * m_tiles * across)
        yield config, config.cycles(device, loaded + rows * self.y[3] * own, multiplied)

    def correlate(self, config: TileConfig, ctx: Context) -> Run:
        """A step that computes it, for a call. Images of an odd number of channels are read as they
        lie."""
        as_stored = not self.flipped and self.x[1] % 2 == 1
        x, w, b, _, relu_output, y, slope = Operands.of(ctx, x_as_stored=as_stored)
        return self.correlation(config, x, strides(x), w, b, relu_output, y, slope)

    def correlation(
        self, config: TileConfig, x: Tensor, strides: Sequence[int], w: Tensor, b: Tensor | None,
        relu_output: Tensor | None, y: Tensor, slope: float,
    ) -> Run:  # fmt: skip
        """A step that computes it from these (see `Operands`). strides: the strides of x."""
        divided = dict(config.macros)
        own = [divided["BLOCK_K"], self.y[1] - (config.grid[2] - 1) * divided["BLOCK_K"]]
        most = 16 // ITEM_BYTES[self.dtype]
        macros = self.macros_for(x, strides, self.pair(self.x[1]), most)
        macros["MASKED"] = int(relu_output is not None)
        if self.flipped:
            macros["WVEC"] = math.gcd(*own, 4)
        else:
            macros["WVEC"] = math.gcd(*(n * self.columns for n in own), most)
        return config.launch("correlate", macros, [x, w, b, relu_output, y, slope])


def even_blocks(device: Device) -> int:
    """About one for each multiprocessor: a multiple of 32, as the sizes of batches are."""
    return max(32, device.sm_count // 32 * 32)


def _shares(count: int) -> list[int]:
    """What 1, 2, 3 ... equal shares of that many have, the last perhaps less."""
    return list(dict.fromkeys(-(-count // shares) for shares in range(1, count + 1)))


def small(device: Device, precision: str, dtype: str, problem: Problem) -> Small | None:
    """The convolution as a small one, if it is worth trying as such and the device can."""
    fits = problem.is_dense and problem.group == 1 and math.prod(problem.kernel) > 1
    if not fits or not can_use_mma(device, precision) or problem.work > tuned.SMALL_MMA_MAX_WORK:
        return None
    return Small.like(problem, dtype=dtype)


def small_product(gpu: Gpu, rows: int, outputs: int, channels: int) -> Small | None:
    """The product of a matrix (rows, channels) by filters as the convolution of one image, with a
    pixel for each row; if it is worth trying as such and the device can."""
    if not can_use_mma(gpu.properties, gpu.precision) or rows not in tuned.SMALL_MMA_PRODUCT_ROWS:
        return None
    image, maps = (1, channels, rows, 1), (1, outputs, rows, 1)
    filters, window = (outputs, channels, 1, 1), ((1, 1), (0, 0), (1, 1))
    small = Small(image, filters, maps, window, 1, dtype=gpu.dtype)
    return small if small.work <= tuned.SMALL_MMA_MAX_PRODUCT_WORK else None


# -- candidates ------------------------------------------------------------------------------------


def small_mma(ctx: Context, problem: Problem) -> list[Provider]:
    """The kernel `correlate`, where it is worth trying: for the outputs of a call, or with flipped
    filters for the gradient of its images."""
    device = ctx.backend.properties
    convolution = small(device, ctx.backend.precision, ctx.backend.dtype, problem)
    if convolution is None:
        return []
    if operation(ctx) == "data":
        convolution = convolution.transposed
    configs = functools.partial(convolution.correlations, device)
    return [Kernels("small_mma", configs, convolution.correlate)]


def small_mma_wgrad(ctx: Context, problem: Problem) -> list[Provider]:
    """The kernel `gradient`, where it is worth trying: for the gradients of filters and biases."""
    device = ctx.backend.properties
    convolution = small(device, ctx.backend.precision, ctx.backend.dtype, problem)
    if convolution is None or not is_nhwc(ctx.call.dw):
        return []
    tried = functools.partial(configs, device, convolution)
    return [Kernels("small_mma_wgrad", tried, functools.partial(_gradients, convolution))]


def configs(device: Device, small: Small) -> list[TileConfig]:
    """Tile configs; none if the kernel cannot compute it."""
    rows = dict.fromkeys((small.kernel[0], 1))
    found = (_config(device, small, each) for each in rows)
    return [config for config in found if config]


def _config(device: Device, small: Small, kernel_rows: int) -> TileConfig | None:
    """The tile config where a block has that many rows of the kernel, if it is possible."""
    channels, outputs = small.x[1], small.y[1]
    height, width = small.y[2:]
    high, pair = -(-outputs // 16), small.pair(width)
    pitch = channels
    if channels >= 4:
        pitch = round_up(channels, 4) if pair == 2 else round_up(channels, 8, 16)
    maps_pitch = round_up(high * 16, 8, 16)
    most = max(1, 16 // high)
    tiles = -(-(kernel_rows * small.kernel[1] * channels + 1) // 8)
    groups = -(-tiles // most)
    parts = small.kernel[0] // kernel_rows

    def size(rows: int) -> int:
        words = -(-rows * width // (8 * pair)) * 8
        return small.patch(rows, kernel_rows, pitch) + words * maps_pitch

    divisors = [rows for rows in range(height, 0, -1) if height % rows == 0]
    half, blocks = device.shared_memory // 2 - device.reserved_shared_memory, even_blocks(device)
    fitting = [rows for rows in divisors if size(rows) * 4 <= half]
    if not fitting or high > 4 or groups > WARPS:
        return None
    # Some multiprocessors have two blocks: the loads of one are beside the products of the other.
    enough = [r for r in fitting if small.x[0] * (height // r) * parts >= blocks * 5 // 4]
    rows = (enough or fitting[-1:])[0]
    units = small.x[0] * (height // rows)
    # Warps in fours, one for each of a processor's quarters, as far as that goes.
    wide = -(-tiles // (round_up(groups, 0, 4) if groups > 2 else groups))
    groups = -(-tiles // wide)
    steps = -(-rows * width // (8 * pair))
    shares = max(1, min(8 // groups, steps // 2))
    a_block = max(1, -(-units * parts // (2 * blocks)))
    words = max(size(rows), shares * high * 16 * (groups * wide * 8 + 2))
    splits = -(-units // a_block)
    if words * 4 > device.shared_memory or splits * outputs * small.columns > MAX_PARTIAL:
        return None
    macros = {
        "ROWS": rows, "PITCH": pitch, "OPITCH": maps_pitch, "UNITS": a_block,
        "KROWS": kernel_rows, "WIDE": wide, "GROUPS": groups, "SHARES": shares,
        "OVEC": math.gcd(outputs, 4),
    }  # fmt: skip
    return TileConfig((splits, parts), groups * shares * 32, words, tuple(macros.items()))


def _gradients(small: Small, config: TileConfig, ctx: Context) -> Run:
    """A step for the gradients of filters, with the channels last, and biases."""
    a: ConvolutionBackwardFilter = ctx.call
    images = a.x if a.x.shape[1] % 2 else channels_last_blob(ctx, a.x)
    maps = channels_last_blob(ctx, a.dy)
    macros = small.macros_for(images, strides(images), small.pair(small.y[3]), 4)
    splits = config.grid[0]
    units = small.x[0] * (small.y[2] // dict(config.macros)["ROWS"])
    columns = small.y[1] * (small.columns + 1)
    partial = ctx.temporary((splits, columns))
    assert a.dw is not None
    add_w, add_b = (name in a.accumulates for name in ("dw", "db"))
    return sequence([
        config.launch("gradient", macros, [images, maps, partial, units]),
        sum_parts(partial, a.dw, accumulate=add_w, more=a.db, accumulate_more=add_b),
    ])  # fmt: skip
