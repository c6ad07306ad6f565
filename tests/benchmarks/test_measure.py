"""What is measured: nets, workers that take turns, rows of ranks; written as JSON and tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import measure, nets, results
from benchmarks.measure import Worker, alternate
from benchmarks.rows import rows_of_ranks
from benchmarks.training import bench_cpu
from tests.comm.ranks import needs_mpi


@pytest.mark.long
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


def test_a_failed_worker_is_told() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'none'"):
        Worker({"framework": "none", "threads": 1})


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


def test_training_net_reads_inputs() -> None:
    net = nets.training_net("alexnet", 16)
    data = [layer for layer in net.layer if not layer.bottom]
    assert [layer.type for layer in data] == ["Input"]
    shapes = [tuple(shape.dim) for shape in data[0].input_param.shape]
    assert shapes == [(16, 3, 227, 227), (16,)]
    assert "Accuracy" not in {layer.type for layer in net.layer}


def test_with_inputs_keeps_phases_and_batch_sizes() -> None:
    original = nets.read_net("lenet", "train_val")
    before = original.SerializeToString()
    changed = nets.with_inputs(original, {"data": (1, 28, 28)})
    assert original.SerializeToString() == before
    inputs = [layer for layer in changed.layer if layer.type == "Input"]
    assert [layer.input_param.shape[0].dim[0] for layer in inputs] == [64, 100]
    assert all(len(layer.include) == 1 for layer in inputs)


def test_deploy_net_with_loss() -> None:
    net = nets.deploy_net_with_loss("googlenet", 3)
    assert list(net.layer[0].top) == ["data", "label"]
    assert net.layer[0].input_param.shape[0].dim[0] == 3
    assert net.layer[-1].type == "SoftmaxWithLoss"
    assert list(net.layer[-1].bottom) == ["loss3/classifier", "label"]


def test_synthetic_batch() -> None:
    batch = nets.synthetic_batch(nets.training_net("lenet", 5))
    assert batch["data"].shape == (5, 1, 28, 28)
    assert batch["data"].dtype == batch["label"].dtype == np.float32
    assert set(batch["label"]) <= set(range(10))
    again = nets.synthetic_batch(nets.training_net("lenet", 5))
    assert all(np.array_equal(batch[name], again[name]) for name in batch)


pytestmark = needs_mpi


def test_rows_come_back(capfd: pytest.CaptureFixture[str]) -> None:
    # A line at a time: what two ranks write in pieces may come mixed.
    statement = (
        "import os, sys; threads = os.environ['OMP_NUM_THREADS'];"
        "sys.stdout.write('ROW {\"threads\": %s}\\n' % threads); sys.stdout.flush()"
    )
    rows = list(rows_of_ranks(2, "timeit", "-n1", "-r1", statement, threads=3))
    assert rows == [{"threads": 3}] * 2
    assert "loop, best of" in capfd.readouterr().out


def test_ranks_that_fail_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(rows_of_ranks(2, "osucaffe.nowhere")) == []
    assert "2 ranks ended with " in capfd.readouterr().err
