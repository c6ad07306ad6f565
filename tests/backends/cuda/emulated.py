"""Owns a stand-in for a GPU that computes whole nets in float32: its own kernels run as C++, all
threads in lockstep (executed.py), what libraries compute is NumPy's."""

from __future__ import annotations

import ctypes
import math
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.convolution.cudnn_graph import UIDS, Convolution
from osucaffe.backends.cuda.libraries.cublaslt import Product

from .compiler import nvrtc
from .devices import DEVICES
from .executed import execute
from .simulated import FakeCudnn, FakeProducts, simulate, with_libraries

needs_compilers = pytest.mark.skipif(
    nvrtc() is None or shutil.which("g++") is None, reason="NVRTC or g++ is not installed"
)


def emulate(monkeypatch: pytest.MonkeyPatch, precision: str) -> Any:
    """A backend whose nets compute: they must not outlive what is patched. precision: in tf32, an
    A100's tensor cores multiply without rounding."""
    simulate(monkeypatch, DEVICES["A100"])
    execute(monkeypatch)
    backend = Cuda(precision=precision, graphs=False)
    return with_libraries(backend, ComputingCudnn(), ComputingProducts())


def _matrix(address: int, rows: int, columns: int) -> np.ndarray:
    """That lies there, row by row."""
    array = (ctypes.c_float * (rows * columns)).from_address(address)
    return np.ctypeslib.as_array(array).reshape(rows, columns)


def _maps(address: int, shape: tuple[int, ...]) -> np.ndarray:
    """Of (N, C, *extents), which lies with the channels last."""
    stored = _matrix(address, shape[0], math.prod(shape[1:])).reshape(-1, *shape[2:], shape[1])
    return np.moveaxis(stored, -1, 1)


class ComputingCudnn(FakeCudnn):
    """Stands for cuDNN: its plans compute."""

    def _plan(self, convolution: Convolution) -> Any:
        def bind(addresses: dict[int, int], workspace: int) -> Any:
            return {
                name: _maps(addresses[UIDS[name]], operand.shape)
                for name, operand in convolution.operands.items()
            }

        def run(handle: Any, bound: Any) -> None:
            compute(convolution, **bound)

        return SimpleNamespace(workspace=64, bind=bind, execute=run)


def compute(
    asked: Convolution, x: np.ndarray, w: np.ndarray, y: np.ndarray,
    b: np.ndarray | float = 0.0, mask: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Write what is asked of cuDNN, one tap of the filters after another."""
    group = x.shape[1] // w.shape[1]
    padding = [(0, 0), (0, 0), *((each, each) for each in asked.pad)]
    padded = np.pad(x.astype(np.float64), padding)
    parts = [each.reshape(each.shape[0], group, -1, *each.shape[2:]) for each in (padded, y)]
    filters = w.reshape(group, -1, *w.shape[1:]).astype(np.float64)
    written = {"forward": parts[1], "data": parts[0], "filter": filters}[asked.operation]
    into = np.zeros(written.shape)
    for tap in np.ndindex(*w.shape[2:]):
        window = tuple(
            slice(t * d, t * d + (extent - 1) * s + 1, s)
            for t, d, s, extent in zip(tap, asked.dilation, asked.stride, y.shape[2:], strict=True)
        )
        seen = (slice(None), slice(None), slice(None), *window)
        at = (slice(None), slice(None), slice(None), *tap)
        if asked.operation == "forward":
            into += np.einsum("goc,ngc...->ngo...", filters[at], parts[0][seen])
        elif asked.operation == "data":
            into[seen] += np.einsum("goc,ngo...->ngc...", filters[at], parts[1])
        else:
            flat = [each.reshape(*each.shape[:3], -1) for each in (parts[1], parts[0][seen])]
            into[at] += np.einsum("ngop,ngcp->goc", *flat)
    if asked.operation == "forward":
        y[:] = into.reshape(y.shape) + b
        if asked.relu is not None:
            np.copyto(y, y * asked.relu, where=y < 0)
    elif asked.operation == "filter":
        w[:] = into.reshape(w.shape)
    else:
        inside = tuple(slice(p, p + e) for p, e in zip(asked.pad, x.shape[2:], strict=True))
        x[:] = into.reshape(padded.shape)[(..., *inside)]
        if mask is not None:
            np.copyto(x, x * asked.relu, where=~(mask > 0))


class ComputingProducts(FakeProducts):
    """Stands for cuBLASLt: its algorithms compute."""

    def algorithm(self, product: Product, name: str) -> Any:
        m, n, k = product.m, product.n, product.k

        def execute(a: int, b: int, c: int, bias: int, workspace: int, stream: int) -> None:
            left = _matrix(a, k, m).T if product.transpose_a else _matrix(a, m, k)
            right = _matrix(b, n, k).T if product.transpose_b else _matrix(b, k, n)
            result = left.astype(np.float64) @ right
            if product.has_bias:
                result += _matrix(bias, 1, n)
            if product.epilogue.endswith("relu"):
                result = np.maximum(result, 0)
            target = _matrix(c, m, n)
            target[:] = result + (target if product.accumulate else 0)

        return SimpleNamespace(workspace=0, execute=execute)
