"""Single benchmarks: the GPU table of docs/speed.md is the one measured last; LSTMs; ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import results
from benchmarks.communication.bench_ranks_per_gpu import BATCHES, rows, write_solver
from benchmarks.training import bench_recurrent
from benchmarks.training.bench_gpu import (
    _by_type,
    _losing,
    _passes,
    _rest,
    _so_far,
    render,
    summary,
)
from benchmarks.training.recurrent import lstm_net, torch_loss
from osucaffe.backends.cpu import Cpu
from osucaffe.net import Net
from osucaffe.proto import read_net, read_solver
from osucaffe.study.sketch import Sketch

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"


def test_the_readme_shows_the_last_results() -> None:
    newest = max(results.RESULTS.glob("gpu-*.json"), key=lambda path: (path.stem[-10:], path.stem))
    record = json.loads(newest.read_text())
    assert newest.with_suffix(".md").read_text() == render(record)
    assert summary(record) in PAGE.read_text()
    assert f"benchmarks/results/{newest.stem}.md" in PAGE.read_text()


def test_what_was_measured_on_an_earlier_day_stays(tmp_path: Path) -> None:
    rates = {"tf32": {"device": "NVIDIA H200", "flops_per_second": 4e14}}
    path, record = _so_far(tmp_path, rates)
    assert (path.name, record["cases"]) == (f"gpu-nvidia-h200-{results.today()}.md", [])
    old = {"date": "2020-01-01", "rates": {"bf16": {}}, "cases": [{"model": "lenet"}]}
    results.write("gpu-nvidia-h200-2020-01-01", old, "", tmp_path)
    results.write("gpu-nvidia-h200-2019-12-31", {"cases": []}, "", tmp_path)
    path, record = _so_far(tmp_path, rates)
    assert record["date"] == results.today()
    assert record["cases"] == old["cases"]
    assert record["rates"] == {"bf16": {}} | rates


def test_what_loses_most_comes_first() -> None:
    rates = {"flops_per_second": 1e12, "bytes_per_second": 1e9}
    layers = [
        {"layer": layer, "type": kind, "ms": ms, "flops": flops, "nbytes": nbytes, "by": ["cudnn"]}
        for layer, kind, ms, flops, nbytes in (
            ("a forward", "Convolution", 5.0, 4 * 10**9, 10),
            ("b forward", "LRN", 3.0, 10, 10**6),
            ("c forward", "Convolution", 7.0, 6 * 10**9, 10),
            ("d forward", "Pooling", 1.0, 10, 10**6),
        )
    ]
    found = _by_type(layers, rates)
    assert list(found.items()) == [
        ("Convolution", [12.0, 10.0]),
        ("LRN", [3.0, 1.0]),
        ("Pooling", [1.0, 1.0]),
    ]
    case = {"model": "net", "batch": 2, "precision": "tf32", "layers": found}
    *_, row = _rest([case]).splitlines()
    cells = "Convolution 12.000 (10.000) | LRN 3.000 (1.000) | Pooling 1.000 (1.000) |  |"
    assert row == f"| net 2 | tf32 | {cells}"
    passes = _losing(layers, rates)
    assert [each["layer"][0] for each in passes] == ["b", "a", "c", "d"]
    *_, first, _, _, _ = _passes([case | {"passes": passes}]).splitlines()
    assert first == "| net 2 | tf32 | b forward | LRN | cudnn | 3.000 | 1.000 | bytes | 2.000 |"


def test_both_sides_compute_the_same() -> None:
    torch = pytest.importorskip("torch")
    steps, items, units = 3, 2, 5
    net = Net(lstm_net(steps, items, units), phase="TRAIN", backend=Cpu(), inspectable=True)
    x, target = np.random.default_rng(0).standard_normal((2, steps, items, units), np.float32)
    cont = np.ones((steps, items), np.float32)
    cont[0] = 0
    for name, values in {"x": x, "cont": cont, "target": target}.items():
        net.write(name, values)
    net.as_step()()
    lstm = torch.nn.LSTM(units, units)
    wx, bias, wh = (net.backend.read(each.blob.data) for each in net.parameters)
    order = [0, 1, 3, 2]  # Caffe's gates: input, forget, output, new; PyTorch's last two: turned
    with torch.no_grad():
        for parameter, values in zip(
            lstm.parameters(), (wx, wh, bias, np.zeros_like(bias)), strict=True
        ):
            turned = values.reshape(4, units, -1)[order].reshape(values.shape)
            parameter.copy_(torch.from_numpy(turned))
    inputs = torch.from_numpy(x).requires_grad_()
    loss = torch_loss(lstm, inputs, torch.from_numpy(target))
    loss.backward()
    assert net.loss() == pytest.approx(loss.item(), rel=1e-5)
    found = net.backend.read(net.blobs["x"].diff)
    np.testing.assert_allclose(found, inputs.grad.numpy(), atol=1e-6)


def test_the_table_shows_each_case() -> None:
    side = {"version": "1", "median_ms": 8.0, "runs_ms": [8.0]}
    case = {
        "steps": 20, "items": 24, "units": 256, "precision": "fp32", "flops": 4e9,
        "flops_per_second": 1e12, "floor_ms": 4.0, "osucaffe": side,
        "torch": side | {"median_ms": 12.0, "mode": "eager"}, "speedup": 1.5, "others_share": 0.02,
    }  # fmt: skip
    record = {
        "date": "2026-11-30", "device": "a machine", "threads": 2, "rounds": 5, "seconds": 0.5,
        "cases": [case],
    }  # fmt: skip
    wanted = "20 x 24 x 256 | fp32 | 8.000 | 12.000 | eager | 1.50 | 4.000 | 50% | 200.0 µs |"
    assert wanted in bench_recurrent.render(record)


@pytest.mark.parametrize(("model", "parameters"), [("lenet", 431_080), ("resnet18", 11_173_962)])
def test_nets_have_batches_of_their_own(tmp_path: Path, model: str, parameters: int) -> None:
    net = Sketch(read_net(read_solver(write_solver(model, tmp_path)).net))
    assert net.layers[0].type == "DummyData"
    learned = [each for each in net.parameters if each.lr_mult]
    assert sum(each.blob.data.size for each in learned) == parameters
    assert BATCHES[model] == 64


def test_the_table() -> None:
    rates = {"1": 1000, "2": 1500, "4": "does not run (why)"}
    case = {"net": "lenet", "batch": 64, "images_per_second": rates, "chosen": 2}
    assert list(rows([case])) == [["lenet", 64, "1,000", "1,500", "fails", "", "", 2, "1.50"]]
