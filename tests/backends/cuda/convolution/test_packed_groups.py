"""Convolution in packed groups: its kernels run on the CPU; when cuDNN is asked for it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.autotune import timing
from osucaffe.backends.cuda.autotune.tuner import Tuner
from osucaffe.backends.cuda.call import Pending
from osucaffe.backends.cuda.convolution import packed_groups, providers
from osucaffe.backends.cuda.convolution.cudnn_graph import UIDS, Convolution, Operand
from osucaffe.backends.cuda.convolution.cudnn_search import Found
from osucaffe.backends.cuda.layout import channels_last
from osucaffe.backends.cuda.runtime import compile

from ...running import Output, run_call
from ..simulated import FakeCudnn, done, force, simulate, with_libraries
from .layers import PACKED, Layer, run

NARROW = Layer((3, 6, 5, 7), (4, 3, 4, 2), (1, 1), (2, 1), 2, (1, 2))
SETTINGS = ("stride", "pad", "dilation")
PRIMITIVES = {
    "forward": ("convolution", "x", "w", "y"),
    "data": ("convolution_backward_data", "dx", "w", "dy"),
    "filter": ("convolution_backward_filter", "x", "dw", "dy"),
}
"""The primitive for an operation, and what it calls cuDNN's x, w and y."""


STAND_INS = """
#include <cstdint>
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __syncthreads()
#define PDL_BEGIN
static struct { int x, y, z; } blockIdx, threadIdx, blockDim{1, 1, 1}, gridDim{1, 1, 1};
inline float to_float(float x) { return x; }
template <typename T> T from_float(float x) { return x; }
"""
"""A GPU with one thread."""
ARGUMENTS = {np.int32: ctypes.c_int32, np.int64: ctypes.c_int64, np.float32: ctypes.c_float}


def compiled_for_host(folder: Path) -> Callable[..., Any]:
    """What stands for compile._module, of texts: kernels without meetings of threads run here."""

    @functools.cache
    def module(text: str, device: int) -> Any:
        common = compile.read("common.cuh")
        _, loop, rest = common.partition("#define FOR_EACH")
        loop += rest.partition("template <typename N> __device__ __forceinline__ N warp_sum")[0]
        name = folder / hashlib.sha256(text.encode()).hexdigest()
        source, library = name.with_suffix(".cpp"), name.with_suffix(".so")
        source.write_text(STAND_INS + loop + text.removeprefix(common))
        flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fsanitize=alignment",
                 "-fsanitize-undefined-trap-on-error"]  # fmt: skip
        subprocess.run(["g++", *flags, "-o", library, source], check=True)
        functions = ctypes.CDLL(str(library))

        def get_function(name: str) -> Callable[..., None]:
            def launch(grid: Any, block: Any, values: Any, shared_mem: int) -> None:
                types = [ARGUMENTS.get(type(value), ctypes.c_void_p) for value in values]
                pairs = zip(types, values, strict=True)
                functions[name](*(kind(getattr(v, "item", lambda v=v: v)()) for kind, v in pairs))

            return launch

        return SimpleNamespace(get_function=get_function)

    return module


def _array(address: int, operand: Operand) -> np.ndarray:
    """The values of an operand in the memory at an address."""
    memory = (ctypes.c_float * (operand.nbytes // 4)).from_address(address)
    steps = [4 * step for step in operand.strides]
    return np.lib.stride_tricks.as_strided(np.ctypeslib.as_array(memory), operand.shape, steps)


class NumPyPlans(FakeCudnn):
    """Stands for cuDNN: computes on the CPU what a plan would, on one group at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.executed = 0

    def search(self, convolution: Any) -> Any:
        alone = all(
            each.strides == channels_last(each.shape) for each in (convolution.x, convolution.y)
        )
        fits = alone and convolution.x.shape[1] == convolution.w.shape[1]
        return done([Found("eng0", self._plan(convolution), False)] if fits else [])

    def _plan(self, convolution: Any) -> Any:
        names = {uid: name for name, uid in UIDS.items()}

        def bind(addresses: dict[int, int], workspace: int) -> dict[str, int]:
            return {names[uid]: address for uid, address in addresses.items()}

        def execute(handle: Any, bound: dict[str, int]) -> None:
            self.execute(convolution, bound)

        return SimpleNamespace(workspace=64, bind=bind, execute=execute)

    def execute(self, found: Convolution, addresses: dict[str, int]) -> None:
        self.executed += 1
        assert set(addresses) == set(found.operands)
        arrays = {n: _array(addresses[n], operand) for n, operand in found.operands.items()}
        name, *names = PRIMITIVES[found.operation]
        window = {each: [*getattr(found, each)] for each in SETTINGS}
        tensors: dict[str, Any] = {
            theirs: np.array(arrays[mine], np.float64)
            for mine, theirs in zip("xwy", names, strict=True)
        }
        *_, written = found.operands
        target = names["xwy".index(written)]
        tensors[target] = Output(arrays[written].shape)
        if found.operation == "forward":
            tensors["b"] = np.array(arrays["b"].ravel(), np.float64) if found.bias else None
            window |= {"relu": found.relu} if found.relu is not None else {}
        elif found.operation == "filter":
            tensors["db"] = None
        result = run_call(Cpu(), name, tensors, {**window, "group": 1})[target]
        mask = arrays.get("mask")
        arrays[written][...] = result if mask is None else np.where(mask > 0, result, 0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("layer", [*PACKED.values(), NARROW], ids=str)
def test_groups_on_the_cpu(layer: Layer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    monkeypatch.setattr(compile, "_compiled_file", lambda text, options: text)
    monkeypatch.setattr(compile, "_module", compiled_for_host(tmp_path))
    monkeypatch.setattr(packed_groups, "MOST_COPYING", math.inf)
    monkeypatch.setattr(providers, "WORTH_FUSING", 0)
    plans = NumPyPlans()
    for slope in 0.0, 0.5:
        force(monkeypatch, "cudnn on packed groups", 0)
        backend = with_libraries(Cuda(precision="fp32"), plans)
        found = run(backend, layer, relu=slope, integers=True)
        for name, wanted in run(Cpu(), layer, relu=slope, integers=True).items():
            np.testing.assert_array_equal(found[name], wanted)
    assert plans.executed == 2 * 2 * 6 * layer.group


@pytest.mark.parametrize(("taken", "searched"), [(1e-3, 0), (1.0, 3)])
def test_what_is_searched_for(taken: float, searched: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing where copies alone take about as long as the fastest other way."""
    simulate(monkeypatch)
    for name in "once", "time_of":
        monkeypatch.setattr(timing, name, lambda *_: taken)
    cudnn = FakeCudnn()
    backend = with_libraries(Cuda(precision="fp32"), cudnn)
    monkeypatch.setattr(Tuner, "begin", lambda tuner, *given: Pending(tuner.fastest, *given))
    run(backend, PACKED["2 groups"])
    packed = [
        found
        for found in cudnn.asked
        if found.x.strides == channels_last(found.x.shape) and found.x.shape[1] == found.w.shape[1]
    ]
    assert len({*packed}) == searched  # of outputs and of both gradients
