"""Owns small convolutions by instructions of Hopper GPUs: four warps multiply tiles together.

The kernel is kernels/small_wgmma.cu, for outputs and the gradients of inputs; small_mma.py has what
other GPUs run, and the gradients of filters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from ...tensor import Step, Tensor
from ..autotune.candidate import Candidate
from ..layout import ITEM_BYTES, dtype_of
from ..runtime.compile import kernel
from ..runtime.device import Device
from ..runtime.launch import launch
from .small_mma import Small, SmallMma, TileConfig, even_blocks
from .wgmma import multiplication

GROUPS = 4
"""Groups of four warps in a block, at most."""
TILE = 8
"""Rows and columns of the pixels in a tile."""
STAGES, ONE_STAGE = 5, 16 << 10
"""Stages in which filters are loaded, but for those of so few bytes."""
MOST_SUMS = 96
"""Sums that a thread keeps, at most."""


def configs(device: Device, small: Small, *, flipped: bool = False) -> list[TileConfig]:
    """Tile configs; none if this GPU or the kernel cannot compute it."""
    if min(small.pad) < 0 or not device.has_wgmma:
        return []
    high = -(-small.y[2] // TILE)
    shapes = [(down, 1) for down in dict.fromkeys((high, -(-high // 2), 1))]
    if small.x[0] * high <= 2 * even_blocks(device) and small.y[1] > 8:
        shapes.append((1, 2))
    return [each for down, parts in shapes for each in _config(device, small, down, parts, flipped)]


def _config(
    device: Device, small: Small, down: int, parts: int, flipped: bool
) -> Iterator[TileConfig]:
    """The tile config with so many rows of tiles and parts of the outputs, if it is possible."""
    area = math.prod(small.kernel)
    each = 16 // ITEM_BYTES[small.dtype]
    planes = -(-small.x[1] // each)
    outputs = small.y[1]
    own = outputs if parts == 1 else -(-outputs // (parts * 8)) * 8
    wide = -(-own // 8) * 8
    across = -(-small.y[3] // TILE)
    tiles = down * across
    deep = next(n for n in range(1, tiles + 1) if tiles % n == 0 and tiles // n <= GROUPS)
    groups = tiles // deep
    units = area * planes
    stages = STAGES if units * wide * 16 > ONE_STAGE else 1
    stage = -(-units // (2 * stages)) * 2
    stages = -(-units // stage)
    splits = max(1, min(GROUPS // groups, stage // 4))
    patch = (down * TILE + small.kernel[0] - 1) * (across * TILE + small.kernel[1] - 1) + 1 | 1
    loaded = 4 * (planes * patch + min(stages, 2) * stage * (wide | 1))
    sums = deep * wide // 2
    words = max(loaded, (splits - 1) * groups * sums * 128)
    threads = groups * splits * 128
    if words * 4 > device.shared_memory or wide > 256 or sums > MOST_SUMS:
        return
    twice = (
        2 * (words * 4 + device.reserved_shared_memory) <= device.shared_memory_per_sm
        and sums <= 16
    )
    macros = {
        "DOWN": down, "ACROSS": across, "DEEP": deep, "SPLITS": splits, "OWN": own,
        "STAGES": stages, "STAGE": stage, "EACH": each, "FLIPPED": int(flipped),
        "RESIDENT": 1 + twice,
    }  # fmt: skip
    grid = (small.y[0], -(-small.y[2] // (TILE * down)), -(-outputs // own))
    yield TileConfig(grid, threads, words, tuple(macros.items()))


def correlate(
    small: Small,
    config: TileConfig,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    relu_output: Tensor | None,
    y: Tensor,
    slope: float,
) -> Step:
    """A step as `Small.correlate` makes, for one of the configs here.

    relu_output: lies as y does; where it is not positive, y becomes 0.
    """
    divided = dict(config.macros)
    own, each = divided["OWN"], divided["EACH"]
    macros = {
        **small.macros(x, min(each, 16 // ITEM_BYTES[dtype_of(x)])),
        "WVEC": math.gcd(small.x[1], each),
        "MASKED": int(relu_output is not None),
        "MULTIPLY(d, a, b)": multiplication(small.dtype, -(-own // 8) * 8),
    }
    function = kernel("small_wgmma", "correlate", **macros, **divided, THREADS=config.threads)
    arguments = [x, w, b, relu_output, y, np.float32(slope)]
    return launch(function, config.grid, arguments, block=config.threads, shared=config.words * 4)


class SmallWgmma(SmallMma):
    """This kernel: for outputs, or with `flipped` filters for gradients of images."""

    name = "small_wgmma"

    @functools.cached_property
    def _configs(self) -> list[TileConfig]:
        return configs(self._device, self._small, flipped=self._flipped)

    def candidates(self) -> Iterable[Candidate]:
        for config in self._configs:
            make = functools.partial(correlate, self._small, config)
            yield Candidate(str(config), functools.partial(self._make, make))
