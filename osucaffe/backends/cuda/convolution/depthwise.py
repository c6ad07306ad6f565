"""Owns the convolution of each channel by a filter of its own, as mobile nets have it.

It reads and writes an image for a few multiplications of each element, so that memory is what takes
its time. The kernels are in kernels/depthwise.cu. On an H200 they take, of cuDNN 9.19's time for
64 images with 3 x 3 filters: in tf32 0.72 to 0.94 forward, with stride 2 0.60 to 0.69 for the
gradient of the images (bf16 and tf32); elsewhere 0.91 to 1.10, so that cuDNN is timed, too. A
kernel for the gradients of filters was no faster in any case, and is not here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor import Step
from ..autotune.candidate import Candidate, Provider
from ..layout import C_TYPES, ITEM_BYTES
from ..registry import CudaCall
from ..runtime import device
from ..runtime.compile import kernel
from ..runtime.launch import launch
from .operands import channels_last_blob, low_precision_weights, mask_of
from .problem import Problem

THREADS = 256
LANES = (8, 16)
"""Vectors of neighbouring channels that a block has: what is tried."""
MOST_TAPS = 81
"""Elements of a kernel: its loops are unrolled."""


def serves(problem: Problem) -> bool:
    """Whether each channel has a filter of its own that is not too large."""
    alone = problem.group > 1 and problem.x[1] == problem.y[1] == problem.group
    return alone and len(problem.x) == 4 and math.prod(problem.kernel) <= MOST_TAPS


@dataclass(frozen=True)
class Config:
    """How a block is made up. vector: channels a thread; lanes, rows: threads for channels and for
    pixels."""

    vector: int
    lanes: int

    @property
    def rows(self) -> int:
        return THREADS // self.lanes

    def __str__(self) -> str:
        return f"{self.vector}x{self.lanes}x{self.rows}"


class Depthwise(Provider):
    """The kernels of depthwise.cu. operation: "forward" or "data"."""

    name = "depthwise"

    def __init__(self, problem: Problem, operation: str, dtype: str) -> None:
        self._problem, self._operation, self._dtype = problem, operation, dtype

    @functools.cached_property
    def _configs(self) -> list[Config]:
        channels = self._problem.x[1]
        vector = math.gcd(channels, 16 // ITEM_BYTES[self._dtype])
        needed = channels // vector
        fitting = [1 << max(0, math.ceil(math.log2(min(needed, lanes)))) for lanes in LANES]
        return [Config(vector, lanes) for lanes in dict.fromkeys(fitting)]

    def candidates(self) -> Iterable[Candidate]:
        for config in self._configs:
            yield Candidate(str(config), functools.partial(self._make, config))

    def macros(self, config: Config) -> dict[str, Any]:
        """What the kernels' text is compiled for."""
        problem = self._problem
        stride, pad, dilation = problem.window
        values = (problem.x[1], *problem.x[2:], *problem.y[2:], *problem.kernel)
        names = ("C", "H", "W", "OH", "OW", "KH", "KW", "SH", "SW", "PH", "PW", "DH", "DW")
        extents = dict(zip(names, (*values, *stride, *pad, *dilation), strict=True))
        return extents | {
            "T": C_TYPES[self._dtype],
            "VEC": config.vector,
            "LANES": config.lanes,
            "ROWS": config.rows,
        }

    def _make(self, config: Config, call: CudaCall) -> Step:
        problem = self._problem
        own = config.vector * config.lanes
        large = problem.x if self._operation == "data" else problem.y
        pixels = large[0] * math.prod(large[2:])
        across = -(-problem.x[1] // own)
        enough = -(-4 * device.current().enough_blocks // across)
        grid = max(1, min(enough, -(-pixels // config.rows))), across
        w = low_precision_weights(call, call.needed("w"))
        if self._operation == "forward":
            name = "depthwise"
            x, y = (channels_last_blob(call, call.needed(each)) for each in "xy")
            slope = call.settings.get("relu")
            relu = np.float32(1.0 if slope is None else slope)
            arguments = [x, w, call["b"], y, np.int64(pixels), relu]
        else:
            name = "depthwise_data"
            dy, dx = (channels_last_blob(call, call.needed(each)) for each in ("dy", "dx"))
            arguments = [dy, w, mask_of(call), dx, np.int64(pixels)]
        function = kernel("depthwise", name, **self.macros(config))
        shared = own * math.prod(problem.kernel) * 4
        return launch(function, grid, arguments, block=(config.lanes, config.rows), shared=shared)
