"""What an iteration loses without a provider is the sum of what its calls lose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.training import bench_kernels, gpu
from benchmarks.training.bench_kernels import Case, Census, loss_without, losses, measure, render
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.autotune import timing
from osucaffe.backends.cuda.autotune.trial import Trial
from osucaffe.backends.cuda.call import fallbacks

from ..backends.cuda.autotune.test_tuner import Offered, new_call
from ..backends.cuda.simulated import simulate, with_libraries

CALLS = [
    {"cudnn alone": 1.0, "small_mma": 0.6, "small_mma_wgrad": 0.8},
    {"cudnn alone": 1.0, "small_mma": 2.0},
    {"small_mma": 0.5, "small_mma_wgrad": 0.75},
]


def test_what_is_lost_is_what_the_best_that_remains_takes_more() -> None:
    found = losses(CALLS)
    assert found["cudnn alone"] == {"milliseconds": 1.0, "serves": 1, "needed": 0}
    assert found["small_mma"] == {"milliseconds": 0.45, "serves": 2, "needed": 0}
    assert found["small_mma_wgrad"] == {"milliseconds": 0.0, "serves": 0, "needed": 0}
    assert found["all small_*"] == {"milliseconds": 0.4, "serves": 2, "needed": 1}
    assert loss_without(CALLS, lambda name: False)["milliseconds"] == 0.0


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A GPU that is not here, whose tuner keeps count."""
    monkeypatch.setenv("OSUCAFFE_CACHE", str(tmp_path))
    simulate(monkeypatch)
    made = with_libraries(Cuda(precision="bf16", graphs=False))
    made.tuner = Census(made)
    return made


def test_every_provider_is_asked(
    backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in "once", "time_of":
        monkeypatch.setattr(timing, name, lambda backend, run, *_: run.milliseconds)
    monkeypatch.setattr(Trial, "step", lambda self, candidate: candidate.make(self._like))
    providers = [
        Offered("good", fast=0.5, slow=3.0),
        Offered("only if nothing is good", needed_above_ms=0.6, plan=0.7),
        *fallbacks([Offered("spare", far=9.0)]),
        Offered("hopeless", eager=False, estimates={"own": 1.0}, own=1.5),
        Offered("broken", broken=RuntimeError("too many registers")),
    ]
    calls = [new_call(backend) for _ in range(2)]
    steps = [backend.tuner.begin(call, providers).step() for call in calls]
    assert [step.milliseconds for step in steps] == [0.5, 0.5]
    assert (
        backend.tuner.calls
        == [{"good": 0.5, "only if nothing is good": 0.7, "spare": 9.0, "hopeless": 1.5}] * 2
    )
    assert {each.call.implementation for each in calls} == {"good: fast"}
    assert not [*tmp_path.rglob("census*")]  # later runs are not to find it


def test_the_table_of_a_net(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BLOCK", 1)
    monkeypatch.setattr(bench_kernels, "SECONDS", 0.0)
    # Of the first convolution's images no gradient is wanted.
    for case, calls in (Case("lenet", 64), 11), (Case("lenet", 1, forward=True), 4):
        found = measure(case, "bf16", backend)
        assert len(found["calls"]) == calls
        assert found["losses"]["cublaslt"]["milliseconds"] == 0.0  # here all take as long
        text = render({"date": "today", "device": "none", "versions": [], "cases": [found]})
        assert f"## {'forward passes' if case.forward else 'training'} in bf16" in text
        assert f"| left out | most | lenet {case.batch} |" in text
        assert "| small_mma |" in text


def test_a_row_of_the_table() -> None:
    case = {"model": "net", "batch": 2, "precision": "tf32", "iteration_ms": 10.0, "calls_ms": 2.1}
    case["losses"] = losses(CALLS)
    text = render({"date": "today", "device": "none", "versions": [], "cases": [case]})
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[4:] == [
        "| all small_* | needed | * (1) |",
        "| all own kernels | needed | * (1) |",
        "| cudnn alone | 10.0% | 1.000, 10.0% (1) |",
        "| small_mma | 4.5% | 0.450, 4.5% (2) |",
        "| small_mma_wgrad | 0.0% | - |",
    ]
