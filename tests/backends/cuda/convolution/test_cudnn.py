"""cuDNN on packed groups and by space to depth: on the CPU, which computes what plans do."""

from __future__ import annotations

import ctypes
import math
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.autotune import timing
from osucaffe.backends.cuda.autotune.tuner import Tuner
from osucaffe.backends.cuda.call import Pending
from osucaffe.backends.cuda.convolution import cudnn, providers
from osucaffe.backends.cuda.convolution.cudnn_graph import UIDS, Convolution, Operand
from osucaffe.backends.cuda.convolution.cudnn_search import BuiltPlan
from tests.backends.running import Output, run_call

from ..executed import execute
from ..simulated import FakeCudnn, done, force, simulate, with_libraries
from .layers import NARROW, PACKED, PRIMITIVES, Layer, run, square

SETTINGS = ("stride", "pad", "dilation")
NAMES = {"forward": ("x", "w", "y"), "data": ("dx", "w", "dy"), "filter": ("x", "dw", "dy")}
"""What the primitive of an operation calls cuDNN's x, w and y."""


def _array(address: int, operand: Operand) -> np.ndarray:
    """The values of an operand in the memory at an address."""
    memory = (ctypes.c_float * (operand.nbytes // 4)).from_address(address)
    steps = [4 * step for step in operand.strides]
    return np.lib.stride_tricks.as_strided(np.ctypeslib.as_array(memory), operand.shape, steps)


class PlansOnCpu(FakeCudnn):
    """Stands for cuDNN: computes on the CPU what a plan would, on one group at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.executed = 0

    def search(self, convolution: Any) -> Any:
        fits = convolution.x.shape[1] == convolution.w.shape[1]
        return done([BuiltPlan("eng0", self._plan(convolution), False)] if fits else [])

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
        names = NAMES[found.operation]
        window: dict[str, Any] = {each: [*getattr(found, each)] for each in SETTINGS}
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
        result = run_call(Cpu(), PRIMITIVES[found.operation], tensors, {**window, "group": 1})[
            target
        ]
        mask = arrays.get("mask")
        arrays[written][...] = result if mask is None else np.where(mask > 0, result, 0)


LAYERS = {
    **{f"packed: {name}": (layer, None) for name, layer in (PACKED | NARROW).items()},
    "AlexNet, fused": (square((2, 3, 43, 43), (8, 3, 11, 11), 4, 0), 0),
    "AlexNet": (square((2, 3, 43, 43), (8, 3, 11, 11), 4, 0), 1),
    "GoogLeNet": (square((2, 3, 16, 16), (8, 3, 7, 7), 2, 3), 0),
    "GoogLeNet, 4 pixels, fused": (square((1, 3, 16, 16), (8, 3, 7, 7), 2, 3), 2),
    "GoogLeNet, 4 pixels": (square((1, 3, 16, 16), (8, 3, 7, 7), 2, 3), 3),
    "uneven": (Layer((2, 1, 19, 14), (8, 1, 4, 5), (3, 2), (0, 1)), 0),
    "uneven, 2 pixels, fused": (Layer((2, 3, 23, 28), (8, 3, 7, 7), (2, 2), (2, 1)), 2),
    "uneven, 2 pixels": (Layer((2, 3, 23, 28), (8, 3, 7, 7), (2, 2), (2, 1)), 3),
}
"""Layers, and which candidate by space to depth (None: packed groups): for outputs those of one
pixel come first, and of each form the one with what is fused into it."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("slope", [0.0, 0.5])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_on_the_cpu(name: str, slope: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images lie in either order where blocks of their pixels become channels."""
    layer, number = LAYERS[name]
    packed = number is None
    simulate(monkeypatch)
    execute(monkeypatch)
    monkeypatch.setattr(cudnn, "MOST_COPYING", math.inf)
    monkeypatch.setattr(providers, "WORTH_FUSING", 0)
    by_space_to_depth = tuple(f"cudnn {each} by space to depth" for each in ("fused", "alone"))
    operations = ("forward", "data", "filter") if packed else ("forward", "filter")
    force(monkeypatch, "cudnn on packed groups" if packed else by_space_to_depth, number or 0)
    plans = PlansOnCpu()
    wanted = run(Cpu(), layer, operations, relu=slope, integers=True)
    for flexible in (True,) if packed else (True, False):
        backend = with_libraries(Cuda(precision="fp32"), plans)
        found = run(backend, layer, operations, relu=slope, flexible=flexible, integers=True)
        np.testing.assert_equal(found, wanted)
    assert plans.executed == (2 * 6 if packed else 4 * 4) * layer.group


@pytest.mark.parametrize(("taken", "searched"), [(1e-3, 0), (1.0, 3)])
def test_what_is_searched_for(taken: float, searched: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing where copies alone take about as long as the fastest other way."""
    simulate(monkeypatch)
    for name in "once", "time_of":
        monkeypatch.setattr(timing, name, lambda *_: taken)
    fake = FakeCudnn()
    backend = with_libraries(Cuda(precision="fp32"), fake)
    monkeypatch.setattr(Tuner, "begin", lambda tuner, *given: Pending(tuner.fastest, *given))
    run(backend, PACKED["2 groups"])
    packed = {each for each in fake.asked if each.x.shape[1] == each.w.shape[1]}
    assert len(packed) == searched  # of outputs and of both gradients
