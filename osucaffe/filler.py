"""The fillers: how a parameter gets its first values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from .backends.tensor import Shape
from .errors import UserError

if TYPE_CHECKING:
    from .proto import caffe_pb2

BLOCK = 1 << 20
"""How many numbers are drawn in turn; others at the same time, on other cores."""
_VARIANCE = {0: "fan_in", 1: "fan_out", 2: "average"}


class Draws:
    """Random numbers that depend on the seed and on what was drawn before, and not on the number of
    cores: each block of them has a stream of its own."""

    def __init__(self, *seed: int) -> None:
        self._seeds = np.random.SeedSequence(seed)

    def uniform(self, low: float, high: float, shape: Shape) -> np.ndarray:
        """float32 numbers between two."""

        def draw(generator: np.random.Generator, block: np.ndarray) -> None:
            generator.random(out=block, dtype=np.float32)
            block *= high - low
            block += low

        return self._draw(draw, shape)

    def normal(self, mean: float, std: float, shape: Shape) -> np.ndarray:
        """float32 numbers of a normal distribution."""

        def draw(generator: np.random.Generator, block: np.ndarray) -> None:
            generator.standard_normal(out=block, dtype=np.float32)
            block *= std
            block += mean

        return self._draw(draw, shape)

    def _draw(
        self, draw: Callable[[np.random.Generator, np.ndarray], None], shape: Sequence[int]
    ) -> np.ndarray:
        values = np.empty(shape, np.float32)
        flat = values.reshape(-1)
        blocks = [flat[begin : begin + BLOCK] for begin in range(0, flat.size, BLOCK)]
        streams = [np.random.default_rng(seed) for seed in self._seeds.spawn(len(blocks))]
        if len(blocks) > 1:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                list(pool.map(draw, streams, blocks))
        else:
            list(map(draw, streams, blocks))
        return values


def fill(
    filler: caffe_pb2.FillerParameter | None, shape: Shape, draws: Draws, where: str = ""
) -> np.ndarray:
    """float32 values of `shape`. None fills with zeros.

    where: names the layer in the UserError that a bad filler raises.
    """
    if filler is None:
        return np.zeros(shape, np.float32)
    kind = filler.type
    if kind not in _FILLERS:
        raise UserError(f'{where}: unknown filler "{kind}"; known: {", ".join(_FILLERS)}')
    return _FILLERS[kind](filler, shape, draws, where).astype(np.float32, copy=False)


def _constant(filler, shape, draws, where):  # type: ignore[no-untyped-def]
    return np.full(shape, filler.value, np.float32)


def _uniform(filler, shape, draws, where):  # type: ignore[no-untyped-def]
    if filler.min > filler.max:
        raise UserError(f"{where}: the uniform filler's min {filler.min:g} > max {filler.max:g}")
    return draws.uniform(filler.min, filler.max, shape)


def _gaussian(filler, shape, draws, where):  # type: ignore[no-untyped-def]
    """Normal(mean, std). sparse: about that many inputs of each output are not zero."""
    if filler.std < 0:
        raise UserError(f"{where}: the gaussian filler's std {filler.std:g} is negative")
    values = draws.normal(filler.mean, filler.std, shape)
    if filler.sparse >= 0:
        values *= draws.uniform(0, 1, shape) < filler.sparse / _outputs(shape, "sparse", where)
    return values


def _outputs(shape: Shape, what: str, where: str) -> int:
    """How many outputs the values are of."""
    if not shape:
        raise UserError(f"{where}: the {what} filler needs a blob with axes, not a single number")
    return shape[0]


def _fan(filler, shape: Shape) -> float:  # type: ignore[no-untyped-def]
    """The n of Xavier and MSRA: inputs or outputs of a unit, or their mean."""
    count = math.prod(shape)
    fan_in = count / shape[0] if shape else 1
    fan_out = count / shape[1] if len(shape) > 1 else count
    norm = _VARIANCE[filler.variance_norm]
    return {"fan_in": fan_in, "fan_out": fan_out, "average": (fan_in + fan_out) / 2}[norm]


def _xavier(filler, shape, draws, where):  # type: ignore[no-untyped-def]
    """Uniform with variance 1 / n (Glorot & Bengio 2010)."""
    limit = math.sqrt(3.0 / _fan(filler, shape))
    return draws.uniform(-limit, limit, shape)


def _msra(filler, shape, draws, where):  # type: ignore[no-untyped-def]
    """Normal with variance 2 / n (He et al. 2015)."""
    return draws.normal(0, math.sqrt(2.0 / _fan(filler, shape)), shape)


def _positive_unitball(filler, shape, draws, where):  # type: ignore[no-untyped-def]
    """Uniform in 0..1, then the values of each first index divided by their sum."""
    values = draws.uniform(0, 1, shape)
    sums = values.reshape(_outputs(shape, "positive_unitball", where), -1).sum(axis=1)
    values /= sums.reshape((-1,) + (1,) * (len(shape) - 1))
    return values


def _gaussian_unitball(filler, shape, draws, where):  # type: ignore[no-untyped-def]
    """NormFace: normal, then the values of each first index scaled to length 1."""
    values = draws.normal(0, 1, shape)
    rows = values.reshape(_outputs(shape, "gaussian_unitball", where), -1)
    rows /= np.sqrt((rows * rows).sum(axis=1, keepdims=True) + 1e-12)
    return values


def _bilinear(filler, shape, draws, where):  # type: ignore[no-untyped-def]
    """The kernel of bilinear upsampling, for Deconvolution."""
    if len(shape) != 4 or shape[2] != shape[3]:
        raise UserError(f"{where}: the bilinear filler needs a square 4-d blob, not {shape}")
    factor = math.ceil(shape[3] / 2)
    centre = (2 * factor - 1 - factor % 2) / (2.0 * factor)
    line = 1 - np.abs(np.arange(shape[3]) / factor - centre)
    return np.broadcast_to(np.outer(line, line), shape).astype(np.float32)


_FILLERS: dict[str, Callable[..., np.ndarray]] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "xavier": _xavier,
    "msra": _msra,
    "positive_unitball": _positive_unitball,
    "gaussian_unitball": _gaussian_unitball,
    "bilinear": _bilinear,
}
