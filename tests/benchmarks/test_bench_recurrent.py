"""osucaffe's LSTM and PyTorch's compute the same, and the table shows what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bench_recurrent import render
from benchmarks.recurrent import lstm_net, torch_loss
from osucaffe.backends.cpu import Cpu
from osucaffe.net import Net


def test_both_sides_compute_the_same() -> None:
    torch = pytest.importorskip("torch")
    steps, items, units = 3, 2, 5
    net = Net(lstm_net(steps, items, units), phase="TRAIN", backend=Cpu(), inspectable=True)
    x, target = np.random.default_rng(0).standard_normal((2, steps, items, units), np.float32)
    cont = np.ones((steps, items), np.float32)
    cont[0] = 0
    for name, values in {"x": x, "cont": cont, "target": target}.items():
        net.write(name, values)
    net.whole()()
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
    assert wanted in render(record)
