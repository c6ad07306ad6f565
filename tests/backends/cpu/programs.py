"""The running of small programs on oneDNN and, to compare, on NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cpu.onednn import Analysis
from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Step, Tensor
from tests.backends.running import place

ONEDNN = Cpu()
DNN = ONEDNN.onednn
NEEDS_ONEDNN = pytest.mark.skipif(DNN is None, reason="no oneDNN library here")
_generator = np.random.default_rng(1)


class Given(Tensor):
    """A tensor that holds random (or the given) values when the program runs."""

    def __init__(self, shape: tuple[int, ...], values: np.ndarray | None = None, **how: Any):
        super().__init__(shape, **how)
        self.given = _generator.standard_normal(shape) if values is None else values


def prepare(program: Program) -> list[Step | None]:
    """oneDNN's steps, as of a net with a backward pass; None where it leaves a call to NumPy."""
    net = Analysis(only_forward=False)
    return [DNN.prepare(call, net) for call in program.calls]


def check(record: Callable[[Program], list[Tensor]]) -> list[Tensor]:
    """Fail where oneDNN computes something else than NumPy does in float64, or leaves a call to
    NumPy, on memory full of NaN. Returns oneDNN's.

    record: records the calls; it is called twice, and gives the tensors to compare.
    """
    results = []
    state = _generator.bit_generator.state
    for backend in ONEDNN, Cpu("float64"):
        _generator.bit_generator.state = state  # the same values again
        program = Program()
        tensors = record(program)
        steps = prepare(program) if backend is ONEDNN else backend.prepare(program.calls)
        for call in program.calls:
            for tensor in [*call.read_tensors(), *call.written_tensors(), *call.scratch]:
                if tensor.array is None:
                    place(backend, tensor)
                    if isinstance(tensor, Given):
                        backend.write(tensor, tensor.given)
        for step in steps:
            step()
        results.append((tensors, [backend.read(tensor) for tensor in tensors]))
    (tensors, found), (_, wanted) = results
    for mine, right in zip(found, wanted, strict=True):
        scale = np.abs(right).max()
        np.testing.assert_allclose(mine / scale, right / scale, atol=3e-6, rtol=0)
    return tensors


def blocked(program: Program, shape: tuple[int, ...]) -> Tensor:
    """A tensor that a convolution with 1x1 kernels has written in the layout that it likes."""
    channels, ones = shape[1], (1,) * len(shape[2:])
    w = Given((channels, channels, *ones), np.eye(channels).reshape(channels, channels, *ones))
    y = Tensor(shape, flexible=True)
    program.convolution(
        Given(shape), w, None, y, stride=ones, pad=(0,) * len(ones), dilation=ones, group=1
    )
    return y
