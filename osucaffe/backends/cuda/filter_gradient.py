"""Owns the gradients of the filters of large convolutions with stride 1 in tf32 on Hopper GPUs.

Their fast instructions take one operand with the axis that is summed over varying fastest, from
shared memory; here that axis is pixels, with channels last. The kernel turns the gradients of the
maps around on their way, and takes images, at any tap, from registers. How the work is divided is
a `Division`: an estimate ranks them, timing decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..tensor import Step, Tensor, sequence
from .folding import Folding
from .hopper import PROCESSORS, SHARED, Correlation, correlates, multiplication
from .kernels import Kernel, kernel, launch
from .layout import channels_last, dtype_of, is_nhwc, strides
from .registry import CudaCall
from .tensor_map import MOST_EXTENT, Box
from .ways import Maker, Problem, Way, measured

if TYPE_CHECKING:
    from .backend import Cuda

LEAST_WORK = 5e8
"""Multiplications from which on it is worth trying."""

MOST_BYTES = SHARED - 128
"""Of shared memory of a block, beside its barriers."""
X_SLOTS, SLOTS = 3, 2
"""Stages of x in shared memory, and of dy, as it comes and turned around."""
MOST_PIXELS = 80
"""Of a stage."""
LEAST_STEPS, MOST_STEPS = 3, 8
"""Products of 8 pixels of a stage in one row."""
TRIED = 2
"""Divisions of the work that are timed."""
TEAMS = (3, 2)
"""Groups of four warps that multiply."""
REGISTERS = {(3, 96): (144, 80), (2, 144): (184, 136), (2, 192): (232, 40)}
"""Of a thread that multiplies, and of one that turns, by the number of teams and the most sums."""
READING, TURNING = 16, 0.6
"""Cycles to read the left operand of a product, and to turn 8 pixels of an output: they add up, as
all wait for shared memory."""
BYTES, MEMORY_BYTES = 26, 2000
"""A cycle: from the cache that all share to a processor, and of the memory in all."""
STAGE, LATENCY = 200, 6000
"""Cycles in which a stage begins and ends, and a block."""


class Stage(NamedTuple):
    """Some of an image's output. Its rows are `pitch` pixels apart in x, maps_pitch in dy.

    steps, last: products, of 8 pixels, of it and of an image's last one.
    """

    rows: int
    wide: int
    pitch: int
    maps_pitch: int
    steps: int
    last: int


class Tile(NamedTuple):
    """What a block computes: for outputs, channels and rows of the kernel, by teams."""

    outputs: int
    part: int
    rows: int
    teams: int


@dataclass(frozen=True)
class Division:
    """Work divided among blocks: grid: tiles of the gradient x shares of the stages.

    shared: bytes of shared memory. registers: of a thread that multiplies, of one that turns.
    """

    stage: Stage
    tile: Tile
    grid: tuple[int, int]
    shared: int
    registers: tuple[int, int]

    @property
    def threads(self) -> int:
        return (self.tile.teams + 1) * 128

    @property
    def macros(self) -> dict[str, Any]:
        """What the kernels are told."""
        stage, tile = self.stage, self.tile
        return {
            "ROWS": stage.rows, "WIDE": stage.wide, "PITCH": stage.pitch,
            "MAPS_PITCH": stage.maps_pitch, "STEPS": stage.steps, "LAST_STEPS": stage.last,
            "OUTPUTS": tile.outputs, "PART": tile.part, "KROWS": tile.rows, "TEAMS": tile.teams,
            "REGISTERS": self.registers[0], "FEW": self.registers[1],
            "MULTIPLY(d, a, b)": multiplication("float32", tile.outputs, from_registers=True),
        }  # fmt: skip


@dataclass(frozen=True)
class FilterGradient(Correlation):
    """A correlation the gradients of whose filters are wanted."""

    @property
    def possible(self) -> bool:
        """Whether the kernel can compute it, and a library not simply as a product."""
        whole = self.outputs % 8 == 0 and self.channels % 8 == 0
        return whole and max(self.kernel) > 1

    @property
    def divisions(self) -> list[Division]:
        """The most promising divisions."""
        most = -(-self.channels // 16) * 16
        tiles = itertools.product(
            range(32, 257, 32), range(16, most + 1, 16), sorted({1, self.kernel[0]}), TEAMS
        )
        best = []
        for tile in itertools.starmap(Tile, tiles):
            found = [self._division(stage, tile) for stage in self._stages()]
            best += sorted(filter(None, found), key=lambda each: each[0])[:1]
        return [division for _, division in sorted(best, key=lambda each: each[0])[:TRIED]]

    def _stages(self) -> Iterator[Stage]:
        """Ways to cut an image's output into stages: parts of a row, or several rows."""
        high, wide = self.y[2:]
        for steps in range(LEAST_STEPS, MOST_STEPS + 1):
            across = steps * 8
            yield Stage(1, across, across + self.kernel[1] - 1, across, steps, steps)
        pitch = max(self.x[3] + self.pad[1], wide)  # the zeros beside a row are those of the next
        for rows in range(2, high + 1):
            pixels = [(many - 1) * pitch + wide for many in (rows, (high - 1) % rows + 1)]
            if pixels[0] > MOST_PIXELS:
                return
            steps, last = (-(-many // 8) for many in pixels)
            yield Stage(rows, wide, pitch, pitch, steps, last)

    def _division(self, stage: Stage, tile: Tile) -> tuple[float, Division] | None:
        """The best division into these, if they are possible, with an estimate of its cycles."""
        products = self._products(tile)
        sums = -(-products // tile.teams) * tile.outputs // 2
        fitting = [most for teams, most in REGISTERS if teams == tile.teams and sums <= most]
        extents = stage.rows + tile.rows - 1, stage.pitch, tile.part // 8
        if products < tile.teams or not fitting or max(extents) > MOST_EXTENT:
            return None
        shared = self._shared(stage, tile)
        if shared > MOST_BYTES:
            return None
        blocks = -(-self.outputs // tile.outputs) * -(-self.channels // tile.part)
        blocks *= self.kernel[0] // tile.rows * self.group
        image = -(-self.y[2] // stage.rows) * -(-self.y[3] // stage.wide)
        stages = self.x[0] * image
        cycles = self._cycles_a_step(stage, tile)
        cycles = cycles * ((image - 1) * stage.steps + stage.last) / image + STAGE / tile.teams

        def estimate(shares: int) -> float:
            waves = -(-blocks * shares // PROCESSORS)
            added = shares * self.columns * self.y[1] * 8 / MEMORY_BYTES
            return waves * (-(-stages // shares) * cycles + LATENCY) + added

        tried = [waves * PROCESSORS // blocks for waves in range(1, 5)]
        shares = min((min(max(many, 1), stages) for many in tried), key=estimate)
        registers = REGISTERS[tile.teams, min(fitting)]
        return estimate(shares), Division(stage, tile, (blocks, shares), shared, registers)

    def _products(self, tile: Tile) -> int:
        """Of 64 columns, of 8 pixels."""
        return -(-tile.rows * self.kernel[1] * tile.part // 64)

    def _shared(self, stage: Stage, tile: Tile) -> int:
        """Bytes of shared memory of a block."""
        rows = stage.rows + tile.rows - 1
        x = tile.part // 8 * rows * stage.pitch
        beyond = stage.steps * 8 + self.kernel[1] - 1 - stage.rows * stage.pitch
        turned = stage.steps * 8 * tile.outputs
        maps = max(stage.rows * stage.maps_pitch * tile.outputs, turned)
        return 4 * (-(-(x + max(beyond, 0)) // 4) * 4 * 8 * X_SLOTS + (maps + turned) * SLOTS)

    def _cycles_a_step(self, stage: Stage, tile: Tile) -> float:
        """To multiply, or to load what is multiplied."""
        worked = self._products(tile) * (tile.outputs / 2 + READING) + tile.outputs * TURNING
        x = tile.part // 8 * (stage.rows + tile.rows - 1) * stage.pitch
        return max(worked, 32 * (tile.outputs + x / stage.steps) / BYTES)

    def function(self, name: str, division: Division) -> Kernel:
        """A kernel of filter_gradient.cu, compiled for this."""
        macros = {**self.macros, **division.macros, "BATCH": self.x[0]}
        return kernel("filter_gradient", name, **macros)

    def boxes(self, division: Division) -> tuple[Box, Box]:
        """What is copied of x, in planes of 8 channels, and of dy."""
        stage, tile = division.stage, division.tile
        n, c, h, w = self.x
        _, o, high, wide = self.y
        x_box = 8, stage.pitch, stage.rows + tile.rows - 1, tile.part // 8, 1
        maps_box = tile.outputs, stage.maps_pitch, stage.rows, 1, 1
        image = high * wide * o
        return (
            Box((8, w, h, c // 8, n), (c, w * c, 8, h * w * c), x_box),
            Box((o, wide, high, n, 1), (o, wide * o, image, n * image), maps_box),
        )

    def step(
        self, division: Division, call: CudaCall, x: Tensor, dy: Tensor, dw: Tensor, *, add: bool
    ) -> Step:
        """A step for the gradients of the filters; all tensors have the channels last."""
        shares = division.grid[1]
        partial = call.temporary((shares, self.y[1] * self.columns))
        x_box, maps_box = self.boxes(division)
        finish = self.function("add_shares", division)
        blocks = -(-self.outputs // 32), -(-self.columns // 8), self.group
        return sequence([
            launch(
                self.function("filter_products", division), division.grid,
                [x_box.of(x), maps_box.of(dy), partial],
                block=division.threads, shared=division.shared,
            ),
            launch(finish, blocks, [partial, dw, np.int32(shares), np.int32(add)], block=(32, 8)),
        ])  # fmt: skip


def filter_gradient(backend: Cuda, problem: Problem) -> FilterGradient | None:
    """The gradient of a convolution's filters, if this may compute it."""
    if not correlates(backend, problem):
        return None
    found = FilterGradient.of(problem)
    return found if found.possible and found.work >= LEAST_WORK else None


def trials(found: FilterGradient, folding: Folding | None) -> dict[str, Division]:
    """The divisions to be timed, by texts that say all that their time depends on."""
    return {f"{folding} {found} {division}": division for division in found.divisions}


def large_gradients(
    call: CudaCall,
    found: FilterGradient,
    x: Tensor,
    dy: Tensor,
    dw: Tensor,
    *,
    folding: Folding | None = None,
) -> list[Way]:
    """The ways to compute the gradients of filters by this kernel, if the tensors lie as it wants.

    folding: how x is to be folded first, of one pixel.
    """
    as_it_lies = folding is not None or strides(x) == channels_last(x.shape)
    if dtype_of(x) != "float32" or not is_nhwc(dw) or not as_it_lies:
        return []
    add = "dw" in call.accumulates

    def maker(division: Division) -> Maker:
        def make(call: CudaCall, t: Mapping[str, Tensor]) -> Step:
            if folding is None:
                return found.step(division, call, t["x"], t["dy"], t["dw"], add=add)

            def step(x: Tensor, dw: Tensor) -> Step:
                return found.step(division, call, x, t["dy"], dw, add=False)

            return folding.around(call, "filter", t["x"], t["dw"], step)

        return make

    makers = {what: maker(division) for what, division in trials(found, folding).items()}
    return measured(call, {"x": x, "dy": dy, "dw": dw}, makers)
