"""Sketches: nets with a layout and operation counts, but without memory or computation.

A sketch has the interface that exchanges need of a net.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..arena import ArenaLayout
from ..backends.cpu import Cpu
from ..backends.primitives.movement import Collective, is_feed
from ..backends.primitives.recording import Primitive
from ..backends.tensor import Tensor
from ..comm.algorithms import Operation
from ..errors import UserError
from ..graph.assembly import assemble
from ..graph.flops import bytes_moved, flops
from ..graph.gradients import find_gradients
from ..graph.parameters import adopt_parameters
from ..graph.prototxt.filter import filter_layers, net_state
from ..graph.prototxt.splits import insert_splits
from ..graph.recording import record_backward, record_forward
from ..layers.base import Context, Splitter
from ..parallel.batch import readers
from ..parallel.buckets import ITEM
from ..proto import caffe_pb2, title


@dataclass
class Work:
    """The work of a layer in one direction: operations, and bytes of the tensors it touches."""

    flops: int = 0
    nbytes: int = 0


class Sketch:
    """The training net of a parameter, as one rank has it: a `Layout`.

    layers: as a net's. forward, backward: the work of each. batch: records of a pass (0: unknown).
    sizes: by a parameter's name the elements that it takes in memory and messages, where a backend
    pads it. splitter: see `Context`, of `Ranks`. collectives: by direction and layer, the
    operations that such a layer asks for, and their elements.
    """

    def __init__(
        self,
        param: caffe_pb2.NetParameter,
        *,
        level: int = 0,
        stages: Any = (),
        sizes: Mapping[str, int] = MappingProxyType({}),
        splitter: Splitter | None = None,
    ) -> None:
        batches = {message.batch_size for _, message in readers(param)}
        self.batch = batches.pop() if len(batches) == 1 else 0
        self.name: str = param.name
        filtered = filter_layers(param, net_state(param, "TRAIN", level, stages))
        self.param = insert_splits(_without_sources(filtered))
        backend = Cpu()
        parts = assemble(self.param, "TRAIN", 1, Context(backend, splitter=splitter))
        self.layers = [node.layer for node in parts.nodes]
        self.parameters = adopt_parameters(self.layers, None, parts.blobs)
        find_gradients(parts.nodes, force=False)
        total = Tensor((), name="total loss", persistent=True)
        seeds = {blob.name: blob.diff for blob, _ in parts.losses}
        forward = record_forward(parts, total)
        programs = (
            forward,
            record_backward(parts, forward, accumulate=False, seeds=seeds, scale=None, seedable=[]),
        )
        self.forward, self.backward = (_work(calls, len(self.layers)) for calls in programs)
        self.collectives: dict[tuple[str, int], list[tuple[Operation, int]]] = {}
        for direction, calls in zip(("forward", "backward"), programs, strict=True):
            for call in calls:
                if isinstance(call, Collective):
                    asked = self.collectives.setdefault((direction, call.position), [])
                    operation: Any = call.operation  # of `Ranks`, it is data
                    asked.append((operation, call.x.count))
        self.arena = ArenaLayout(self.parameters[::-1], sizes)


def _work(calls: list[Primitive], layers: int) -> list[Work]:
    works = [Work() for _ in range(layers)]
    for call in calls:
        if 0 <= call.position < layers and not is_feed(call):
            work = works[call.position]
            work.flops += flops(call)
            work.nbytes += bytes_moved([call], lambda tensor: tensor.size * ITEM)
    return works


def _without_sources(param: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
    """The net with its reading layers replaced by layers that make up data of the same shapes.

    UserError where these have more tops than data and labels.
    """
    made = caffe_pb2.NetParameter()
    made.CopyFrom(param)
    batches = {name: message.batch_size for name, message in readers(made)}
    for layer in made.layer:
        shapes = _shapes(layer, batches.get(title(layer), 0))
        if not shapes:
            continue  # it has its shape itself, or must read its source
        if len(layer.top) > len(shapes):
            raise UserError(f"{title(layer)}: a prediction takes data and labels, not more tops")
        name, tops, include = layer.name, list(layer.top), list(layer.include)
        layer.Clear()
        layer.name, layer.type = name, "DummyData"
        layer.top.extend(tops)
        layer.include.extend(include)
        for shape in shapes[: len(tops)]:
            layer.dummy_data_param.shape.add().dim.extend(shape)
    return made


def _shapes(layer: caffe_pb2.LayerParameter, batch: int) -> list[tuple[int, ...]]:
    """Of the tops of a layer that reads this many records, as far as its message gives them."""
    if batch and layer.type == "PatchData":
        low = layer.patch_data_param.patch_size
        high = low * layer.patch_data_param.scale
        return [(batch, 3, low, low), (batch, 3, high, high)]
    crop = layer.transform_param.crop_size
    if not (batch and crop and layer.type in ("Data", "ImageData")):
        return []
    gray = layer.type == "ImageData" and not layer.image_data_param.is_color
    channels = 1 if layer.transform_param.force_gray or gray else 3
    return [(batch, channels, crop, crop), (batch,)]
