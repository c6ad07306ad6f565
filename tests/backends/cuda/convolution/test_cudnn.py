"""cuDNN by space to depth: on the CPU, which computes what plans do."""

from __future__ import annotations

import ctypes
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.convolution.cudnn_graph import UIDS, Convolution, Operand
from osucaffe.backends.cuda.convolution.cudnn_search import BuiltPlan
from tests.backends.running import Output, run_call

from ..executed import execute
from ..simulated import FakeCudnn, done, force, simulate, with_libraries
from .layers import PRIMITIVES, Layer, run, square

SETTINGS = ("stride", "pad", "dilation")
NAMES = {"forward": ("x", "w", "y"), "data": ("dx", "w", "dy"), "filter": ("x", "dw", "dy")}
"""What the primitive of an operation calls cuDNN's x, w and y."""


def _array(address: int, operand: Operand) -> np.ndarray:
    """The values of an operand in the memory at an address."""
    memory = (ctypes.c_float * (operand.nbytes // 4)).from_address(address)
    steps = [4 * step for step in operand.strides]
    return np.lib.stride_tricks.as_strided(np.ctypeslib.as_array(memory), operand.shape, steps)


class PlansOnCpu(FakeCudnn):
    """Stands for cuDNN: computes on the CPU what a plan would."""

    def __init__(self) -> None:
        super().__init__()
        self.executed = 0

    def search(self, convolution: Any) -> Any:
        return done([BuiltPlan("eng0", self._plan(convolution), False)])

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
            window |= {"relu": 0.0} if found.relu else {}
        elif found.operation == "filter":
            tensors["db"] = None
        result = run_call(Cpu(), PRIMITIVES[found.operation], tensors, {**window, "group": 1})
        arrays[written][...] = result[target]


LAYERS = {
    "AlexNet, fused": (square((2, 3, 43, 43), (8, 3, 11, 11), 4, 0), 0),
    "AlexNet": (square((2, 3, 43, 43), (8, 3, 11, 11), 4, 0), 1),
    "GoogLeNet": (square((2, 3, 16, 16), (8, 3, 7, 7), 2, 3), 0),
    "uneven": (Layer((2, 1, 19, 14), (8, 1, 4, 5), (3, 2), (0, 1)), 0),
    "uneven, even": (Layer((2, 3, 23, 28), (8, 3, 7, 7), (2, 2), (2, 1)), 1),
}
"""Layers, and which candidate: for outputs the one with what is fused into it comes first."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("slope", [0.0, 0.5])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_on_the_cpu(name: str, slope: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images lie in either order."""
    layer, number = LAYERS[name]
    simulate(monkeypatch)
    execute(monkeypatch)
    names = tuple(f"cudnn {each} by space to depth" for each in ("fused", "alone"))
    force(monkeypatch, names, number)
    plans = PlansOnCpu()
    wanted = run(Cpu(), layer, ("forward", "filter"), relu=slope, integers=True)
    for flexible in True, False:
        backend = with_libraries(Cuda(precision="fp32"), plans)
        found = run(
            backend, layer, ("forward", "filter"), relu=slope, flexible=flexible, integers=True
        )
        np.testing.assert_equal(found, wanted)
    assert plans.executed == 4 * 4
