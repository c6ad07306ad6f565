"""The rates of a device: of a large matrix product and of a large copy, measured by us."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...backends.backend import Backend
from ...backends.primitives import Program
from ...backends.primitives.products import InnerProduct
from ...backends.tensor import Tensor

MATRIX = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices, by backend."""
COPIED = {"cpu": 1 << 24, "cuda": 1 << 27}
"""float32 elements that are copied: more than caches hold."""
SECONDS = 0.4
"""How long each rate is measured at most, once it has been run."""


@dataclass(frozen=True)
class Rates:
    """flops: operations per second of a matrix product. nbytes: bytes per second of a copy, those
    read and those written."""

    flops: float
    nbytes: float

    def __str__(self) -> str:
        return (
            f"{self.flops / 1e12:.3g} TFLOP/s (matrix product), {self.nbytes / 1e9:.4g} GB/s (copy)"
        )


def measure_rates(backend: Backend) -> Rates:
    """Measure both, each by its best run, in the precision of the backend."""
    n, count = MATRIX[backend.name], COPIED[backend.name]
    x, w, y = (
        Tensor((n, n), name=name, flexible=name != "w", persistent=name == "w") for name in "xwy"
    )
    product = Program()
    product.inner_product(x, w, None, y, axis=1, transpose=False)
    source, target = Tensor((count,), name="source"), Tensor((count,), name="target")
    copy = Program()
    copy.copy(source, target)
    seconds = [_seconds(backend, program) for program in (product, copy)]
    return Rates(2 * n**3 / seconds[0], 2 * backend.nbytes(source) / seconds[1])


def _seconds(backend: Backend, program: Program) -> float:
    """The best time of the program's only call."""
    (call,) = program.calls
    step: Callable[[], None]
    [step] = backend.prepare([call])
    for tensor in (*call.read_tensors(), *call.written_tensors(), *call.scratch):
        backend.allocate_for(tensor)
    generator = np.random.default_rng(0)
    for tensor in call.read_tensors() if isinstance(call, InnerProduct) else ():
        # Of zeros alone a GPU multiplies faster: it needs less power.
        backend.write(tensor, generator.standard_normal(tensor.shape[-1], np.float32))
    step()
    timer = backend.timer()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        timer.begin()
        step()
        timer.mark()
        first, last = timer.read()
        best = min(best, last - first)
    return best
