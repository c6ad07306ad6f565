"""Owns the running of small programs on oneDNN alone, on memory full of NaN."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu, onednn
from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Tensor

DNN = onednn.load()
NEEDS_ONEDNN = pytest.mark.skipif(DNN is None, reason="no oneDNN library here")


def place(tensor: Tensor) -> None:
    """Aligned memory full of NaN, as if another tensor had left it there."""
    if tensor.address:
        return
    itemsize = np.dtype(tensor.dtype).itemsize
    raw = np.full(tensor.size * itemsize + 64, 0xFF, "uint8")
    start = -raw.ctypes.data % 64
    flat = raw[start : start + tensor.size * itemsize].view(tensor.dtype)
    tensor.place(flat, flat.ctypes.data)


def run(program: Program) -> None:
    """Prepare all calls, then place the tensors, then run the steps."""
    steps = [DNN.prepare(None, call) for call in program.calls]
    assert None not in steps
    for call in program.calls:
        for tensor in [*call.read_tensors(), *call.written_tensors(), *call.scratch]:
            before = tensor.address
            place(tensor)
            if not before and isinstance(tensor, Given):
                store(tensor, tensor.given)
    for step in steps:
        step()


def check(record: Callable[[Program], list[Tensor]]) -> list[Tensor]:
    """Fail where oneDNN computes something else than NumPy does in float64. Returns oneDNN's.

    record: records the calls; it is called twice, and gives the tensors to compare.
    """
    draw.cache_clear()
    program = Program()
    found = record(program)
    run(program)
    draw.cache_clear()
    program, backend = Program(), Cpu("float64")
    wanted = record(program)
    steps = backend.prepare(program.calls)
    for call in program.calls:
        for tensor in [*call.read_tensors(), *call.written_tensors(), *call.scratch]:
            if not tensor.address:
                backend.give_memory(tensor)[:] = 0xFF
                if isinstance(tensor, Given):
                    backend.write(tensor, tensor.given)
    for each in steps:
        each()
    for mine, right in zip(found, wanted, strict=True):
        close(mine, backend.read(right))
    return found


@functools.cache
def draw() -> np.random.Generator:
    """What values come from; after `cache_clear`, the same ones again."""
    return np.random.default_rng(1)


class Given(Tensor):
    """A tensor that holds random (or the given) values when the program runs."""

    def __init__(self, shape: tuple[int, ...], values: np.ndarray | None = None, **how: Any):
        super().__init__(shape, **how)
        self.given = draw().standard_normal(shape) if values is None else values


def store(tensor: Tensor, values: np.ndarray) -> None:
    source = Tensor(tensor.shape)
    place(source)
    source.array[...] = values
    step(source, tensor)


def load(tensor: Tensor) -> np.ndarray:
    target = Tensor(tensor.shape)
    place(target)
    step(tensor, target)
    return target.array


def step(source: Tensor, target: Tensor) -> None:
    DNN.reorder(None, source, target)()


def blocked(program: Program, shape: tuple[int, ...]) -> Tensor:
    """A tensor that a convolution with 1x1 kernels has written in the layout that it likes."""
    x = Given(shape)
    channels = shape[1]
    eye = np.eye(channels).reshape(channels, channels, *(1 for _ in shape[2:]))
    w = Given(eye.shape, eye)
    y = Tensor(shape, flexible=True)
    ones = (1,) * len(shape[2:])
    program.convolution(x, w, None, y, stride=ones, pad=(0,) * len(ones), dilation=ones, group=1)
    y.given = x.given  # type: ignore[attr-defined]
    return y


def close(tensor: Tensor, expected: np.ndarray) -> None:
    scale = np.abs(expected).max()
    np.testing.assert_allclose(load(tensor) / scale, expected / scale, atol=3e-6, rtol=0)
