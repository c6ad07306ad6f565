"""Owns the convolution of images with few channels by small filters, such as a net's first.

The output takes the time: it is many times as large as the image. The kernel, in
kernels/convolution/few_channels.cu, writes it once: VGG-16's first layer on 64 images takes 0.145
ms in bf16 and 0.235 ms in tf32 on an H200, where memory takes 0.111 and 0.212, and cuDNN 0.458 and
0.786.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor import Step, Tensor
from ..autotune.candidate import Candidate, Provider
from ..layout import C_TYPES, ITEM_BYTES, dtype_of, strides
from ..registry import CudaCall
from ..runtime import device
from ..runtime.compile import kernel
from ..runtime.launch import launch
from .operands import channels_last_blob, low_precision_weights
from .problem import Problem
from .small_mma import mma_macros

MOST_CHANNELS = 4
MOST_STEPS = 5
"""Of a product: its filters lie in registers."""
LEAST_WORK = 1e8
"""Multiplications: what is smaller, small_mma's kernel keeps in shared memory as a whole."""
ROWS = 8


@dataclass(frozen=True)
class Config:
    """How work is divided. own: outputs of a block; columns: of a tile of the output."""

    own: int
    columns: int

    def __str__(self) -> str:
        return f"{self.own}x{self.columns}"


def _pair(dtype: str) -> int:
    """Elements in a word."""
    return 4 // ITEM_BYTES[dtype]


def _steps(problem: Problem, dtype: str) -> int:
    """Instructions that sum over all of a filter."""
    return -(-math.prod(problem.kernel) * MOST_CHANNELS // _pair(dtype) // 8)


def _least_own(dtype: str) -> int:
    """Outputs of which four lanes store 16 bytes each."""
    return 64 // ITEM_BYTES[dtype]


def few_channels(gpu: device.Device, precision: str, dtype: str, problem: Problem) -> bool:
    """Whether the kernel computes this, and is worth trying."""
    *_, dilation = problem.window
    return (
        len(problem.x) == 4 and problem.x[1] <= MOST_CHANNELS and problem.group == 1
        and {*dilation} == {1} and precision != "fp32" and gpu.has_mma
        and problem.y[1] % _least_own(dtype) == 0 and problem.work >= LEAST_WORK
        and _steps(problem, dtype) <= MOST_STEPS
    )  # fmt: skip


class FewChannels(Provider):
    """The kernel of few_channels.cu, for outputs."""

    name = "few_channels"

    def __init__(self, problem: Problem, dtype: str) -> None:
        self._problem, self._dtype = problem, dtype

    def candidates(self) -> Iterable[Candidate]:
        outputs, least = self._problem.y[1], _least_own(self._dtype)
        for own in dict.fromkeys((math.gcd(outputs, 64), least)):
            for columns in 32, 16:
                config = Config(own, columns)
                yield Candidate(str(config), functools.partial(self._make, config))

    def macros(self, config: Config, source: str) -> dict[str, Any]:
        """What the kernel's text is compiled for, where images are of this type."""
        problem = self._problem
        stride, pad, _ = problem.window
        values = (problem.x[1:], problem.y[1:], problem.kernel, stride, pad)
        names = ("C", "H", "W", "O", "OH", "OW", "KH", "KW", "SH", "SW", "PH", "PW")
        found = dict(zip(names, (each for value in values for each in value), strict=True))
        return found | mma_macros(self._dtype, _pair(self._dtype)) | {
            "S": C_TYPES[source], "T": C_TYPES[self._dtype], "OWN": config.own, "ROWS": ROWS,
            "COLUMNS": config.columns, "BLOCKS": self._blocks(config),
        }  # fmt: skip

    def _blocks(self, config: Config) -> int:
        """Of a multiprocessor: as registers allow."""
        registers = _steps(self._problem, self._dtype) * config.own // 4 + config.own // 2 + 48
        return max(1, min(4, device.current().registers_per_sm // (ROWS * 32 * registers)))

    def _make(self, config: Config, call: CudaCall) -> Step:
        x: Tensor = call.needed("x")
        y = channels_last_blob(call, call.needed("y"))
        function = kernel("few_channels", "few_channels", **self.macros(config, dtype_of(x)))
        images, outputs, height, width = y.shape
        tiles = images * -(-height // ROWS) * -(-width // config.columns)
        most = device.current().sm_count * self._blocks(config)
        slope = call.settings.get("relu")
        arguments = [
            x, low_precision_weights(call, call.needed("w")), call["b"], y, np.int32(tiles),
            *map(np.int64, strides(x)), np.float32(1.0 if slope is None else slope),
        ]  # fmt: skip
        grid = min(tiles, most), outputs // config.own
        return launch(function, grid, arguments, block=ROWS * 32)
