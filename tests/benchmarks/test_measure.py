"""Workers take turns and report; results are written as JSON and as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_cpu, measure, results
from benchmarks.measure import Worker, alternate


def test_workers_take_turns() -> None:
    job = {"framework": "osucaffe", "model": "lenet", "batch": 2, "update": True, "threads": 1}
    with Worker(job) as first, Worker(job | {"update": False}) as second:
        others = alternate([first, second], rounds=3, seconds=0.01, patience=1)
        assert others >= 0
        for worker in (first, second):
            assert len(worker.times) == len(worker.run_medians) == 3
            assert all(len(times) >= 2 for times in worker.times)
            assert min(worker.run_medians) <= worker.median <= max(worker.run_medians)
            assert 0 < worker.growth < worker.peak
            products = 2 * 288_000 + 3 * (1_600_000 + 400_000 + 5_000)  # of one image
            assert 1 <= worker.notes["flops"] / (2 * 2 * products) < 1.05


class Recorded(Worker):
    """A worker whose runs are given: (duration, what others took)."""

    def __init__(self, runs: list[tuple[float, float]]) -> None:
        self.times, self.processor = [], []
        self.runs = iter(runs)

    def run(self, seconds: float) -> float:
        duration, others = next(self.runs)
        self.times.append([duration])
        self.processor.append(duration)
        return others


def test_disturbed_rounds_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: None)
    first = Recorded([(1, 0.0), (2, 0.5), (3, 0.01)])
    second = Recorded([(4, 0.02), (5, 0.0), (6, 0.0)])
    assert alternate([first, second], rounds=2, seconds=1) == 0.02
    assert (first.times, second.times) == ([[1], [3]], [[4], [6]])
    assert second.processor == [4, 6]


def test_the_quietest_rounds_are_kept_when_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: None)
    worker = Recorded([(1, 0.3), (2, 0.2), (3, 0.4), (4, 0.1)])
    assert alternate([worker], rounds=2, seconds=1, patience=2) == 0.2
    assert worker.times == [[2], [4]]


def test_a_failed_worker_is_told(capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'none'"):
        Worker({"framework": "none", "threads": 1})
    assert "KeyError" in capfd.readouterr().err


def test_a_worker_that_crashed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.sys, "executable", "false")
    with pytest.raises(RuntimeError, match="the worker ended with 1"):
        Worker({"framework": "none", "threads": 1})


def test_results(tmp_path: Path) -> None:
    side = {"version": "1", "median_ms": 20.0, "runs_ms": [20.0], "peak_mib": 9, "growth_mib": 3}
    case = {
        "name": "lenet 64, training",
        "flops": 10**9,
        "sgemm_gflops": 100.0,
        "floor_ms": 10.0,
        "osucaffe": side,
        "torch": side | {"median_ms": 40.0, "layout": "contiguous"},
        "ratio": 0.5,
        "others_share": 0.02,
        "caffe_ms": 28,
    }
    record = {
        "date": results.today(),
        "machine": results.machine(),
        "threads": 2,
        "rounds": 1,
        "seconds": 1.0,
        "cases": [case, case | {"caffe_ms": None}],
    }
    path = results.write("cpu", record, bench_cpu.render(record), tmp_path)
    assert json.loads((tmp_path / "cpu.json").read_text()) == record
    lines = [line for line in path.read_text().splitlines() if line.startswith("| lenet")]
    start = "| lenet 64, training | 20.0 | 40.0 | 0.50 | 10.0 | 50% | 25% | 9 / 9 | 3 / 3 |"
    assert lines == [f"{start} 28 |", f"{start} – |"]
