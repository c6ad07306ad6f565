"""Gradients of the filters of large convolutions with stride 1 on Hopper GPUs, in tf32 and 16 bits.

cuDNN is slow on groups of channels and on few channels. The instructions sum over pixels, while
channels vary fastest. In tf32 they want that axis to vary fastest in what they take from shared
memory: kernels/convolution/wgrad_tf32.cu transposes dy on its way, and takes x, at any
tap, from registers. In 16 bits they can transpose both: wgrad_16bit.cu takes them as they lie.
How the work is divided is a `TileConfig`: an estimate ranks them, timing decides.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ...tensor import Run, Shape, sequence
from .. import tuned
from ..call import Context, Kernels
from ..gpu import PRECISIONS
from ..layout import C_TYPES, dtype_of, is_nhwc
from ..runtime.compile import Kernel, kernel
from ..runtime.device import Device
from ..runtime.driver import MAX_EXTENT, Box
from ..runtime.launch import THREADS, blocks_for, launch
from .implicit_gemm import REGISTERS
from .operands import channels_last_blob
from .problem import Problem
from .tensor_cores import ONES, can_use_wgmma, wgmma

MIN_STEPS = 3
"""Products of a stage in one row, at least."""
CONSUMERS = (3, 2)
"""Groups of four warps that multiply."""
RESERVED = 128
"""Bytes of shared memory besides stages: barriers, or ones."""


class Stage(NamedTuple):
    """Some of an image's output. Its rows are `pitch` pixels apart in x, dy_pitch in dy.

    steps, last: products of it and of an image's last one.
    """

    rows: int
    wide: int
    pitch: int
    dy_pitch: int
    steps: int
    last: int


class Tile(NamedTuple):
    """What a block computes: for outputs, channels and rows of the kernel, by consumers."""

    outputs: int
    part: int
    rows: int
    consumers: int


@dataclass(frozen=True)
class TileConfig:
    """Work divided among blocks: grid: tiles of the gradient x shares of the stages; slots: stages
    in flight, where that is open."""

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
class FilterGradient(Problem, ABC):
    """A dense convolution of images, with the channels last, for the gradient of its filters.
    dtype: of the elements.

    Of its kernel: source: the file. least_work: multiplications from which on it is worth trying;
    tried: tile configs that are timed. step_pixels: of a product; most_steps, most_pixels: products
    of a stage in one row, pixels of one of several rows. slots: stages in flight, at least and at
    most. dynamic: of RESERVED, what a launch asks for. On an H200, about: memory_bytes: a cycle,
    from the memory to each multiprocessor; latency: cycles in which a block begins and ends.
    """

    dtype: str = "float32"

    source: ClassVar[str]
    least_work: ClassVar[float]
    memory_bytes: ClassVar[float]
    slots: ClassVar[tuple[int, int]]
    tried: ClassVar[int]
    step_pixels: ClassVar[int]
    most_steps: ClassVar[int]
    most_pixels: ClassVar[int]
    dynamic: ClassVar[int]
    latency: ClassVar[int]
    most_waves: ClassVar[int]

    @property
    def possible(self) -> bool:
        """Whether the kernel can compute it."""
        return self.outputs % 8 == 0 and self.channels % 8 == 0

    @functools.lru_cache(256)  # noqa: B019 (it is asked for each call of a net, and when it is built)
    def configs(self, device: Device) -> list[TileConfig]:
        """The most promising tile configs."""
        best, cut = [], list(self.stages())
        for tile in self.tiles():
            made = (self.config(device, stage, tile) for stage in cut)
            best += sorted(filter(None, made), key=lambda each: each[0])[:1]
        return [config for _, config in sorted(best, key=lambda each: each[0])[: self.tried]]

    def stages(self) -> Iterator[Stage]:
        """Ways to cut an image's output into stages: parts of a row, or several rows."""
        high, wide = self.y[2:]
        for steps in range(MIN_STEPS, self.most_steps + 1):
            across = steps * self.step_pixels
            yield Stage(1, across, across + self.kernel[1] - 1, across, steps, steps)
        pitch = max(self.x[3] + self.pad[1], wide)  # zeros after a row are those before the next
        for rows in range(2, high + 1):
            pixels = [(many - 1) * pitch + wide for many in (rows, (high - 1) % rows + 1)]
            if pixels[0] > self.most_pixels:
                return
            full, last = (-(-many // self.step_pixels) for many in pixels)
            yield Stage(rows, wide, pitch, pitch, full, last)

    @abstractmethod
    def tiles(self) -> Iterator[Tile]:
        """What a block may compute: enough registers for their sums."""

    @abstractmethod
    def slot(self, stage: Stage, tile: Tile) -> int:
        """Bytes of shared memory of what is in a slot."""

    @abstractmethod
    def cycles(self, steps: float, stage: Stage, tile: Tile) -> float:
        """That a stage of that many products takes."""

    def config(self, device: Device, stage: Stage, tile: Tile) -> tuple[float, TileConfig] | None:
        """The best tile config of these, if they are possible, with an estimate of its cycles."""
        if max(stage.rows + tile.rows - 1, stage.pitch, tile.part // 8) > MAX_EXTENT:
            return None
        least, most = self.slots
        slots = min(most, (device.shared_memory - RESERVED) // self.slot(stage, tile))
        if slots < least:
            return None
        blocks = -(-self.outputs // tile.outputs) * -(-self.channels // tile.part)
        blocks *= self.kernel[0] // tile.rows * self.group
        image = -(-self.y[2] // stage.rows) * -(-self.y[3] // stage.wide)
        count = self.x[0] * image
        cycles = self.cycles(((image - 1) * stage.steps + stage.last) / image, stage, tile)
        rate = self.memory_bytes * device.sm_count

        def estimate(shares: int) -> float:
            waves = -(-blocks * shares // device.sm_count)
            added = shares * self.columns * self.y[1] * 8 / rate
            return waves * (-(-count // shares) * cycles + self.latency) + added

        tried = [waves * device.sm_count // blocks for waves in range(1, self.most_waves + 1)]
        shares = min((min(max(many, 1), count) for many in tried), key=estimate)
        return estimate(shares), TileConfig(stage, tile, slots, (blocks, shares))

    def shared(self, config: TileConfig) -> int:
        """Bytes of shared memory that a launch asks for."""
        return config.slots * self.slot(config.stage, config.tile) + self.dynamic

    def bias_owners(self, tile: Tile) -> int:
        """Blocks that have the same dy, of each share."""
        return -(-self.channels // tile.part) * (self.kernel[0] // tile.rows)

    @abstractmethod
    def macros_of(self, config: TileConfig) -> dict[str, Any]:
        """Macros that its kernel has besides those of both."""

    def function(self, name: str, config: TileConfig, dw: str, *, bias: bool) -> Kernel:
        """A kernel, compiled for this. dw: the type of the gradient; bias: with that of the
        biases."""
        stage, tile = config.stage, config.tile
        both = {
            "BATCH": self.x[0], "ROWS": stage.rows, "WIDE": stage.wide, "PITCH": stage.pitch,
            "DY_PITCH": stage.dy_pitch, "STEPS": stage.steps, "LAST_STEPS": stage.last,
            "OUTPUTS": tile.outputs, "BLOCK_C": tile.part, "KROWS": tile.rows,
            "CONSUMERS": tile.consumers, "BIAS": int(bias), "DW": C_TYPES[dw],
        }  # fmt: skip
        return kernel(self.source, name, **self.macros, **both, **self.macros_of(config))

    @abstractmethod
    def boxes(self, config: TileConfig) -> tuple[Box, Box]:
        """What is copied of x and of dy."""

    @abstractmethod
    def adding(self, *, bias: bool) -> tuple[int | Sequence[int], Sequence[int]]:
        """Blocks of the kernel that adds up the shares, and threads of a block."""

    def step(self, config: TileConfig, ctx: Context) -> Run:
        """A step for the gradients of a call's filters and biases."""
        a = ctx.call
        x, dy = channels_last_blob(ctx, a.x), channels_last_blob(ctx, a.dy)
        dw, db, shares = a.dw, a.db, config.grid[1]
        partial = ctx.temporary((shares, self.y[1] * self.columns))
        rows = shares * self.bias_owners(config.tile)
        partial_bias = None if db is None else ctx.temporary((rows, self.y[1]))
        add = [name in a.accumulates for name in ("dw", "db")]
        compiled = functools.partial(
            self.function, config=config, dw=dtype_of(dw), bias=db is not None
        )
        x_box, dy_box = self.boxes(config)
        grid, block = self.adding(bias=db is not None)
        return sequence([
            launch(
                compiled("filter_products"), config.grid,
                [x_box.of(x), dy_box.of(dy), partial, partial_bias],
                block=config.threads, shared=self.shared(config),
            ),
            launch(
                compiled("add_shares"), grid,
                [partial, partial_bias, dw, db, shares, *add], block=block,
            ),
        ])  # fmt: skip


# -- tf32 ------------------------------------------------------------------------------------------

X_SLOTS, SLOTS = 3, 2
"""Stages of x in shared memory, and of dy, as it comes and transposed."""
HELD = {(3, 96): (144, 80), (2, 144): (184, 136), (2, 192): (232, 40)}
"""Registers of a thread that multiplies, and of one that transposes, by consumers and the most
sums."""


class WgradTf32(FilterGradient):
    """In tf32: a stage of each kind is a slot of its own."""

    source, least_work, tried = "wgrad_tf32", tuned.WGRAD_TF32_MIN_WORK, 2
    step_pixels, most_steps, most_pixels = 8, 8, 80
    slots, dynamic = (1, 1), 0
    memory_bytes, latency = tuned.WGRAD_TF32_MEMORY_BYTES, tuned.WGRAD_TF32_LATENCY
    most_waves = 4

    def tiles(self) -> Iterator[Tile]:
        most = -(-self.channels // 16) * 16
        tiles = itertools.product(
            range(32, 257, 32), range(16, most + 1, 16), sorted({1, self.kernel[0]}), CONSUMERS
        )
        return filter(self.registers, itertools.starmap(Tile, tiles))

    def registers(self, tile: Tile) -> tuple[int, int] | None:
        """Of threads that multiply, and of those that transpose, if enough for their sums."""
        products = self._products(tile)
        sums = -(-products // tile.consumers) * tile.outputs // 2
        fitting = [most for count, most in HELD if count == tile.consumers and sums <= most]
        if products < tile.consumers or not fitting:
            return None
        return HELD[tile.consumers, min(fitting)]

    def _products(self, tile: Tile) -> int:
        """Of 64 columns, of 8 pixels."""
        return -(-tile.rows * self.kernel[1] * tile.part // 64)

    def slot(self, stage: Stage, tile: Tile) -> int:
        rows = stage.rows + tile.rows - 1
        x = tile.part // 8 * rows * stage.pitch
        beyond = stage.steps * 8 + self.kernel[1] - 1 - stage.rows * stage.pitch
        transposed = stage.steps * 8 * tile.outputs
        maps = max(stage.rows * stage.dy_pitch * tile.outputs, transposed)
        return 4 * (-(-(x + max(beyond, 0)) // 4) * 4 * 8 * X_SLOTS + (maps + transposed) * SLOTS)

    def cycles(self, steps: float, stage: Stage, tile: Tile) -> float:
        worked = self._products(tile) * (tile.outputs / 2 + tuned.WGRAD_TF32_READING)
        worked += tile.outputs * tuned.WGRAD_TF32_TRANSPOSING
        x = tile.part // 8 * (stage.rows + tile.rows - 1) * stage.pitch
        read = 32 * (tile.outputs + x / stage.steps) / tuned.WGRAD_TF32_CACHE_BYTES
        return max(worked, read) * steps + tuned.WGRAD_TF32_STAGE / tile.consumers

    def macros_of(self, config: TileConfig) -> dict[str, Any]:
        held = self.registers(config.tile)
        assert held
        instruction = wgmma("float32", config.tile.outputs, from_registers=True)
        return {"REGISTERS": held[0], "FEW": held[1], "MULTIPLY(d, a, b)": instruction}

    def boxes(self, config: TileConfig) -> tuple[Box, Box]:
        stage, tile = config.stage, config.tile
        n, c, h, w = self.x
        _, o, high, wide = self.y
        # In planes of 8 channels.
        x_box = 8, stage.pitch, stage.rows + tile.rows - 1, tile.part // 8, 1
        dy_box = tile.outputs, stage.dy_pitch, stage.rows, 1, 1
        image = high * wide * o
        return (
            Box((8, w, h, c // 8, n), (c, w * c, 8, h * w * c), x_box),
            Box((o, wide, high, n, 1), (o, wide * o, image, n * image), dy_box),
        )

    def adding(self, *, bias: bool) -> tuple[int | Sequence[int], Sequence[int]]:
        return (-(-self.outputs // 32), -(-self.columns // 8) + bias, self.group), (32, 8)


# -- 16 bits ---------------------------------------------------------------------------------------

STEP = 16
WIDTHS, WIDTH = (16, 32, 64), 64
"""Channels of a row of x in shared memory; outputs of a row of dy, and of a product."""
MAX_COLUMNS = 256
"""Of a product."""
LOADING, SPARE = 24, 36
"""Registers of a thread that has boxes copied, and of one that multiplies, besides its sums."""
MAX_PART = 192
"""Channels of a block: with more, the sums of one product take too many registers."""


class Wgrad16Bit(FilterGradient):
    """In 16 bits: a slot is a stage of x and of dy."""

    source, least_work, tried = "wgrad_16bit", tuned.WGRAD_16BIT_MIN_WORK, 3
    step_pixels, most_steps, most_pixels = STEP, 12, 192
    slots, dynamic = (2, 6), RESERVED
    memory_bytes, latency = tuned.MEMORY_BYTES, tuned.WGRAD_16BIT_LATENCY
    most_waves = 3

    def tiles(self) -> Iterator[Tile]:
        rows = [rows for rows in range(1, self.kernel[0] + 1) if self.kernel[0] % rows == 0]
        parts = {-(-self.channels // (count * 8)) * 8 for count in range(1, 5)}
        for outputs, part, some, consumers in itertools.product(
            range(64, 257, 64), sorted(each for each in parts if each <= MAX_PART), rows, CONSUMERS
        ):
            tile = Tile(outputs, part, some, consumers)
            if outputs < self.outputs + 64 and self.sums(tile) + SPARE <= self.registers(tile):
                yield tile

    def _merged(self, tile: Tile) -> int:
        """Taps of a product: those of a row of the kernel, if it can have them."""
        taps = self.kernel[1]
        return taps if tile.part in WIDTHS and taps * tile.part <= MAX_COLUMNS else 1

    def _columns(self, tile: Tile) -> int:
        """Of a product."""
        return tile.part * self._merged(tile)

    def _units(self, tile: Tile) -> int:
        """Of 64 outputs and the taps of a product: those of a consumer."""
        units = tile.outputs // 64 * tile.rows * self.kernel[1] // self._merged(tile)
        return -(-units // tile.consumers)

    def sums(self, tile: Tile) -> int:
        """Of a thread."""
        return self._units(tile) * self._columns(tile) // 2

    def registers(self, tile: Tile) -> int:
        """Of a thread that multiplies: what others leave."""
        return (REGISTERS - 128 * LOADING) // (tile.consumers * 128) // 8 * 8

    def slot(self, stage: Stage, tile: Tile) -> int:
        read = stage.steps * STEP  # pixels: those that are copied or those that products read
        reach = read + (tile.rows - 1) * stage.pitch + self.kernel[1] - 1
        maps = max(stage.rows * stage.dy_pitch, read)
        x = max((stage.rows + tile.rows - 1) * stage.pitch, reach)
        maps, x, width = -(-maps // 8) * 8, -(-x // 8) * 8, _width(tile)
        copied = 128 * tile.outputs // WIDTH * maps + -(-tile.part // width) * x * width * 2
        return -(-copied // 1024) * 1024 + 16

    def cycles(self, steps: float, stage: Stage, tile: Tile) -> float:
        # The instruction multiplies, or reads its operands from shared memory.
        columns = self._columns(tile)
        product = max(columns / 2, 16 + columns / 4)
        worked = steps * self._units(tile) * tile.consumers * product
        return max(worked, self.slot(stage, tile) / tuned.CACHE_BYTES) + tuned.WGRAD_16BIT_STAGE

    def macros_of(self, config: TileConfig) -> dict[str, Any]:
        tile, transposed = config.tile, (True, True)
        return {
            "SLOTS": config.slots, "X_WIDTH": _width(tile), "MERGED": self._merged(tile),
            "LOADING": LOADING, "MULTIPLYING": self.registers(tile), "ONES": ONES[self.dtype, 2],
            "MULTIPLY(d, a, b)": wgmma(self.dtype, self._columns(tile), transposed=transposed),
            "ADD_UP(d, a, b)": wgmma(self.dtype, 8, transposed=transposed),
        }  # fmt: skip

    def boxes(self, config: TileConfig) -> tuple[Box, Box]:
        stage = config.stage

        def box(shape: Shape, width: int, pitch: int, rows: int) -> Box:
            n, c, h, w = shape
            strides = c, w * c, h * w * c, n * h * w * c
            return Box((c, w, h, n, 1), strides, (width, pitch, rows, 1, 1), 2, permuted=True)

        return (
            box(self.x, _width(config.tile), stage.pitch, stage.rows + config.tile.rows - 1),
            box(self.y, WIDTH, stage.dy_pitch, stage.rows),
        )

    def adding(self, *, bias: bool) -> tuple[int | Sequence[int], Sequence[int]]:
        return blocks_for(self.y[1] * self.columns // 4 + 8 * self.y[1]), (THREADS,)


def _width(tile: Tile) -> int:
    """Channels of a row of x."""
    return next((width for width in WIDTHS if width >= tile.part), WIDTHS[-1])


def filter_gradient(device: Device, precision: str, problem: Problem) -> FilterGradient | None:
    """The gradient of a convolution's filters for the kernel of the precision, if it is worth
    trying as such."""
    if not can_use_wgmma(device, precision, problem):
        return None
    kind = WgradTf32 if precision == "tf32" else Wgrad16Bit
    gradient = kind.like(problem, dtype=PRECISIONS[precision])
    return gradient if gradient.possible and gradient.work >= kind.least_work else None


def wgrad(ctx: Context, problem: Problem) -> list[Kernels]:
    """This kernel, for the gradients of the filters of a call, where it is worth trying."""
    device = ctx.backend.properties
    gradient = filter_gradient(device, ctx.backend.precision, problem)
    if gradient is None or not is_nhwc(ctx.call.dw):
        return []
    configs = functools.partial(gradient.configs, device)
    return [Kernels(gradient.source, configs, gradient.step)]
