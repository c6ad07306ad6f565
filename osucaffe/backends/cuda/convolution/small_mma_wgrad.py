"""Owns the gradients of the filters and biases of small convolutions: see small_mma.py.

The kernel is `gradient` in kernels/small_mma.cu, with a sum over its blocks behind it, in a fixed
order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from ...tensor import Step, Tensor, sequence
from ..autotune.candidate import Candidate, Provider
from ..registry import CudaCall
from ..runtime.device import Device
from ..runtime.launch import launch
from .operands import channels_last_blob
from .small_mma import WARPS, Small, TileConfig, even_blocks, round_up


def configs(device: Device, small: Small) -> list[TileConfig]:
    """Tile configs; none if the kernel cannot compute it."""
    rows = dict.fromkeys((small.kernel[0], 1))
    return [config for each in rows for config in _config(device, small, each)]


def _config(device: Device, small: Small, kernel_rows: int) -> Iterator[TileConfig]:
    """The tile config where a block has so many rows of the kernel, if it is possible."""
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
        return
    enough = [r for r in fitting if small.x[0] * (height // r) * parts >= blocks * 3 // 4]
    rows = (enough or fitting[-1:])[0]
    units = small.x[0] * (height // rows)
    # Warps in fours, one for each of a processor's quarters, as far as that goes.
    wide = -(-tiles // (round_up(groups, 0, 4) if groups > 2 else groups))
    groups = -(-tiles // wide)
    steps = -(-rows * width // (8 * pair))
    shares = max(1, min(8 // groups, steps // 2))
    a_block = max(1, -(-units * parts // (2 * blocks)))
    words = size(rows)
    if shares > 1:
        words = max(words, high * 16 * (groups * wide * 8 + 2))
    if words * 4 > device.shared_memory:
        return
    macros = {
        "ROWS": rows, "PITCH": pitch, "OPITCH": maps_pitch, "UNITS": a_block,
        "KROWS": kernel_rows, "WIDE": wide, "GROUPS": groups, "SHARES": shares,
        "OVEC": math.gcd(outputs, 4),
    }  # fmt: skip
    grid = (-(-units // a_block), parts)
    yield TileConfig(grid, groups * shares * 32, words, tuple(macros.items()))


def gradients(
    small: Small,
    config: TileConfig,
    call: CudaCall,
    x: Tensor,
    dy: Tensor,
    dw: Tensor,
    db: Tensor | None,
) -> Step:
    """A step for the gradients of filters, with the channels last, and biases.

    x may lie in any layout; dy has the channels last.
    """
    macros = small.mma_macros(x, small.pair(small.y[3]), 4)
    splits = config.grid[0]
    units = small.x[0] * (small.y[2] // dict(config.macros)["ROWS"])
    columns = small.y[1] * (small.x[1] * math.prod(small.kernel) + 1)
    partial = call.temporary((splits, columns))
    added = [np.int32(name in call.accumulates) for name in ("dw", "db")]
    finish = config.function("finish_gradient", macros)
    return sequence([
        config.launch("gradient", macros, [x, dy, partial, np.int32(units)]),
        launch(
            finish, -(-columns // 32), [partial, dw, db, np.int32(splits), *added],
            block=(32, 8),
        ),
    ])  # fmt: skip


class SmallMmaWgrad(Provider):
    """The kernel `gradient`: for the gradients of filters and biases."""

    name = "small_mma_wgrad"

    def __init__(self, device: Device, found: Small) -> None:
        self._device, self._small = device, found

    @functools.cached_property
    def _configs(self) -> list[TileConfig]:
        return configs(self._device, self._small)

    def candidates(self) -> Iterable[Candidate]:
        for config in self._configs:
            yield Candidate(str(config), functools.partial(self._make, config))

    def _make(self, config: TileConfig, call: CudaCall) -> Step:
        x, dy, dw = (call.needed(name) for name in ("x", "dy", "dw"))
        images = x if x.shape[1] % 2 else channels_last_blob(call, x)
        return gradients(
            self._small, config, call, images, channels_last_blob(call, dy), dw, call["db"]
        )
