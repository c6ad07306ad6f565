"""What is measured: nets of models/ fed from fixed synthetic batches instead of databases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from osucaffe import proto
from osucaffe.graph.prototxt.filter import filter_layers, net_state
from osucaffe.proto import caffe_pb2

MODELS = Path(__file__).resolve().parents[1] / "models"

TARGETS = {"edsr_baseline": {"label": (3, 96, 96)}}
"""What nets are trained towards where that is no label: shapes by top, without the batch."""


def read_net(model: str, file: str) -> caffe_pb2.NetParameter:
    """models/MODEL/FILE.prototxt."""
    return proto.read_net(MODELS / model / f"{file}.prototxt")


def input_shape(model: str) -> tuple[int, ...]:
    """The shape of one image, C x H x W, as the model's deploy net states it."""
    (layer,) = (layer for layer in read_net(model, "deploy").layer if layer.type == "Input")
    return tuple(layer.input_param.shape[0].dim[1:])


def with_inputs(
    net: caffe_pb2.NetParameter, shapes: Mapping[str, tuple[int, ...]], batch: int | None = None
) -> caffe_pb2.NetParameter:
    """The net with an Input layer in place of each Data or PatchData layer.

    shapes: by top, of one image; a top that has none brings labels, N of them.
    batch: N; None keeps each layer's own batch size. Include rules stay.
    """
    changed = caffe_pb2.NetParameter()
    changed.CopyFrom(net)
    for layer in changed.layer:
        if layer.type in ("Data", "PatchData"):
            count = batch or layer.data_param.batch_size or layer.patch_data_param.batch_size
            layer.type = "Input"
            for field in ("data_param", "patch_data_param", "transform_param"):
                layer.ClearField(field)
            for top in layer.top:
                layer.input_param.shape.add(dim=(count, *shapes.get(top, ())))
    return changed


def training_net(model: str, batch: int) -> caffe_pb2.NetParameter:
    """The training phase of the model's train_val net, with Input layers."""
    shapes = {"data": input_shape(model)} | TARGETS.get(model, {})
    net = with_inputs(read_net(model, "train_val"), shapes, batch)
    return filter_layers(net, net_state(net, "TRAIN"))


def deploy_net_with_loss(model: str, batch: int) -> caffe_pb2.NetParameter:
    """The model's deploy net with a loss in place of its softmax, so that it has gradients."""
    net = read_net(model, "deploy")
    for layer in net.layer:
        if layer.type == "Input":
            layer.input_param.shape[0].dim[0] = batch
            layer.input_param.shape.add(dim=(batch,))
            layer.top.append("label")
        elif layer.type == "Softmax":
            layer.type = "SoftmaxWithLoss"
            layer.bottom.append("label")
    return net


def deploy_net(model: str, batch: int) -> caffe_pb2.NetParameter:
    """The model's deploy net for batches of this size."""
    net = read_net(model, "deploy")
    for layer in net.layer:
        if layer.type == "Input":
            layer.input_param.shape[0].dim[0] = batch
    return net


def synthetic_weights(layer: str, index: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Values for a parameter of a layer of this type, by which activations stay near 1."""
    draw = np.random.default_rng(seed)
    if layer == "BatchNorm" and index == 2:
        return np.ones(shape, np.float32)
    if len(shape) > 1:
        return np.float32(np.sqrt(1.6 / np.prod(shape[1:]))) * draw.standard_normal(
            shape, np.float32
        )
    if (layer, index) in (("BatchNorm", 1), ("Scale", 0)):
        return draw.uniform(0.5, 1, shape).astype(np.float32)
    return np.float32(0.1) * draw.standard_normal(shape, np.float32)


def synthetic_batch(net: caffe_pb2.NetParameter, seed: int = 1) -> dict[str, np.ndarray]:
    """A batch for the Input layers of a net: normal data, whole labels as floats.

    One-dimensional inputs are labels, below 10: every net here has at least ten classes.
    """
    generator = np.random.default_rng(seed)
    batch = {}
    for layer in net.layer:
        for top, shape in zip(layer.top, layer.input_param.shape, strict=False):
            dims = tuple(shape.dim)
            label = len(dims) == 1
            values = generator.integers(10, size=dims) if label else generator.normal(size=dims)
            batch[top] = np.asarray(values, np.float32)
    return batch
