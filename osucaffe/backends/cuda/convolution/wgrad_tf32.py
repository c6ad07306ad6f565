"""Owns the gradients of the filters of large convolutions with stride 1 in tf32 on Hopper GPUs.

Their fast instructions take one operand with the axis that is summed over varying fastest, from
shared memory; here that axis is pixels, with channels last. The kernel turns the gradients of the
maps around on their way, and takes images, at any tap, from registers. How the work is divided is
a `TileConfig`: an estimate ranks them, timing decides.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...tensor import Run, sequence
from ..call import Context, Kernels
from ..layout import is_nhwc
from ..runtime.compile import Kernel, kernel
from ..runtime.device import Device
from ..runtime.driver import MOST_EXTENT, Box
from ..runtime.launch import launch
from .operands import channels_last_blob
from .problem import Problem
from .tensor_cores import can_use_wgmma, wgmma

LEAST_WORK = 5e8
"""Multiplications from which on it is worth trying."""

BARRIERS = 128
"""Bytes of shared memory of a block, for its barriers."""
X_SLOTS, SLOTS = 3, 2
"""Stages of x in shared memory, and of dy, as it comes and transposed."""
MOST_PIXELS = 80
"""Of a stage."""
LEAST_STEPS, MOST_STEPS = 3, 8
"""Products of 8 pixels of a stage in one row."""
TRIED = 2
"""Tile configs that are timed."""
CONSUMERS = (3, 2)
"""Groups of four warps that multiply."""
REGISTERS = {(3, 96): (144, 80), (2, 144): (184, 136), (2, 192): (232, 40)}
"""Of a thread that multiplies, and of one that transposes, by consumers and the most sums."""
READING, TRANSPOSING = 16, 0.6
"""Cycles to read the left operand of a product, and to transpose 8 pixels of an output: they add
up, as all wait for shared memory."""
BYTES, MEMORY_BYTES = 26, 2000
"""Bytes a cycle on an H200, about: from the cache that all share to a multiprocessor, and from
the memory to all of them."""
STAGE, LATENCY = 200, 6000
"""Cycles in which a stage begins and ends, and a block."""


class Stage(NamedTuple):
    """Some of an image's output. Its rows are `pitch` pixels apart in x, maps_pitch in dy.

    steps, last: products of it and of an image's last one.
    """

    rows: int
    wide: int
    pitch: int
    maps_pitch: int
    steps: int
    last: int


class Tile(NamedTuple):
    """What a block computes: for outputs, channels and rows of the kernel, by consumers."""

    outputs: int
    part: int
    rows: int
    consumers: int


def stages(problem: Problem, step: int, most_steps: int, most_pixels: int) -> Iterator[Stage]:
    """Ways to cut an image's output into stages of products of `step` pixels: parts of a row, of up
    to so many products, or several rows, of up to so many pixels."""
    high, wide = problem.y[2:]
    for steps in range(LEAST_STEPS, most_steps + 1):
        across = steps * step
        yield Stage(1, across, across + problem.kernel[1] - 1, across, steps, steps)
    pitch = max(problem.x[3] + problem.pad[1], wide)  # zeros after a row are those before the next
    for rows in range(2, high + 1):
        pixels = [(many - 1) * pitch + wide for many in (rows, (high - 1) % rows + 1)]
        if pixels[0] > most_pixels:
            return
        full, last = (-(-many // step) for many in pixels)
        yield Stage(rows, wide, pitch, pitch, full, last)


def turns(problem: Problem, tile: Tile) -> int:
    """Blocks that have the same dy, of each share."""
    return -(-problem.channels // tile.part) * (problem.kernel[0] // tile.rows)


@dataclass(frozen=True)
class TileConfig:
    """Work divided among blocks: grid: tiles of the gradient x shares of the stages.

    shared: bytes of shared memory. registers: of a thread that multiplies, of one that turns.
    """

    stage: Stage
    tile: Tile
    grid: tuple[int, int]
    shared: int
    registers: tuple[int, int]

    def __str__(self) -> str:
        return f"{tuple(self.stage)} {tuple(self.tile)} {self.grid}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return (self.tile.consumers + 1) * 128

    @property
    def macros(self) -> dict[str, Any]:
        """Macros of the kernels."""
        stage, tile = self.stage, self.tile
        return {
            "ROWS": stage.rows, "WIDE": stage.wide, "PITCH": stage.pitch,
            "MAPS_PITCH": stage.maps_pitch, "STEPS": stage.steps, "LAST_STEPS": stage.last,
            "OUTPUTS": tile.outputs, "PART": tile.part, "KROWS": tile.rows,
            "CONSUMERS": tile.consumers, "REGISTERS": self.registers[0], "FEW": self.registers[1],
            "MULTIPLY(d, a, b)": wgmma("float32", tile.outputs, from_registers=True),
        }  # fmt: skip


@dataclass(frozen=True)
class WeightGradient(Problem):
    """A dense convolution of images, with the channels last, for the gradient of its filters."""

    @property
    def possible(self) -> bool:
        """Whether the kernel can compute it."""
        return self.outputs % 8 == 0 and self.channels % 8 == 0

    @functools.lru_cache(256)  # noqa: B019 (it is asked for each call of a net, and when it is built)
    def configs(self, device: Device) -> list[TileConfig]:
        """The most promising tile configs."""
        most = -(-self.channels // 16) * 16
        tiles = itertools.product(
            range(32, 257, 32), range(16, most + 1, 16), sorted({1, self.kernel[0]}), CONSUMERS
        )
        best, cut = [], list(stages(self, 8, MOST_STEPS, MOST_PIXELS))
        for tile in itertools.starmap(Tile, tiles):
            if registers := self._registers(tile):
                configs = [self._config(device, stage, tile, registers) for stage in cut]
                best += sorted(filter(None, configs), key=lambda each: each[0])[:1]
        return [config for _, config in sorted(best, key=lambda each: each[0])[:TRIED]]

    def _registers(self, tile: Tile) -> tuple[int, int] | None:
        """Of threads that multiply, and of those that transpose, if enough for their sums."""
        products = self._products(tile)
        sums = -(-products // tile.consumers) * tile.outputs // 2
        fitting = [most for count, most in REGISTERS if count == tile.consumers and sums <= most]
        if products < tile.consumers or not fitting:
            return None
        return REGISTERS[tile.consumers, min(fitting)]

    def _config(
        self, device: Device, stage: Stage, tile: Tile, registers: tuple[int, int]
    ) -> tuple[float, TileConfig] | None:
        """The best tile config of these, if they are possible, with an estimate of its cycles."""
        if max(stage.rows + tile.rows - 1, stage.pitch, tile.part // 8) > MOST_EXTENT:
            return None
        shared = self._shared(stage, tile)
        if shared > device.shared_memory - BARRIERS:
            return None
        blocks = -(-self.outputs // tile.outputs) * -(-self.channels // tile.part)
        blocks *= self.kernel[0] // tile.rows * self.group
        image = -(-self.y[2] // stage.rows) * -(-self.y[3] // stage.wide)
        count = self.x[0] * image
        cycles = self._cycles_a_step(stage, tile)
        cycles = cycles * ((image - 1) * stage.steps + stage.last) / image + STAGE / tile.consumers

        def estimate(shares: int) -> float:
            waves = -(-blocks * shares // device.sm_count)
            added = shares * self.columns * self.y[1] * 8 / MEMORY_BYTES
            return waves * (-(-count // shares) * cycles + LATENCY) + added

        tried = [waves * device.sm_count // blocks for waves in range(1, 5)]
        shares = min((min(max(many, 1), count) for many in tried), key=estimate)
        return estimate(shares), TileConfig(stage, tile, (blocks, shares), shared, registers)

    def _products(self, tile: Tile) -> int:
        """Of 64 columns, of 8 pixels."""
        return -(-tile.rows * self.kernel[1] * tile.part // 64)

    def _shared(self, stage: Stage, tile: Tile) -> int:
        """Bytes of shared memory of a block."""
        rows = stage.rows + tile.rows - 1
        x = tile.part // 8 * rows * stage.pitch
        beyond = stage.steps * 8 + self.kernel[1] - 1 - stage.rows * stage.pitch
        transposed = stage.steps * 8 * tile.outputs
        maps = max(stage.rows * stage.maps_pitch * tile.outputs, transposed)
        return 4 * (-(-(x + max(beyond, 0)) // 4) * 4 * 8 * X_SLOTS + (maps + transposed) * SLOTS)

    def _cycles_a_step(self, stage: Stage, tile: Tile) -> float:
        """To multiply, or to load what is multiplied."""
        worked = self._products(tile) * (tile.outputs / 2 + READING) + tile.outputs * TRANSPOSING
        x = tile.part // 8 * (stage.rows + tile.rows - 1) * stage.pitch
        return max(worked, 32 * (tile.outputs + x / stage.steps) / BYTES)

    def function(self, name: str, config: TileConfig, *, bias: bool) -> Kernel:
        """A kernel of wgrad_tf32.cu, compiled for this. bias: with the gradient of the biases."""
        macros = self.macros | config.macros
        return kernel("wgrad_tf32", name, **macros, BATCH=self.x[0], BIAS=int(bias))

    def boxes(self, config: TileConfig) -> tuple[Box, Box]:
        """What is copied of x, in planes of 8 channels, and of dy."""
        stage, tile = config.stage, config.tile
        n, c, h, w = self.x
        _, o, high, wide = self.y
        x_box = 8, stage.pitch, stage.rows + tile.rows - 1, tile.part // 8, 1
        maps_box = tile.outputs, stage.maps_pitch, stage.rows, 1, 1
        image = high * wide * o
        return (
            Box((8, w, h, c // 8, n), (c, w * c, 8, h * w * c), x_box),
            Box((o, wide, high, n, 1), (o, wide * o, image, n * image), maps_box),
        )

    def step(self, config: TileConfig, ctx: Context) -> Run:
        """A step for the gradients of a call's filters and biases."""
        a = ctx.call
        x, dy = channels_last_blob(ctx, a.x), channels_last_blob(ctx, a.dy)
        dw, db, shares = a.dw, a.db, config.grid[1]
        add = [np.int32(name in a.accumulates) for name in ("dw", "db")]
        partial = ctx.temporary((shares, self.y[1] * self.columns))
        rows = shares * turns(self, config.tile)
        partial_bias = None if db is None else ctx.temporary((rows, self.y[1]))
        x_box, maps_box = self.boxes(config)
        function = functools.partial(self.function, config=config, bias=db is not None)
        blocks = -(-self.outputs // 32), -(-self.columns // 8) + (db is not None), self.group
        return sequence([
            launch(
                function("filter_products"), config.grid,
                [x_box.of(x), maps_box.of(dy), partial, partial_bias],
                block=config.threads, shared=config.shared,
            ),
            launch(
                function("add_splits"), blocks,
                [partial, partial_bias, dw, db, np.int32(shares), *add], block=(32, 8),
            ),
        ])  # fmt: skip


def weight_gradient(device: Device, precision: str, problem: Problem) -> WeightGradient | None:
    """The gradient of a convolution's filters, if this may compute it."""
    if precision != "tf32" or not can_use_wgmma(device, precision, problem):
        return None
    gradient = WeightGradient.like(problem)
    return gradient if gradient.possible and gradient.work >= LEAST_WORK else None


def wgrad_tf32(ctx: Context, problem: Problem) -> list[Kernels]:
    """This kernel, for the gradients of the filters of a call, where it is worth trying."""
    device = ctx.backend.properties
    gradient = weight_gradient(device, ctx.backend.precision, problem)
    if gradient is None or not is_nhwc(ctx.call.dw):
        return []
    return [Kernels("wgrad_tf32", functools.partial(gradient.configs, device), gradient.step)]
