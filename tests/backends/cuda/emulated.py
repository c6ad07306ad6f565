"""A stand-in for a GPU that computes whole nets: its own kernels run as C++, all threads in
lockstep (executed.py), what libraries compute is NumPy's."""

from __future__ import annotations

import ctypes
import math
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.autotune.trial import Trial
from osucaffe.backends.cuda.convolution.cudnn_graph import UIDS, Convolution, Operand
from osucaffe.backends.cuda.layout import from_bfloat16, to_bfloat16
from osucaffe.backends.cuda.libraries.cublaslt import Product

from .compiler import nvrtc
from .devices import DEVICES
from .executed import execute
from .simulated import FakeCudnn, FakeProducts, simulate, with_libraries

HIDES_NAN = Trial.hides_nan
needs_compilers = pytest.mark.skipif(
    nvrtc() is None or shutil.which("g++") is None, reason="NVRTC or g++ is not installed"
)


def emulate(monkeypatch: pytest.MonkeyPatch, precision: str) -> Any:
    """A backend whose nets compute: they must not outlive what is patched. precision: fp32, bf16 or
    tf32 (in which nothing is rounded); of an A100, as there are no instructions of later ones."""
    simulate(monkeypatch, DEVICES["A100"])
    execute(monkeypatch)
    monkeypatch.setattr(Trial, "hides_nan", HIDES_NAN)
    backend = Cuda(precision=precision, graphs=False)
    return with_libraries(backend, ComputingCudnn(), ComputingProducts())


def _stored(address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """What lies there, row by row: bfloat16 as its bits."""
    kind = {"float32": ctypes.c_float, "bfloat16": ctypes.c_uint16}[dtype]
    return np.ctypeslib.as_array((kind * math.prod(shape)).from_address(address)).reshape(shape)


def _maps(address: int, operand: Operand) -> np.ndarray:
    """(N, C, *extents), which lies with the channels last."""
    count, channels, *extents = operand.shape
    stored = _stored(address, (count, *extents, channels), operand.dtype)
    return np.moveaxis(stored, -1, 1)


def _values(stored: np.ndarray) -> np.ndarray:
    values = from_bfloat16(stored) if stored.dtype == np.uint16 else stored
    return values.astype(np.float64)


def _store(stored: np.ndarray, values: np.ndarray) -> None:
    rounded = values.astype(np.float32)
    stored[:] = to_bfloat16(rounded) if stored.dtype == np.uint16 else rounded


class ComputingCudnn(FakeCudnn):
    """Stands for cuDNN: its plans compute."""

    def _plan(self, convolution: Convolution) -> Any:
        operands = convolution.operands
        *_, written = operands

        def bind(addresses: dict[int, int], workspace: int) -> dict[str, np.ndarray]:
            return {name: _maps(addresses[UIDS[name]], each) for name, each in operands.items()}

        def run(handle: Any, bound: dict[str, np.ndarray]) -> None:
            values = {name: _values(stored) for name, stored in bound.items()}
            _store(bound[written], computed(convolution, **values))

        return SimpleNamespace(workspace=64, bind=bind, execute=run)


def computed(
    asked: Convolution, x: np.ndarray, w: np.ndarray, y: np.ndarray, b: np.ndarray | float = 0.0
) -> np.ndarray:  # fmt: skip
    """What is asked of cuDNN, one tap of the filters after another. Of what is to be written, the
    shape counts alone."""
    group, inside = x.shape[1] // w.shape[1], [slice(None)] * 3
    padded = np.pad(x, [(0, 0), (0, 0), *((each, each) for each in asked.pad)])
    images, maps = (each.reshape(len(x), group, -1, *each.shape[2:]) for each in (padded, y))
    filters = w.reshape(group, -1, *w.shape[1:])
    result = np.zeros_like({"forward": maps, "data": images, "filter": filters}[asked.operation])
    for tap in np.ndindex(*w.shape[2:]):
        window = [
            slice(t * d, t * d + (extent - 1) * s + 1, s)
            for t, d, s, extent in zip(tap, asked.dilation, asked.stride, y.shape[2:], strict=True)
        ]
        seen, at = (*inside, *window), (*inside, *tap)
        if asked.operation == "forward":
            result += np.einsum("goc,ngc...->ngo...", filters[at], images[seen])
        elif asked.operation == "data":
            result[seen] += np.einsum("goc,ngo...->ngc...", filters[at], maps)
        else:
            pixels = [each.reshape(*each.shape[:3], -1) for each in (maps, images[seen])]
            result[at] += np.einsum("ngop,ngcp->goc", *pixels)
    if asked.operation == "filter":
        return result.reshape(w.shape)
    if asked.operation == "forward":
        result = result.reshape(y.shape) + b
        return np.maximum(result, 0) if asked.relu else result
    real = [slice(pad, pad + extent) for pad, extent in zip(asked.pad, x.shape[2:], strict=True)]
    return result.reshape(padded.shape)[(..., *real)]


class ComputingProducts(FakeProducts):
    """Stands for cuBLASLt: its algorithms compute. relu: what its ReLU does with 0 and a number."""

    relu: Any = np.maximum

    def algorithm(self, product: Product, name: str) -> Any:
        m, n, k = product.m, product.n, product.k

        def matrix(address: int, rows: int, columns: int, *, turned: bool) -> np.ndarray:
            shape = (columns, rows) if turned else (rows, columns)
            values = _values(_stored(address, shape, product.a))
            return values.T if turned else values

        def execute(a: int, b: int, c: int, bias: int, workspace: int, stream: int) -> None:
            left = matrix(a, m, k, turned=product.transpose_a)
            result = left @ matrix(b, k, n, turned=product.transpose_b)
            target = _stored(c, (m, n), product.c)
            if product.has_bias:
                result += _values(_stored(bias, (n,), product.c))
            if product.epilogue.endswith("relu"):
                result = self.relu(result, 0)
            _store(target, result + _values(target) if product.accumulate else result)

        return SimpleNamespace(workspace=0, execute=execute)
