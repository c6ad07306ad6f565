"""Convolutions in tf32 and in 16 bits by instructions of Hopper GPUs, as implicit matrix
products.

cuDNN is slow on groups of channels and on few channels. The kernel is
kernels/convolution/implicit_gemm.cu, for outputs and gradients of images; it takes tensors as
they lie, adds biases, applies ReLUs, adds and masks gradients, sums outputs for batch normalization
on its way. How the work is divided is a `TileConfig`: an estimate ranks them, timing decides.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from ...primitives.products import ConvolutionBackwardData
from ...tensor import Run, sequence
from .. import tuned
from ..call import Context, Kernels
from ..gpu import PRECISIONS, Gpu
from ..layout import C_TYPES, ITEM_BYTES
from ..runtime.compile import Kernel, kernel
from ..runtime.device import Device
from ..runtime.driver import MAX_RUN, Box, Pixels
from ..runtime.launch import blocks_for, launch
from .operands import Operands
from .problem import Problem
from .tensor_cores import can_use_wgmma, wgmma

REGISTERS = 1 << 16
"""Of a multiprocessor of sm_90, the one architecture that these kernels are for."""
MAX_PIXELS = 2**31 - 2**24
"""Numbers of pixels, and of vectors of filters, are of 32 bits."""
PLANES = (4, 2)
"""Vectors of 16 bytes that a part of the image has of each pixel: the first that wastes least."""
WIDTH = 32
"""Outputs of a row of filters that are transposed."""
LOADING, SPARE = 24, 26
"""Registers of a thread that loads, and of one that multiplies, besides its sums. ptxas asks for
these besides the sums of one product, too, where threads have even shares."""
MAX_OUTPUTS = 192
"""Of a tile: more sums do not fit."""
SHAPES = ((3, 1), (4, 1), (2, 2), (3, 2))
"""Groups of four warps in a block, and how often each has 64 pixels."""
BUFFERS = (3, 2)
MIN_STAGES, PREFERRED_STAGES, MAX_STAGES = 4, 8, 32
"""From PREFERRED_STAGES on, memory is better spent on a third part of the image."""
TRIED = 3
"""Tile configs that are timed."""
SUMMING, SUMMED_OUTPUTS = 26, (128, 64, 32)
"""Registers of a thread that sums what it stores; outputs of a tile then: a thread's are always of
the same channels."""


@dataclass(frozen=True)
class TileConfig:
    """Tiles of `groups` x `m_tiles` x 64 pixels and that many outputs.

    stages: parts of the filters, each of `taps` taps, and buffers: parts of the image, in flight.
    """

    groups: int
    m_tiles: int
    outputs: int
    taps: int
    stages: int
    buffers: int

    def __str__(self) -> str:
        tile = f"{self.groups}x{self.m_tiles}x64x{self.outputs}"
        return f"{tile} taps {self.taps} stages {self.stages} buffers {self.buffers}"

    @property
    def pixels(self) -> int:
        """Of a tile."""
        return self.groups * self.m_tiles * 64

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

    def fits(self, spare: int = SPARE) -> bool:
        """Whether the registers are enough. spare: of a thread, besides its products' sums."""
        one = self.outputs // 2
        return one + spare <= self.share and self.m_tiles * one + spare <= self.registers

    @property
    def macros(self) -> dict[str, Any]:
        """Macros of the kernels."""
        return {
            "N": self.outputs, "GROUPS": self.groups, "M_TILES": self.m_tiles, "TAPS": self.taps,
            "STAGES": self.stages, "BUFFERS": self.buffers, "LOADING": LOADING,
            "MULTIPLYING": self.registers,
        }  # fmt: skip


@dataclass(frozen=True)
class ImplicitGemm(Problem):
    """A dense convolution of images, with the channels last. dtype: of the elements; adds: y has an
    addend; masked: y has a mask; sums: of how many parts of y a batch normalization wants sums (0:
    of none)."""

    dtype: str = "float32"
    adds: bool = False
    masked: bool = False
    sums: int = 0

    @property
    def vector(self) -> int:
        """Elements of 16 bytes."""
        return 16 // ITEM_BYTES[self.dtype]

    @property
    def planes(self) -> int:
        """Vectors of a pixel in a part of the image."""
        return min(PLANES, key=lambda planes: -self.channels % (planes * self.vector))

    @property
    def chunks(self) -> int:
        """Parts of the image that are loaded one after the other."""
        return -(-self.channels // (self.planes * self.vector))

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
        # A row of channels would have those of the next group, whose products are to be 0.
        rows = self.group == 1 or self.channels % (self.planes * self.vector) == 0
        return (
            self.channels % self.vector == 0 and self.outputs % self.vector == 0 and rows
            and all(0 <= pad < extent for pad, extent in between)
            and self.pixels < MAX_PIXELS
            and (self.adds or self.sums > 0 or self.group > 1 or max(self.kernel) > 1)
        )  # fmt: skip

    @property
    def can_sum(self) -> bool:
        """Whether it can sum its outputs; then it takes products, too: no library sums them."""
        return self.group == 1 and self.outputs % SUMMED_OUTPUTS[-1] == 0

    @property
    def transposes_filters(self) -> bool:
        """Whether the instruction transposes the filters, which lie as in the convolution whose
        transpose this is: in 16 bits it can."""
        return self.flipped and self.vector == 8

    def parts(self, outputs: int) -> int:
        """Tiles for the same pixels."""
        return self.group * -(-self.outputs // outputs)

    def tiles(self, config: TileConfig) -> int:
        """Of all pixels and outputs."""
        return -(-self.pixels // config.pixels) * self.parts(config.outputs)

    def _reach(self, pixels: int) -> int:
        """Pixels that a tile of that many needs."""
        return pixels + (self.kernel[0] - 1) * self.pitch + self.kernel[1] - 1

    def shared(self, config: TileConfig) -> int:
        """Bytes of shared memory of a block."""
        pixels = -(-self._reach(config.pixels) // 8) * 8
        vectors = config.outputs // self.vector
        vectors = vectors + (0 if vectors % 4 else 2) if self.vector == 4 else vectors | 1
        patches = config.buffers * (self.planes * 16 * pixels + 16)
        stages = config.stages * self._stage(config)
        results = max(1, self.adds + self.masked) * config.pixels * vectors * 16
        return patches + stages + results

    def configs(self, device: Device) -> list[TileConfig]:
        """The most promising tile configs."""
        least = -(-self.outputs // MAX_OUTPUTS)
        wide = [-(-self.outputs // (parts * 8)) * 8 for parts in range(least, least + 3)]
        if self.sums or self.is_product:  # of products, these were the fastest
            wide = [outputs for outputs in SUMMED_OUTPUTS if self.outputs % outputs == 0] or wide
        made = (
            self._config(device, groups, m_tiles, outputs)
            for (groups, m_tiles), outputs in itertools.product(SHAPES, wide)
        )

        def order(config: TileConfig) -> tuple[float, int]:
            """By the estimate; of equals, larger tiles read filters less often."""
            return self.milliseconds(device, config), -config.pixels

        return sorted(dict.fromkeys(filter(None, made)), key=order)[:TRIED]

    def _config(self, device: Device, groups: int, m_tiles: int, outputs: int) -> TileConfig | None:
        """The tile config of such tiles, if it is possible."""
        taps = 1 if m_tiles * outputs >= tuned.IMPLICIT_GEMM_MIN_PRODUCTS else self.kernel[1]
        fitting = []
        for buffers in BUFFERS:
            bare = TileConfig(groups, m_tiles, outputs, taps, 0, buffers)
            room = (device.shared_memory - self.shared(bare)) // self._stage(bare)
            fitting.append(replace(bare, stages=min(room, MAX_STAGES)))
        best = next((each for each in fitting if each.stages >= PREFERRED_STAGES), fitting[-1])
        fits = best.fits(SPARE + SUMMING if self.sums else SPARE)
        fits = fits and self._reach(best.pixels) <= MAX_RUN
        return best if best.stages >= MIN_STAGES and fits else None

    def milliseconds(self, device: Device, config: TileConfig) -> float:
        """An estimate of the time it takes."""
        steps = self.chunks * math.prod(self.kernel)
        # The instruction multiplies, or reads its operands from shared memory.
        product = max(config.outputs / 2, 16 + config.outputs / 4)
        multiplied = steps * (self.planes // 2) * config.groups * config.m_tiles * product
        filters = steps * config.outputs * self.planes * 16
        image = self._reach(config.pixels) * self.chunks * self.planes * 16
        results = config.pixels * config.outputs * (16 // self.vector)
        results *= 1 + self.adds + self.masked
        cached = (filters + image + results) / tuned.CACHE_BYTES
        # What lies around a tile has been in the cache since the one before.
        own = image * config.pixels / self._reach(config.pixels)
        moved = (own * self.group / self.parts(config.outputs) + results) / tuned.MEMORY_BYTES
        turns = -(-self.tiles(config) // device.sm_count)
        cycles = turns * (max(multiplied, cached, moved) + tuned.IMPLICIT_GEMM_EPILOGUE)
        return cycles / device.cycles_a_millisecond

    def function(self, name: str, config: TileConfig, *, relu: bool = True) -> Kernel:
        """A kernel of implicit_gemm.cu, compiled for this."""
        transposed = self.transposes_filters
        own = {
            "T": C_TYPES[self.dtype], "VEC": self.vector, "PLANES": self.planes,
            "WIDTH": WIDTH, "ADDS": int(self.adds), "MASKED": int(self.masked),
            "RELU": int(relu), "SUMS": self.sums,
            "TRANSPOSED": int(transposed),
            "MULTIPLY(d, a, b)": wgmma(self.dtype, config.outputs, transposed=(False, transposed)),
        }  # fmt: skip
        return kernel("implicit_gemm", name, **self.macros, **config.macros, **own)

    def filters(self, config: TileConfig) -> Box:
        """What is copied of filters."""
        rows, wide = (
            (self.x[1], self.outputs) if self.transposes_filters else (self.y[1], self.channels)
        )
        taps, chunk = math.prod(self.kernel), self.planes * self.vector
        box = (WIDTH, chunk) if self.transposes_filters else (chunk, config.outputs)
        extents, strides = (wide, rows, taps, 1, 1), (taps * wide, wide, *[rows * taps * wide] * 2)
        return Box(extents, strides, (*box, config.taps, 1, 1), 16 // self.vector, permuted=True)

    def images(self, config: TileConfig) -> Pixels:
        """What is copied of images."""
        channels = self.planes * self.vector
        return Pixels(self.x, self.pad, channels, self._reach(config.pixels), 16 // self.vector)

    def _stage(self, config: TileConfig) -> int:
        """Bytes of shared memory of a part of the filters and its barriers."""
        outputs = -(-config.outputs // WIDTH) * WIDTH if self.transposes_filters else config.outputs
        return config.taps * self.planes * 16 * outputs + 16

    def step(self, config: TileConfig, ctx: Context) -> Run:
        """A step that computes it, for a call."""
        x, w, b, addend, relu_output, y, slope = Operands.of(ctx)
        parts, tiles = self.parts(config.outputs), self.tiles(config)
        blocks = min(tiles, ctx.backend.properties.sm_count)
        if self.sums:  # each block has a part of the sums, and the same outputs of all its tiles
            blocks = min(blocks // parts, self.sums) * parts
        steps = []
        if self.flipped and not self.transposes_filters:
            given, w = w, ctx.temporary((self.y[1] * self.columns,))
            transpose = self.function("transpose_filters", config)
            steps.append(launch(transpose, blocks_for(w.count), [given, w]))
        images, filters = self.images(config).of(x), self.filters(config).of(w)
        sums = ctx.call.sums if self.sums else None
        arguments = [images, filters, b, addend, relu_output, y, sums]
        arguments += [self.x[0], tiles]
        steps.append(
            launch(
                self.function("convolve", config, relu=slope != 1), blocks,
                [*arguments, slope],
                block=config.threads, shared=self.shared(config),
            )
        )  # fmt: skip
        return sequence(steps)


def as_implicit_gemm(
    device: Device, precision: str, problem: Problem, sums: int = 0, **more: bool
) -> ImplicitGemm | None:
    """The convolution (that which gives x's gradient is `transposed`) as one for this kernel, if it
    is worth trying as such. sums: those of that many parts of the outputs are wanted; it makes them
    if it can. more: what ImplicitGemm says."""
    if not can_use_wgmma(device, precision, problem):
        return None
    gemm = ImplicitGemm.like(problem, dtype=PRECISIONS[precision], **more)
    gemm = replace(gemm, sums=sums if gemm.can_sum else 0)
    return gemm if gemm.possible and gemm.work >= tuned.IMPLICIT_GEMM_MIN_WORK else None


def adds_gradient(gpu: Gpu, a: ConvolutionBackwardData) -> bool:
    """Whether a call for the gradient of the images can add another one on its way."""
    problem = Problem.of(a.dx, a.w, a.dy, a).transposed
    if problem.group > 1 or (
        problem.is_product and problem.channels > tuned.IMPLICIT_GEMM_MAX_ADDING
    ):
        return False
    return as_implicit_gemm(gpu.properties, gpu.precision, problem, adds=True) is not None


def implicit_gemm(ctx: Context, problem: Problem) -> list[Kernels]:
    """This kernel, for the outputs or for the gradient of the images of a call, where it is worth
    trying."""
    device, a, sums, masked = ctx.backend.properties, ctx.call, 0, False
    if isinstance(a, ConvolutionBackwardData):
        problem, masked = problem.transposed, a.relu_output is not None
    elif a.sums is not None:
        sums = a.sums.layout.shape[1]
    gemm = as_implicit_gemm(
        device, ctx.backend.precision, problem, sums, adds=a.addend is not None, masked=masked
    )
    if gemm is None:
        return []
    configs = functools.partial(gemm.configs, device)
    estimate = functools.partial(gemm.milliseconds, device)
    kernels = Kernels("implicit_gemm", configs, gemm.step, estimate)
    kernels.sums = gemm.sums > 0
    return [kernels]
