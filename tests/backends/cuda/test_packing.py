"""Convolution in packed groups: its kernels run on the CPU, compile, and are right on a GPU."""

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
from osucaffe.backends.cuda import Cuda, convolution, kernels, packing
from osucaffe.backends.cuda.cudnn_graph import Convolution, Operand
from osucaffe.backends.cuda.layout import channels_last

from ..running import Output, Runner, run_call
from .simulated import simulate
from .test_layers import TOLERANCES, close

Shape = tuple[int, ...]
Layer = tuple[Shape, Shape, Shape, Shape, Shape, int]
"""x, filters, stride, pad, dilation, groups"""

LAYERS: dict[str, Layer] = {
    "2 groups": ((3, 32, 13, 11), (48, 16, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "3 groups": ((5, 24, 7, 9), (36, 8, 5, 5), (1, 1), (2, 2), (1, 1), 3),
    "4 groups": ((1, 48, 11, 5), (32, 12, 5, 3), (2, 1), (2, 1), (1, 1), 4),
}
"""Slices may begin at multiples of 16 bytes here."""
NARROW: Layer = ((3, 6, 5, 7), (4, 3, 4, 2), (1, 1), (2, 1), (1, 2), 2)
SETTINGS = ("stride", "pad", "dilation")
PRIMITIVES = {
    "forward": ("convolution", "x", "w", "y"),
    "data": ("convolution_backward_data", "dx", "w", "dy"),
    "filter": ("convolution_backward_filter", "x", "dw", "dy"),
}
"""The primitive for an operation, and what it calls cuDNN's x, w and y."""


def extents(layer: Layer) -> Shape:
    """Shape of the output."""
    x, w, stride, pad, dilation, _ = layer
    return x[0], w[0], *(
        (x[2 + i] + 2 * pad[i] - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    )  # fmt: skip


def run(make: Callable[[], Any], layer: Layer, slope: float = 0.0) -> list[np.ndarray]:
    """Outputs with a bias and a ReLU; plain ones; gradients of the images, masked and not; those
    of the filters, alone and added to others. The values are small whole numbers."""
    images, filters, *window, group = layer
    generator = np.random.default_rng(3)
    shapes = images, extents(layer), filters, filters[:1], images, filters
    x, dy, w, b, positive, before = (
        generator.integers(-3, 4, size=size).astype(np.float64) for size in shapes
    )
    settings = {name: [*value] for name, value in zip(SETTINGS, window, strict=True)}
    settings |= {"group": group}
    backend = make()
    runner = Runner(backend)
    y, bare, dx, masked, dw = (Output(shape) for shape in (shapes[1], shapes[1], *shapes[:1] * 2,
                                                           filters))  # fmt: skip
    runner.record("convolution", {"x": x, "w": w, "b": b, "y": y}, settings | {"relu": slope})
    runner.record("convolution", {"x": x, "w": w, "b": None, "y": bare}, settings)
    runner.record("convolution_backward_data", {"dy": dy, "w": w, "dx": dx}, settings)
    runner.record("convolution_backward_data", {"dy": dy, "w": w, "dx": masked}, settings)
    if isinstance(backend, Cuda):
        runner.calls[-1].reads["positive"] = runner.tensor(positive)
    for each in dw, before:
        tensors = {"x": x, "dy": dy, "dw": each, "db": None}
        runner.record("convolution_backward_filter", tensors, settings)
    runner.calls[-1].accumulates = frozenset(["dw"])
    runner.prepare()()
    found = [runner.read(each) for each in (y, bare, dx, masked, dw, before)]
    if not isinstance(backend, Cuda):
        found[3] = np.where(positive > 0, found[3], 0)
    return found


STAND_INS = """
#include <cstdint>
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __syncthreads()
#define await_previous()
#define launch_next()
static struct { int x, y, z; } blockIdx, threadIdx, blockDim{1, 1, 1}, gridDim{1, 1, 1};
inline float to_float(float x) { return x; }
template <typename T> T from_float(float x) { return x; }
"""
"""A GPU with one thread."""
ARGUMENTS = {np.int32: ctypes.c_int32, np.int64: ctypes.c_int64, np.float32: ctypes.c_float}


def compiled_for_host(folder: Path) -> Callable[..., Any]:
    """What stands for kernels._module, of texts: kernels without meetings of threads run here."""

    @functools.cache
    def module(text: str, device: int) -> Any:
        common = kernels.read("common.cuh")
        _, loop, rest = common.partition("#define FOR_EACH")
        loop += rest.partition("__device__ __forceinline__ float warp_sum")[0]
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


class NumPyPlans:
    """Stands for cuDNN: computes on the CPU what a plan would, on one group at a time.

    alone: whether it takes none but tensors whose channels lie alone, or slices alone.
    """

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone
        self.executed = 0

    def plan(self, found: Convolution) -> Any:
        alone = all(each.strides == channels_last(each.shape) for each in (found.x, found.y))
        if found.x.shape[1] != found.w.shape[1] or alone != self.alone:
            return None
        execute = functools.partial(self.execute, found)
        return (lambda: SimpleNamespace(workspace=64, execute=execute)), 1.0

    def execute(self, found: Convolution, addresses: dict[str, int], workspace: int) -> None:
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
@pytest.mark.parametrize(
    ("layer", "alone"),
    [*((layer, alone) for layer in LAYERS.values() for alone in (True, False)), (NARROW, True)],
)
def test_groups_on_the_cpu(
    layer: Layer, alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch)
    monkeypatch.setattr(kernels, "_compiled_file", lambda text, options: text)
    monkeypatch.setattr(kernels, "_module", compiled_for_host(tmp_path))
    monkeypatch.setattr(packing, "MOST_COPYING", math.inf)
    monkeypatch.setattr(convolution, "WORTH_FUSING", 0)
    plans = NumPyPlans(alone=alone)

    def make() -> Cuda:
        backend = Cuda(precision="fp32")
        backend.cudnn = plans  # type: ignore[assignment]
        return backend

    for slope in 0.0, 0.5:
        wanted = run(Cpu, layer, slope)
        for mine, right in zip(run(make, layer, slope), wanted, strict=True):
            np.testing.assert_array_equal(mine, right)
    assert plans.executed == 2 * 6 * layer[-1]


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("layer", [*LAYERS.values(), NARROW], ids=str)
def test_kernels_compile(layer: Layer, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    force(monkeypatch)

    def make() -> Cuda:
        backend = Cuda(precision=precision)
        plan = SimpleNamespace(workspace=64, execute=lambda addresses, workspace: None)
        backend.cudnn = SimpleNamespace(plan=lambda _: ((lambda: plan), 1.0))  # type: ignore[assignment]
        return backend

    run(make, layer)


@pytest.mark.parametrize(("taken", "searched"), [(1e-3, 0), (1.0, 6)])
def test_what_is_searched_for(taken: float, searched: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing where copies alone take about as long as the fastest other way."""
    simulate(monkeypatch)
    backend = Cuda(precision="fp32")
    packed: list[Convolution] = []

    def plan(found: Convolution) -> Any:
        alone = found.x.strides == channels_last(found.x.shape)
        if alone and found.x.shape[1] == found.w.shape[1]:
            packed.append(found)
        return (lambda: SimpleNamespace(workspace=0, execute=lambda *_: None)), taken

    backend.cudnn = SimpleNamespace(plan=plan)  # type: ignore[assignment]
    run(lambda: backend, LAYERS["2 groups"])
    assert len(packed) == searched


def force(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no other way."""
    monkeypatch.setattr(convolution, "library_ways", lambda *_: [])
    monkeypatch.setattr(convolution, "library_ways_with_passes", lambda *_: [])
    monkeypatch.setattr(convolution, "large_gradients", lambda *_: [])
    monkeypatch.setattr(convolution, "small", lambda *_: None)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("layer", LAYERS)
def test_packed_groups(layer: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch)
    wanted = run(Cpu, LAYERS[layer])
    for mine, right in zip(
        run(lambda: Cuda(precision=precision), LAYERS[layer]), wanted, strict=True
    ):
        close(mine, right, TOLERANCES[precision])
