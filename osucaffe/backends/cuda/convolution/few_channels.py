"""The convolution of images with few channels by small filters, such as a net's first.

The output takes the time: it is many times as large as the image. The kernel, in
kernels/convolution/few_channels.cu, writes it once: VGG-16's first layer on 64 images takes 0.145
ms in bf16 and 0.235 ms in tf32 on an H200, where memory takes 0.111 and 0.212, and cuDNN 0.458 and
0.786.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from ...tensor import Run
from .. import tuned
from ..call import Context, Kernels, Provider
from ..layout import C_TYPES, ITEM_BYTES, dtype_of, strides
from ..runtime import device
from ..runtime.compile import kernel
from ..runtime.launch import launch
from .operands import Operands
from .problem import Problem
from .tensor_cores import can_use_mma, mma_macros

MAX_CHANNELS = 4
MAX_STEPS = 7
"""Of a product: its filters lie in registers."""
ROWS = 8


class Config(NamedTuple):
    """How work is divided. own: outputs of a block; columns: of a tile of the output."""

    block_k: int
    columns: int


def _pair(dtype: str) -> int:
    """Elements in a word."""
    return 4 // ITEM_BYTES[dtype]


def _steps(problem: Problem, dtype: str) -> int:
    """Instructions that sum over all of a filter."""
    return -(-math.prod(problem.kernel) * MAX_CHANNELS // _pair(dtype) // 8)


def _least_own(dtype: str) -> int:
    """Outputs of which four lanes store 16 bytes each."""
    return 64 // ITEM_BYTES[dtype]


def is_worth_trying(gpu: device.Device, precision: str, dtype: str, problem: Problem) -> bool:
    """Whether the kernel computes this, and is worth trying."""
    *_, dilation = problem.window
    return (
        len(problem.x) == 4 and problem.x[1] <= MAX_CHANNELS and problem.group == 1
        and {*dilation} == {1} and can_use_mma(gpu, precision)
        and problem.y[1] % _least_own(dtype) == 0 and problem.work >= tuned.FEW_CHANNELS_MIN_WORK
        and _steps(problem, dtype) <= MAX_STEPS
    )  # fmt: skip


def few_channels(ctx: Context, problem: Problem) -> list[Provider]:
    """The kernel of few_channels.cu, for the outputs of a call, where it is worth trying."""
    gpu, precision, dtype = ctx.backend.properties, ctx.backend.precision, ctx.backend.dtype
    if not is_worth_trying(gpu, precision, dtype, problem):
        return []
    make = functools.partial(_step, problem, dtype)
    return [Kernels("few_channels", functools.partial(configs, problem, dtype), make)]


def configs(problem: Problem, dtype: str) -> list[Config]:
    """What is tried."""
    owns = dict.fromkeys((math.gcd(problem.y[1], 64), _least_own(dtype)))
    return [Config(own, columns) for own in owns for columns in (32, 16)]


def macros(problem: Problem, dtype: str, config: Config, source: str) -> dict[str, Any]:
    """What the kernel's text is compiled for, where images are of this type."""
    return problem.macros | mma_macros(dtype, _pair(dtype)) | {
        "S": C_TYPES[source], "T": C_TYPES[dtype], "BLOCK_K": config.block_k, "ROWS": ROWS,
        "COLUMNS": config.columns, "BLOCKS": _blocks(problem, dtype, config),
    }  # fmt: skip


def _blocks(problem: Problem, dtype: str, config: Config) -> int:
    """Of a multiprocessor: as registers allow."""
    registers = _steps(problem, dtype) * config.block_k // 4 + config.block_k // 2 + 48
    return max(1, min(4, device.current().registers_per_sm // (ROWS * 32 * registers)))


def _step(problem: Problem, dtype: str, config: Config, ctx: Context) -> Run:
    x, w, b, _, _, y, slope = Operands.of(ctx, x_as_stored=True)
    function = kernel("few_channels", "few_channels", **macros(problem, dtype, config, dtype_of(x)))
    images, outputs, height, width = y.shape
    tiles = images * -(-height // ROWS) * -(-width // config.columns)
    most = device.current().sm_count * _blocks(problem, dtype, config)
    arguments = [x, w, b, y, tiles, *strides(x), slope]
    grid = min(tiles, most), outputs // config.block_k
    return launch(function, grid, arguments, block=ROWS * 32)
