"""`train --tensorboard`: what its event files hold, read back; and that it changes no training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.graph_pb2 import GraphDef

from osucaffe.proto import caffe_pb2, read_net
from tests.layers.nets import build

from ..conftest import Cli
from .test_training import parse


def read_events(folder: Path) -> list[Any]:
    """Records: length, its checksum, the event, its checksum."""
    (file,) = folder.iterdir()
    content, events, at = file.read_bytes(), [], 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        events.append(Event.FromString(content[at + 12 : at + 12 + length]))
        at += length + 16
    return events


def values_of(events: list[Any]) -> dict[tuple[str, int], Any]:
    return {(value.tag, event.step): value for event in events for value in event.summary.value}


def train(cli: Cli, *options: str) -> tuple[str, bytes]:
    """The log of a training, and the model that it leaves."""
    result = cli.ok("train", "--solver=solver.prototxt", *options)
    return result.err, (cli.folder / "run_iter_10.caffemodel").read_bytes()


def test_event_files_tell_what_the_log_does_and_training_stays_as_it_is(ready: Cli) -> None:
    _, model = train(ready)
    log, same = train(ready, "--tensorboard=events")
    assert model == same
    events = read_events(ready.folder / "events")
    values = values_of(events)
    tags = {tag for tag, _ in values}
    assert {"train/loss", "train/output/loss", "test/accuracy", "test/loss"} <= tags
    assert values["train/learning_rate", 4].simple_value == pytest.approx(0.05)
    assert values["train/epoch", 4].simple_value == pytest.approx(4 * 8 / 200)
    logged = parse(log)
    tested = values["test/loss", 10].simple_value
    assert tested == pytest.approx(logged["test"][-1][2], rel=1e-4)
    (graph,) = [event.graph_def for event in events if event.graph_def]
    names = {layer.name for layer in read_net(str(ready.folder / "net.prototxt")).layer}
    assert {node.name for node in GraphDef.FromString(graph).node} <= names
    check_histograms(values, model)


def check_histograms(values: dict[tuple[str, int], Any], model: bytes) -> None:
    """Those of the last test are of the weights of the snapshot."""
    steps = {step for tag, step in values if tag.startswith("weights/")}
    assert steps == {0, 5, 10}
    assert {step for tag, step in values if tag.startswith("gradients/")} == {5, 10}
    weights = caffe_pb2.NetParameter.FromString(model)
    layer = next(each for each in weights.layer if each.blobs)
    for number, blob in enumerate(layer.blobs):
        kept = np.array(blob.data)
        histogram = values[f"weights/{layer.name}/{number}", 10].histo
        assert histogram.num == sum(histogram.bucket) == kept.size
        assert histogram.sum == pytest.approx(kept.sum(), rel=1e-4, abs=1e-5)
        assert (histogram.min, histogram.max) == pytest.approx((kept.min(), kept.max()))
        below = kept[kept <= histogram.bucket_limit[len(histogram.bucket) // 2]]
        half = sum(histogram.bucket[: len(histogram.bucket) // 2 + 1])
        assert half == pytest.approx(below.size, abs=1)
        gradients = values[f"gradients/{layer.name}/{number}", 10].histo
        assert gradients.num == kept.size
        assert gradients.max > gradients.min


def test_a_run_without_tests(ready: Cli) -> None:
    """It gets histograms at its displays, and tells the loss behind the last update."""
    path = ready.folder / ready.write_solver("display: 5")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("test_")) + "\n")
    log, _ = train(ready, "--tensorboard=events")
    values = values_of(read_events(ready.folder / "events"))
    assert {step for tag, step in values if tag.startswith("weights/")} == {0, 5}
    losses = {
        step: value.simple_value for (tag, step), value in values.items() if tag == "train/loss"
    }
    assert sorted(losses) == [0, 5, 10]
    (last,) = [line for line in log.splitlines() if "Iteration 10, loss = " in line]
    assert losses[10] == pytest.approx(float(last.rpartition(" ")[2]), rel=1e-4)


NET = """
layer { name: "in put" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } shape { dim: 2 } } }
layer { name: "block/conv" type: "Convolution" bottom: "data" top: "a"
  convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "block/relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "block/conv" type: "Convolution" bottom: "a" top: "b"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "c" }
layer { name: "score" type: "InnerProduct" bottom: "c" top: "d"
  inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "d" bottom: "label" top: "loss" }
"""


def test_the_graph() -> None:
    from osucaffe.cli.train.tensorboard_graph import graph_of

    graph = GraphDef.FromString(graph_of(build(NET, phase="TRAIN")))
    nodes = {node.name: node for node in graph.node}
    assert {name: list(node.input) for name, node in nodes.items()} == {
        "in_put": [],
        "block/conv": ["in_put"],
        "block/relu": ["block/conv"],
        "block/conv_1": ["block/relu"],
        "sum": ["block/relu", "block/conv_1"],
        "score": ["sum"],
        "loss": ["score", "in_put:1"],
    }
    conv = nodes["block/conv"]
    assert conv.op == "Convolution"
    (shape,) = conv.attr["_output_shapes"].list.shape
    assert [each.size for each in shape.dim] == [2, 4, 6, 6]
    assert conv.attr["parameters"].s == b"(4, 3, 3, 3), (4,)"
    assert b"kernel_size: 3" in conv.attr["convolution_param"].s
