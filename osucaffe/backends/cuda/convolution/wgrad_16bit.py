"""Owns the gradients of the filters of large convolutions with stride 1 in 16 bits on Hopper GPUs.

cuDNN is slow on groups of channels and on few channels. The kernel, kernels/convolution/
wgrad_16bit.cu, takes images and gradients of maps as they lie; how the work is divided is a
`TileConfig`: an estimate ranks them, timing decides.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...tensor import Run, Shape, sequence
from ..call import Context, Kernels
from ..gpu import PRECISIONS
from ..layout import C_TYPES, dtype_of, is_nhwc
from ..runtime.compile import Kernel, kernel
from ..runtime.device import Device
from ..runtime.driver import MOST_EXTENT, Box
from ..runtime.launch import blocks_for, launch
from .implicit_gemm import CACHE_BYTES, MEMORY_BYTES, REGISTERS
from .operands import channels_last_blob
from .problem import Problem
from .tensor_cores import ONES, can_use_wgmma, wgmma
from .wgrad_tf32 import Stage, Tile, stages, turns

LEAST_WORK = 3e8
"""Multiplications from which on it is worth trying."""
STEP = 16
"""Pixels of a product."""
MOST_PIXELS, MOST_STEPS = 192, 12
"""Of a stage; products of one in one row."""
WIDTHS, WIDTH = (16, 32, 64), 64
"""Channels of a row of x in shared memory; outputs of a row of dy, and of a product."""
MOST_COLUMNS = 256
"""Of a product."""
LOADING, SPARE = 24, 36
"""Registers of a thread that has boxes copied, and of one that multiplies, besides its sums."""
ONES_BYTES = 128
LEAST_SLOTS, MOST_SLOTS = 2, 6
CONSUMERS = (3, 2)
"""Groups of four warps that multiply."""
STAGE, LATENCY = 100, 4000
"""Cycles in which a stage begins and ends, and a block."""
MOST_PART = 192
"""Channels of a block: with more, the sums of one product take too many registers."""
TRIED = 3
"""Tile configs that are timed."""


@dataclass(frozen=True)
class TileConfig:
    """Work divided among blocks: grid: tiles of the gradient x shares of the stages; slots: stages
    in flight."""

    stage: Stage
    tile: Tile
    slots: int
    grid: tuple[int, int]

    def __str__(self) -> str:
        return f"{tuple(self.stage)} {tuple(self.tile)} slots {self.slots} {self.grid}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return (self.tile.consumers + 1) * 128


@dataclass(frozen=True)
class FilterGradient(Problem):
    """A dense convolution of images, with the channels last, for the gradient of its filters.
    dtype: of the elements."""

    dtype: str = "bfloat16"

    @property
    def possible(self) -> bool:
        """Whether the kernel can compute it."""
        return self.outputs % 8 == 0 and self.channels % 8 == 0

    @functools.lru_cache(256)  # noqa: B019 (it is asked for each call of a net, and when it is built)
    def configs(self, device: Device) -> list[TileConfig]:
        """The most promising tile configs."""
        cut = list(stages(self, STEP, MOST_STEPS, MOST_PIXELS))
        best = []
        for tile in self._tiles():
            made = (self._config(device, stage, tile) for stage in cut)
            best += sorted(filter(None, made), key=lambda each: each[0])[:1]
        return [config for _, config in sorted(best, key=lambda each: each[0])[:TRIED]]

    def _tiles(self) -> Iterator[Tile]:
        """What a block may compute."""
        rows = [rows for rows in range(1, self.kernel[0] + 1) if self.kernel[0] % rows == 0]
        parts = {-(-self.channels // (count * 8)) * 8 for count in range(1, 5)}
        for outputs, part, some, consumers in itertools.product(
            range(64, 257, 64), sorted(each for each in parts if each <= MOST_PART), rows, CONSUMERS
        ):
            tile = Tile(outputs, part, some, consumers)
            if outputs < self.outputs + 64 and self._sums(tile) + SPARE <= self._registers(tile):
                yield tile

    def _merged(self, tile: Tile) -> int:
        """Taps of a product: those of a row of the kernel, if it can have them."""
        taps = self.kernel[1]
        return taps if tile.part in WIDTHS and taps * tile.part <= MOST_COLUMNS else 1

    def _units(self, tile: Tile) -> int:
        """Of 64 outputs and the taps of a product."""
        return tile.outputs // 64 * tile.rows * self.kernel[1] // self._merged(tile)

    def _columns(self, tile: Tile) -> int:
        """Of a product."""
        return tile.part * self._merged(tile)

    def _sums(self, tile: Tile) -> int:
        """Of a thread."""
        return -(-self._units(tile) // tile.consumers) * self._columns(tile) // 2

    def _registers(self, tile: Tile) -> int:
        """Of a thread that multiplies: what others leave."""
        return (REGISTERS - 128 * LOADING) // (tile.consumers * 128) // 8 * 8

    def _config(self, device: Device, stage: Stage, tile: Tile) -> tuple[float, TileConfig] | None:
        """The best tile config of these, if they are possible, with an estimate of its cycles."""
        if max(stage.rows + tile.rows - 1, stage.pitch) > MOST_EXTENT:
            return None
        room = device.shared_memory - ONES_BYTES
        slots = min(MOST_SLOTS, room // self._slot(stage, tile))
        if slots < LEAST_SLOTS:
            return None
        blocks = -(-self.outputs // tile.outputs) * -(-self.channels // tile.part)
        blocks *= self.kernel[0] // tile.rows * self.group
        image = -(-self.y[2] // stage.rows) * -(-self.y[3] // stage.wide)
        count = self.x[0] * image
        steps = ((image - 1) * stage.steps + stage.last) / image
        # The instruction multiplies, or reads its operands from shared memory.
        columns = self._columns(tile)
        product = max(columns / 2, 16 + columns / 4)
        units = -(-self._units(tile) // tile.consumers) * tile.consumers
        cycles = max(steps * units * product, self._slot(stage, tile) / CACHE_BYTES) + STAGE

        def estimate(shares: int) -> float:
            waves = -(-blocks * shares // device.sm_count)
            added = shares * self.columns * self.y[1] * 8 / MEMORY_BYTES / device.sm_count
            return waves * (-(-count // shares) * cycles + LATENCY) + added

        tried = [waves * device.sm_count // blocks for waves in range(1, 4)]
        shares = min((min(max(many, 1), count) for many in tried), key=estimate)
        return estimate(shares), TileConfig(stage, tile, slots, (blocks, shares))

    def _pixels(self, stage: Stage, tile: Tile) -> tuple[int, int]:
        """Of dy and of x in shared memory: those that are copied or those that products read."""
        read = stage.steps * STEP
        reach = read + (tile.rows - 1) * stage.pitch + self.kernel[1] - 1
        maps = max(stage.rows * stage.maps_pitch, read)
        x = max((stage.rows + tile.rows - 1) * stage.pitch, reach)
        return -(-maps // 8) * 8, -(-x // 8) * 8

    def _slot(self, stage: Stage, tile: Tile) -> int:
        """Bytes of shared memory of a stage and its barriers."""
        maps, x = self._pixels(stage, tile)
        width = _width(tile)
        copied = 128 * tile.outputs // WIDTH * maps + -(-tile.part // width) * x * width * 2
        return -(-copied // 1024) * 1024 + 16

    def shared(self, config: TileConfig) -> int:
        """Bytes of shared memory of a block."""
        return config.slots * self._slot(config.stage, config.tile) + ONES_BYTES

    def milliseconds(self, device: Device, config: TileConfig) -> float:
        """An estimate of the time it takes."""
        found = self._config(device, config.stage, config.tile)
        assert found
        return found[0] / device.cycles_a_millisecond

    def function(self, name: str, config: TileConfig, dw: str, *, bias: bool) -> Kernel:
        """A kernel of wgrad_16bit.cu, compiled for this. dw: the type of the gradient; bias: with
        that of the biases."""
        stage, tile = config.stage, config.tile
        return kernel(
            "wgrad_16bit", name, **self.macros, BATCH=self.x[0],
            ROWS=stage.rows, WIDE=stage.wide, PITCH=stage.pitch, MAPS_PITCH=stage.maps_pitch,
            STEPS=stage.steps, LAST_STEPS=stage.last, SLOTS=config.slots, OUTPUTS=tile.outputs,
            PART=tile.part, X_WIDTH=_width(tile), MERGED=self._merged(tile), KROWS=tile.rows,
            CONSUMERS=tile.consumers, LOADING=LOADING,
            MULTIPLYING=self._registers(tile), BIAS=int(bias), ONES=ONES[self.dtype, 2],
            DW=C_TYPES[dw],
            **{"MULTIPLY(d, a, b)": wgmma(self.dtype, self._columns(tile), turned=(True, True)),
               "ADD_UP(d, a, b)": wgmma(self.dtype, 8, turned=(True, True))},
        )  # fmt: skip

    def boxes(self, config: TileConfig) -> tuple[Box, Box]:
        """What is copied of x and of dy."""
        stage = config.stage

        def box(shape: Shape, width: int, pitch: int, rows: int) -> Box:
            n, c, h, w = shape
            strides = c, w * c, h * w * c, n * h * w * c
            return Box((c, w, h, n, 1), strides, (width, pitch, rows, 1, 1), 2, permuted=True)

        return (
            box(self.x, _width(config.tile), stage.pitch, stage.rows + config.tile.rows - 1),
            box(self.y, WIDTH, stage.maps_pitch, stage.rows),
        )

    def step(self, config: TileConfig, ctx: Context) -> Run:
        """A step for the gradients of a call's filters and biases."""
        a = ctx.call
        x, dy = channels_last_blob(ctx, a.x), channels_last_blob(ctx, a.dy)
        dw, db, shares = a.dw, a.db, config.grid[1]
        count = self.y[1] * self.columns
        partial = ctx.temporary((shares, count))
        rows = shares * turns(self, config.tile)
        partial_bias = None if db is None else ctx.temporary((rows, self.y[1]))
        add = [np.int32(name in a.accumulates) for name in ("dw", "db")]
        function = functools.partial(self.function, dw=dtype_of(dw), bias=db is not None)
        x_box, maps_box = self.boxes(config)
        return sequence([
            launch(
                function("filter_products", config), config.grid,
                [x_box.of(x), maps_box.of(dy), partial, partial_bias],
                block=config.threads, shared=self.shared(config),
            ),
            launch(
                function("add_shares", config), blocks_for(count // 4 + 8 * self.y[1]),
                [partial, partial_bias, dw, db, np.int32(shares), *add],
            ),
        ])  # fmt: skip


def _width(tile: Tile) -> int:
    """Channels of a row of x."""
    return next((width for width in WIDTHS if width >= tile.part), WIDTHS[-1])


def filter_gradient(device: Device, precision: str, problem: Problem) -> FilterGradient | None:
    """The gradient of a convolution's filters, if this may compute it."""
    if precision == "tf32" or not can_use_wgmma(device, precision, problem):
        return None
    gradient = FilterGradient.like(problem, dtype=PRECISIONS[precision])
    return gradient if gradient.possible and gradient.work >= LEAST_WORK else None


def wgrad_16bit(ctx: Context, problem: Problem) -> list[Kernels]:
    """This kernel, for the gradients of the filters of a call, where it is worth trying."""
    device = ctx.backend.properties
    gradient = filter_gradient(device, ctx.backend.precision, problem)
    if gradient is None or not is_nhwc(ctx.call.dw):
        return []
    configs = functools.partial(gradient.configs, device)
    estimate = functools.partial(gradient.milliseconds, device)
    return [Kernels("wgrad_16bit", configs, gradient.step, estimate)]
