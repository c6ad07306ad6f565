"""The nets of the benchmarks: Data layers become inputs, a deploy net gets a loss."""

from __future__ import annotations

import numpy as np

from benchmarks import nets


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
