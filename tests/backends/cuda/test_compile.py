"""Every kernel compiles, and its launches fit what it declares: no GPU is needed for that."""

from __future__ import annotations

import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.primitives import PRIMITIVES
from tests.backends import test_primitives  # noqa: F401 (fills CASES)
from tests.backends.cases import CASES, STATE, Case
from tests.backends.running import Runner

from .simulated import simulate

LIBRARY = ("convolution", "inner_product", "recurrent")
"""Beginnings of the names of those that cuDNN and cuBLAS compute."""


# To the compiler, fp16 is bf16 with other instructions.
@pytest.fixture(params=["fp32", "bf16", pytest.param("fp16", marks=pytest.mark.long)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    simulate(monkeypatch)
    made = Cuda(precision=request.param)
    made.random = STATE
    return made


@pytest.mark.parametrize("flexible", [False, True], ids=["row-major", "free"])
@pytest.mark.parametrize("name", [name for name in PRIMITIVES if not name.startswith(LIBRARY)])
def test_primitive_compiles(name: str, flexible: bool, backend: Cuda) -> None:
    for case in [case for case in CASES if case.name == name]:
        _launch(case, backend, flexible)


def _launch(case: Case, backend: Cuda, flexible: bool) -> None:
    runner = Runner(backend, flexible=flexible)
    if case.first is not None:
        runner.record(*case.first)
    runner.record(case.name, case.tensors, case.settings)
    runner.prepare()()
