"""Owns convolutions so small that libraries are slow at them: LeNet's, or on three channels.

Shared memory holds what a block of threads needs as floats; tensor cores multiply in tf32 (so not
in fp32 runs). Two kernels: `correlate` for outputs and the gradients of inputs, `gradient`
for those of filters and biases, with a sum over its blocks behind it, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tensor import Shape, Step, Tensor, sequence
from .kernels import kernel, launch
from .layout import C_TYPES, ITEM_BYTES, dtype_of, strides
from .registry import CudaCall

MOST_WORK = {"forward": 3e8, "data": 3e8, "filter": 1e9}
"""Multiplications up to which these kernels are faster than cuDNN's (measured on an H200)."""
SHARED = 200 << 10
"""Bytes of shared memory that a block may take."""
BLOCKS = 128
"""About one for each processor."""
WARPS = 16


def _pitch(count: int, rest: int) -> int:
    """The least number from count on that is `rest` modulo 8: so lanes meet in no bank."""
    return count + (rest - count) % 8


def _image_pitch(channels: int, rest: int) -> int:
    return channels if channels < 4 else _pitch(channels, rest)


@dataclass(frozen=True)
class Small:
    """A convolution with stride 1 of images x to maps y, both as (N, C, H, W)."""

    x: Shape
    y: Shape
    kernel: Shape
    pad: Shape

    @property
    def work(self) -> int:
        """Multiplications."""
        return math.prod(self.y) * self.x[1] * math.prod(self.kernel)

    @property
    def turned(self) -> Small:
        """The convolution of y's gradient that gives x's."""
        pad = tuple(size - 1 - before for size, before in zip(self.kernel, self.pad, strict=True))
        return Small(self.y, self.x, self.kernel, pad)

    def _patch(self, rows: int, pitch: int) -> int:
        """Floats that `rows` rows of the output need of an image."""
        return (rows + self.kernel[0] - 1) * (self.y[3] + self.kernel[1] - 1) * pitch

    def _macros(self, x: Tensor, y: Tensor, rows: int, pitch: int) -> dict[str, Any]:
        n, c, h, w = strides(x)
        channels = self.x[1]
        # Neighbouring channels in one load, where they are neighbours.
        vector = math.gcd(channels, 16 // ITEM_BYTES[dtype_of(x)]) if c == 1 else 1
        return {
            "S": C_TYPES[dtype_of(x)], "T": C_TYPES[dtype_of(y)], "C": channels, "H": self.x[2],
            "W": self.x[3], "O": self.y[1], "OH": self.y[2], "OW": self.y[3],
            "KH": self.kernel[0], "KW": self.kernel[1], "PH": self.pad[0], "PW": self.pad[1],
            "SN": n, "SC": c, "SH": h, "SW": w, "ROWS": rows, "PITCH": pitch, "VEC": vector,
        }  # fmt: skip

    # -- outputs ---------------------------------------------------------------------------------

    def _correlation(self) -> tuple[int, int, int, int, int] | None:
        """rows, tiles, splits, run and floats of shared memory, or None where it does not fit."""
        taps = self.x[1] * math.prod(self.kernel)
        steps, across = -(-taps // 8), -(-self.y[1] // 8)
        run = _pitch(steps * 8, 4)
        height, width = self.y[2:]
        rows = height
        while rows > 1 and (self.y[0] * -(-height // rows) < BLOCKS or rows * width > WARPS * 12):
            rows = -(-rows // 2)
        tiles = -(-rows * width // 16)
        splits = max(1, min(WARPS // tiles, steps // 8, 4))
        size = self._patch(rows, _image_pitch(self.x[1], 4)) + across * 8 * run
        size = max(size, (splits - 1) * tiles * 16 * (across * 8 + 2)) + steps * 8
        if tiles > WARPS or across > 8 or size * 4 > SHARED:
            return None
        return rows, tiles, splits, run, size

    @property
    def correlates(self) -> bool:
        """Whether `correlate` can compute it."""
        return self._correlation() is not None

    def correlate(
        self, x: Tensor, w: Tensor, b: Tensor | None, y: Tensor, slope: float, *, flipped: bool
    ) -> Step:
        """A step for y = x correlated with w, plus b, then y or slope * y where it is negative.

        x may lie in any layout; w, of y's type, and y have the channels last. flipped: w is the
        filter of the convolution that this one is `turned` from.
        """
        found = self._correlation()
        assert found is not None
        rows, tiles, splits, run, size = found
        function = kernel(
            "small", "correlate", TILES=tiles, SPLITS=splits, RUN=run, FLIPPED=int(flipped),
            WVEC=math.gcd(w.size, 16 // ITEM_BYTES[dtype_of(w)]),
            **self._macros(x, y, rows, _image_pitch(self.x[1], 4)),
        )  # fmt: skip
        return launch(
            function, (self.y[0], -(-self.y[2] // rows)), [x, w, b, y, np.float32(slope)],
            block=tiles * splits * 32, shared=size * 4,
        )  # fmt: skip

    # -- gradients of filters --------------------------------------------------------------------

    def _summation(self) -> tuple[dict[str, int], int, int] | None:
        """Macros, blocks that sum (before those of kernel rows) and floats of shared memory."""
        channels, outputs = self.x[1], self.y[1]
        high = -(-outputs // 16)
        pitch, wide_pitch = _image_pitch(channels, 0), _pitch(high * 16, 0)
        pitch += 8 * (channels >= 4 and pitch % 16 == 0)
        wide_pitch += 8 * (wide_pitch % 16 == 0)
        height, width = self.y[2:]

        def size(rows: int) -> int:
            pixels = -(-rows * width // 8) * 8
            return self._patch(rows, pitch) + pixels * wide_pitch

        divisors = [rows for rows in range(height, 0, -1) if height % rows == 0]
        fitting = [rows for rows in divisors if size(rows) * 4 <= SHARED // 2]
        if not fitting:
            return None
        enough = [rows for rows in fitting if self.x[0] * (height // rows) >= BLOCKS * 3 // 4]
        rows = (enough or fitting[-1:])[0]
        units = self.x[0] * (height // rows)
        wide = max(1, 16 // high)

        def tiles(kernel_rows: int) -> int:
            return -(-(kernel_rows * self.kernel[1] * channels + 1) // 8)

        kernel_rows = self.kernel[0]
        if units < BLOCKS * 3 // 4 or -(-tiles(kernel_rows) // wide) > WARPS:
            kernel_rows = 1
        wide = min(wide, tiles(kernel_rows))
        groups = -(-tiles(kernel_rows) // wide)
        steps = -(-rows * width // 8)
        shares = max(1, min(8 // groups, steps // 4))
        parts = self.kernel[0] // kernel_rows
        a_block = max(1, -(-units * parts // (BLOCKS * 5 // 4)))
        floats = size(rows)
        if shares > 1:
            floats = max(floats, high * 16 * (groups * wide * 8 + 2))
        if groups > WARPS or high > 4 or floats * 4 > SHARED:
            return None
        macros = {
            "ROWS": rows, "PITCH": pitch, "OPITCH": wide_pitch, "UNITS": a_block,
            "KROWS": kernel_rows, "WIDE": wide, "GROUPS": groups, "SHARES": shares,
        }  # fmt: skip
        return macros, units, floats

    @property
    def sums(self) -> bool:
        """Whether `gradients` can compute the gradients of its filters."""
        return self._summation() is not None

    def gradients(
        self, call: CudaCall, x: Tensor, dy: Tensor, dw: Tensor, db: Tensor | None
    ) -> Step:
        """A step for the gradients of filters, with the channels last, and biases.

        x may lie in any layout; dy has the channels last.
        """
        found = self._summation()
        assert found is not None
        macros, units, floats = found
        defined = self._macros(x, dy, macros["ROWS"], macros["PITCH"]) | macros
        defined["OVEC"] = math.gcd(
            macros["ROWS"] * self.y[3] * self.y[1], 16 // ITEM_BYTES[dtype_of(dy)]
        )
        splits = -(-units // macros["UNITS"])
        columns = self.y[1] * (self.x[1] * math.prod(self.kernel) + 1)
        partial = call.temporary((splits, columns))
        added = [np.int32(name in call.accumulates) for name in ("dw", "db")]
        return sequence([
            launch(
                kernel("small", "gradient", **defined),
                (splits, self.kernel[0] // macros["KROWS"]), [x, dy, partial, np.int32(units)],
                block=macros["GROUPS"] * macros["SHARES"] * 32, shared=floats * 4,
            ),
            launch(
                kernel("small", "finish_gradient", **defined), -(-columns // 32),
                [partial, dw, db, np.int32(splits), *added], block=(32, 8),
            ),
        ])  # fmt: skip


def small(
    call: CudaCall,
    x: Tensor,
    y: Tensor,
    kernel: Sequence[int],
    window: Sequence[Sequence[int]],
    group: int,
    operation: str,
) -> Small | None:
    """The convolution of x to y as a small one, if it is. window: stride, pad, dilation."""
    stride, pad, dilation = (tuple(map(int, each)) for each in window)
    if (
        len(x.shape) != 4 or set(stride) != {1} or set(dilation) != {1} or group > 1
        or call.backend.precision == "fp32"
    ):  # fmt: skip
        return None
    found = Small(x.shape, y.shape, tuple(kernel), pad)
    possible = {
        "forward": lambda: found.correlates,
        "data": lambda: found.turned.correlates and min(found.turned.pad) >= 0,
        "filter": lambda: found.sums,
    }
    return found if found.work <= MOST_WORK[operation] and possible[operation]() else None
