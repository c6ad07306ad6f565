"""Owns large convolutions in tf32 by instructions of Hopper GPUs.

cuDNN is slow on groups of channels and on few channels. The kernel is kernels/large.cu, for outputs
and gradients of images; it takes tensors as they lie, adds biases, applies ReLUs, masks gradients
on its way. How the work is divided is a `Division`: an estimate ranks them, timing decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tensor import Step, Tensor, sequence
from .folding import Folding
from .hopper import PROCESSORS, REGISTERS, SHARED, Correlation, correlates, multiplication
from .kernels import Kernel, blocks_for, kernel, launch
from .registry import CudaCall
from .ways import Maker, Problem, Way, least_time, measured

if TYPE_CHECKING:
    from .backend import Cuda

LEAST_WORK = 4e9
"""Multiplications from which on it is worth trying."""
MOST_PIXELS = 2**31 - 2**24
"""Numbers of pixels, and of vectors of filters, are of 32 bits."""
CHUNK = 16
"""Channels of a part of the image."""
LOADERS, MOST_LOADED = 24, 32
"""Vectors of a plane that are loaded at once, and times that this happens, at most."""
LOADING, SPARE = 64, 26
"""Registers of a thread that loads, and of one that multiplies beside its sums. ptxas asks for
these beside the sums of one product, too, where threads have even shares."""
MOST_OUTPUTS = 192
"""Of a tile: more sums do not fit."""
SHAPES = ((3, 1), (4, 1), (2, 2), (3, 2))
"""Groups of four warps in a block, and how often each has 64 pixels."""
SHORT = 96
"""Cycles that a group's products of a part of the filters should take."""
BUFFERS = (3, 2)
LEAST_STAGES, ENOUGH_STAGES, MOST_STAGES = 4, 8, 32
"""From ENOUGH_STAGES on, memory is better spent on a third part of the image."""
CYCLES, CACHE_BYTES, MEMORY_BYTES, EPILOGUE = 1.5e6, 36, 14, 1500
"""Of a large GPU, about: cycles in a millisecond; bytes a cycle of each processor's from the cache
that all share, and from the memory; cycles in which the results of a tile are stored."""
TRIED = 3
"""Divisions of the work that are timed."""


@dataclass(frozen=True)
class Division:
    """Tiles of `groups` x `deep` x 64 pixels and so many outputs.

    stages: parts of the filters, each of so many taps, and buffers: parts of the image, in flight.
    """

    groups: int
    deep: int
    outputs: int
    taps: int
    stages: int
    buffers: int

    @property
    def pixels(self) -> int:
        """Of a tile."""
        return self.groups * self.deep * 64

    @property
    def threads(self) -> int:
        """Of a block."""
        return (self.groups + 1) * 128

    @property
    def share(self) -> int:
        """Registers of a thread at the start."""
        return REGISTERS // self.threads // 8 * 8

    @property
    def registers(self) -> int:
        """Of a thread that multiplies: what those that load leave of those at the start."""
        return (self.share * self.threads - 128 * LOADING) // (self.groups * 128) // 8 * 8

    @property
    def fits(self) -> bool:
        """Whether the registers are enough."""
        one = self.outputs // 2
        return one + SPARE <= self.share and self.deep * one + SPARE <= self.registers

    @property
    def macros(self) -> dict[str, Any]:
        """What the kernels are told."""
        return {
            "N": self.outputs, "GROUPS": self.groups, "DEEP": self.deep, "TAPS": self.taps,
            "STAGES": self.stages, "BUFFERS": self.buffers, "LOADING": LOADING,
            "MULTIPLYING": self.registers,
            "MULTIPLY(d, a, b)": multiplication("float32", self.outputs),
        }  # fmt: skip


@dataclass(frozen=True)
class Large(Correlation):
    """A correlation whose maps are wanted.

    turned: w is the filter of the convolution whose gradients y are; masked: these have a mask.
    """

    turned: bool = False
    masked: bool = False

    @property
    def chunks(self) -> int:
        """Parts of the image that are loaded one behind the other."""
        return -(-self.channels // CHUNK)

    def gradient(self, *, masked: bool) -> Large:
        """The convolution of y's gradient that gives x's."""
        pad = tuple(size - 1 - before for size, before in zip(self.kernel, self.pad, strict=True))
        return replace(self, x=self.y, y=self.x, pad=pad, turned=True, masked=masked)

    @property
    def pitch(self) -> int:
        """Pixels from one row to the next."""
        return self.x[3] + self.pad[1]

    @property
    def pixels(self) -> int:
        """Of all images, with the padding between them."""
        return self.x[0] * (self.x[2] + self.pad[0]) * self.pitch

    @property
    def possible(self) -> bool:
        """Whether the kernel can compute it, and a library not simply as a product."""
        between = zip(self.pad, self.kernel, strict=True)
        return (
            self.channels % 4 == 0 and self.outputs % 4 == 0
            and all(0 <= pad < extent for pad, extent in between)
            and max(self.kernel) > 1 and self.pixels < MOST_PIXELS
        )  # fmt: skip

    def parts(self, outputs: int) -> int:
        """Tiles for the same pixels."""
        return self.group * -(-self.outputs // outputs)

    def tiles(self, division: Division) -> int:
        """Of all pixels and outputs."""
        return -(-self.pixels // division.pixels) * self.parts(division.outputs)

    def _reach(self, pixels: int) -> int:
        """Pixels that a tile of so many needs."""
        return pixels + (self.kernel[0] - 1) * self.pitch + self.kernel[1] - 1

    def shared(self, division: Division) -> int:
        """Bytes of shared memory of a block."""
        plane = (self._reach(division.pixels) + 5) // 8 * 8 + 2
        row = division.outputs * 4 + (0 if division.outputs % 16 else 32)
        patches = division.buffers * (CHUNK * 4 * plane + 16)
        stages = division.stages * (division.taps * CHUNK * 4 * division.outputs + 16)
        return patches + stages + division.pixels * row + division.groups * 32

    @property
    def divisions(self) -> list[Division]:
        """The most promising divisions."""
        least = -(-self.outputs // MOST_OUTPUTS)
        made = (
            self._division(groups, deep, -(-self.outputs // (parts * 8)) * 8)
            for (groups, deep), parts in itertools.product(SHAPES, range(least, least + 3))
        )
        return sorted(dict.fromkeys(filter(None, made)), key=self.milliseconds)[:TRIED]

    def _division(self, groups: int, deep: int, outputs: int) -> Division | None:
        """The division into such tiles, if it is possible."""
        taps = 1 if deep * outputs >= SHORT else self.kernel[1]
        fitting = []
        for buffers in BUFFERS:
            bare = Division(groups, deep, outputs, taps, 0, buffers)
            room = (SHARED - self.shared(bare)) // (taps * CHUNK * 4 * outputs + 16)
            fitting.append(replace(bare, stages=min(room, MOST_STAGES)))
        best = next((each for each in fitting if each.stages >= ENOUGH_STAGES), fitting[-1])
        loaded = -(-self._reach(best.pixels) // LOADERS)
        possible = best.stages >= LEAST_STAGES and best.fits and loaded <= MOST_LOADED
        return best if possible else None

    def milliseconds(self, division: Division) -> float:
        """An estimate of the time it takes."""
        steps = self.chunks * math.prod(self.kernel)
        # The instruction multiplies, or reads its operands from shared memory.
        product = max(division.outputs / 2, 16 + division.outputs / 4)
        multiplied = steps * (CHUNK // 8) * division.groups * division.deep * product
        filters = steps * division.outputs * CHUNK * 4
        image = self._reach(division.pixels) * self.chunks * CHUNK * 4
        results = division.pixels * division.outputs * 4 * (1 + self.masked)
        cached = (filters + image + results) / CACHE_BYTES
        moved = (image * self.group / self.parts(division.outputs) + results) / MEMORY_BYTES
        turns = -(-self.tiles(division) // PROCESSORS)
        return turns * (max(multiplied, cached, moved) + EPILOGUE) / CYCLES

    def function(self, name: str, division: Division) -> Kernel:
        """A kernel of large.cu, compiled for this."""
        own = {"FLIPPED": int(self.turned), "MASKED": int(self.masked)}
        extents = {"H": self.x[2], "W": self.x[3]}
        return kernel("large", name, **self.macros, **division.macros, **extents, **own)

    def step(
        self,
        division: Division,
        call: CudaCall,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        positive: Tensor | None,
        y: Tensor,
        slope: float,
    ) -> Step:
        """A step for y = x correlated with w, plus b, then y or slope * y where it is negative.

        All have the channels last. positive: lies as y does; where it is not positive, y becomes 0.
        """
        parts, tiles = self.parts(division.outputs), self.tiles(division)
        size = parts * self.chunks * CHUNK * math.prod(self.kernel) * division.outputs
        filters = call.temporary((size,))
        arguments = [x, filters, b, positive, y, np.int32(self.x[0]), np.int32(tiles)]
        return sequence([
            launch(self.function("arrange_filters", division), blocks_for(size // 4), [w, filters]),
            launch(
                self.function("convolve", division), min(tiles, PROCESSORS),
                [*arguments, np.float32(slope)],
                block=division.threads, shared=self.shared(division),
            ),
        ])  # fmt: skip


def large(backend: Cuda, problem: Problem) -> Large | None:
    """The convolution as a large one, if it is worth trying as such."""
    if not correlates(backend, problem):
        return None
    found = Large.of(problem)
    return found if found.possible and found.work >= LEAST_WORK else None


def trials(found: Large, folding: Folding | None, *, bias: bool) -> dict[str, Division]:
    """The divisions to be timed, by texts that say all that their time depends on."""
    kind = f"{found} {folding} {'with bias' if bias else 'alone'}"
    return {f"{kind} {division}": division for division in found.divisions}


def large_ways(
    call: CudaCall,
    found: Large,
    others: Sequence[Way],
    x: Tensor,
    w: Tensor,
    y: Tensor,
    *,
    b: Tensor | None = None,
    positive: Tensor | None = None,
    slope: float = 1.0,
    folding: Folding | None = None,
) -> list[Way]:
    """The ways to compute a convolution by this kernel that may be faster than the others.

    The tensors are those of `Large.step`. folding: how x and w are to be folded first.
    """
    least = least_time(others)

    def maker(division: Division) -> Maker:
        def make(call: CudaCall, t: Mapping[str, Any]) -> Step:
            def step(x: Tensor, w: Tensor) -> Step:
                return found.step(division, call, x, w, t["b"], t["positive"], t["y"], slope)

            if folding is None:
                return step(t["x"], t["w"])
            return folding.around(call, "forward", t["x"], t["w"], step)

        return make

    tensors = {"x": x, "w": w, "b": b, "positive": positive, "y": y}
    promising = {
        what: maker(division)
        for what, division in trials(found, folding, bias=b is not None).items()
        if found.milliseconds(division) < least
    }
    return measured(call, tensors, promising)
