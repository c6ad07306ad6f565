"""Owns the convolution of each channel by a filter of its own, as mobile nets have it.

It reads and writes an image for a few multiplications of each element, so that memory is what takes
its time. The kernels are in kernels/depthwise.cu.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor import Step, sequence
from ..autotune.candidate import Candidate, Provider
from ..layout import C_TYPES, ITEM_BYTES
from ..passes.rows import sum_parts
from ..registry import CudaCall
from ..runtime import device
from ..runtime.compile import kernel
from ..runtime.launch import launch
from .operands import bias_gradient, channels_last_blob, low_precision_weights, mask_of
from .problem import Problem

THREADS = 256
LANES = (8, 16)
"""Vectors of neighbouring channels that a block has: what is tried."""
MOST_TAPS = 81
"""Elements of a kernel: its loops are unrolled."""
MOST_SUMS = 100
"""Registers of a thread for the sums of a filter's gradient."""
LEAST_PIXELS = 16
"""That a thread adds up at least before work is cut into more parts."""


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
    """The kernels of depthwise.cu. operation: "forward", "data" or "filter"."""

    name = "depthwise"

    def __init__(self, problem: Problem, operation: str, dtype: str) -> None:
        self._problem, self._operation, self._dtype = problem, operation, dtype

    @functools.cached_property
    def _configs(self) -> list[Config]:
        channels = self._problem.x[1]
        vector = math.gcd(channels, 16 // ITEM_BYTES[self._dtype])
        if self._operation == "filter":
            while vector > 1 and vector * math.prod(self._problem.kernel) > MOST_SUMS:
                vector //= 2
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

    def _grid(self, config: Config, pixels: int, a_thread: int) -> tuple[int, int]:
        """Blocks for so many pixels: enough to keep the GPU busy, of which each thread treats
        a_thread at least; and for all channels."""
        across = -(-self._problem.x[1] // (config.vector * config.lanes))
        enough = -(-4 * device.current().enough_blocks // across)
        return max(1, min(enough, -(-pixels // (config.rows * a_thread)))), across

    def _make(self, config: Config, call: CudaCall) -> Step:
        problem, taps = self._problem, math.prod(self._problem.kernel)
        forward = self._operation == "forward"
        name = {"forward": "depthwise", "data": "depthwise_data", "filter": "depthwise_filter"}
        function = kernel("depthwise", name[self._operation], **self.macros(config))
        block = (config.lanes, config.rows)
        large = problem.x if self._operation == "data" else problem.y
        pixels = large[0] * math.prod(large[2:])
        own = config.vector * config.lanes * 4
        if self._operation == "filter":
            return self._filter(config, call, pixels, function, block, own)
        grid = self._grid(config, pixels, 1)
        w = low_precision_weights(call, call.needed("w"))
        if forward:
            x, y = (channels_last_blob(call, call.needed(each)) for each in "xy")
            slope = call.settings.get("relu")
            relu = np.float32(1.0 if slope is None else slope)
            arguments = [x, w, call["b"], y, np.int64(pixels), relu]
        else:
            dy, dx = (channels_last_blob(call, call.needed(each)) for each in ("dy", "dx"))
            arguments = [dy, w, mask_of(call), dx, np.int64(pixels)]
        return launch(function, grid, arguments, block=block, shared=own * taps)

    def _filter(
        self,
        config: Config,
        call: CudaCall,
        pixels: int,
        function: Any,
        block: tuple[int, int],
        own: int,
    ) -> Step:
        x, dy = (channels_last_blob(call, call.needed(each)) for each in ("x", "dy"))
        dw = call.needed("dw")
        grid = self._grid(config, pixels, LEAST_PIXELS)
        partial = call.temporary((grid[0], dw.count))
        arguments = [x, dy, partial, np.int64(pixels)]
        steps = [
            launch(function, grid, arguments, block=block, shared=own * config.rows),
            sum_parts(partial, dw, accumulate="dw" in call.accumulates),
        ]
        if call["db"] is not None:
            steps.append(bias_gradient(call))
        return sequence(steps)
