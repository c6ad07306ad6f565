"""Owns Net: it builds the layers of a prototxt, records and places them, and runs the steps."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from . import filler
from .arena import Arena, Parameter
from .backends.primitives import Program
from .backends.random import RandomState
from .backends.tensor import Call, Step, Tensor
from .blob import Blob
from .errors import UserError
from .graph.filter import filter_layers, net_state
from .graph.fusion import fuse_relu
from .graph.gradients import Node, find_gradients
from .graph.memory import Pool, plan_memory
from .graph.parameters import adopt_parameters, copy_weights
from .graph.precision import warn_of_precision
from .graph.splits import insert_splits
from .layer import create_layer
from .proto import caffe_pb2, fill_blob

log = logging.getLogger("osucaffe")

LayerSteps = list[list[Step]]
"""The steps of each layer, in the order of the layers."""


class Net:
    """A net on a backend, built for one phase and fixed shapes.

    share: a net whose parameters (by layer name) and working memory this one uses.
    inspectable: every blob keeps its own row-major memory, so that all can be looked at.
    gradients: whether backward can run (default: in the TRAIN phase, or when inspectable).
    accumulate: whether `backward(accumulate=True)` can run (for `iter_size`).

    Bad layers raise UserError.
    """

    def __init__(
        self,
        param: caffe_pb2.NetParameter,
        *,
        backend: Any,
        phase: str = "TRAIN",
        level: int = 0,
        stages: Iterable[str] = (),
        seed: int | None = None,
        share: Net | None = None,
        inspectable: bool = False,
        gradients: bool | None = None,
        accumulate: bool = False,
    ) -> None:
        self.backend = backend
        self.phase = phase
        self.name: str = param.name
        self.inspectable = inspectable
        self.random = RandomState(int.from_bytes(os.urandom(4), "little") if seed is None else seed)
        if share is None:
            warn_of_precision(param)
        self.param = insert_splits(filter_layers(param, net_state(param, phase, level, stages)))
        self.blobs: dict[str, Blob] = {}
        self.nodes: list[Node] = []
        for layer_param in self.param.layer:
            self._add_layer(layer_param)
        self.layers = [node.layer for node in self.nodes]
        self.layer_names: list[str] = [layer.name for layer in self.layers]
        self.parameters: list[Parameter] = adopt_parameters(self.layers, share)
        self._find_ends()
        find_gradients(self.nodes, force=self.param.force_backward)
        self.pool: Pool = share.pool if share else Pool(backend)
        if gradients is None:
            gradients = phase == "TRAIN" or inspectable
        self._compile(gradients, gradients and accumulate)
        self._fill()

    # -- building --------------------------------------------------------------------------------

    def _add_layer(self, param: caffe_pb2.LayerParameter) -> None:
        """Create a layer, infer its shapes and make its blobs."""
        layer = create_layer(param, self.phase, key=len(self.nodes), seed=self.random.seed)
        bottom = [self.blobs[name] for name in param.bottom]
        names = list(param.top)
        shapes = layer.setup([blob.shape for blob in bottom])
        if layer.loss and not names:
            names = [f"{layer.name} (automatic)"]
        if len(shapes) < len(names):
            layer.fail("top", f"this layer makes {len(shapes)} tops, the net names {len(names)}")
        top = []
        for position, (name, shape) in enumerate(zip(names, shapes, strict=False)):
            if position < len(bottom) and name == param.bottom[position]:
                if not layer.in_place:
                    layer.fail("top", f'it cannot work in place: give "{name}" another name')
                top.append(bottom[position])
                continue
            if name in self.blobs:
                layer.fail("top", f'an earlier layer already makes "{name}": choose another name')
            blob = Blob(name, shape, flexible=bool(bottom) and not self.inspectable)
            blob.data.kept = blob.diff.kept = self.inspectable
            if not bottom:
                blob.data.kept = True
            if "data" in layer.alias:
                blob.data = _alias(bottom[0].data, shape)
                blob.diff.like = blob.data
            if "diff" in layer.alias:
                blob.diff = _alias(bottom[0].diff, shape)
            self.blobs[name] = blob
            top.append(blob)
        weights = [float(weight) for weight in param.loss_weight]
        if weights and len(weights) != len(names):
            layer.fail("loss_weight", f"has {len(weights)} values for {len(names)} tops")
        if not weights:
            weights = [1.0 if layer.loss and position == 0 else 0.0 for position in range(len(top))]
        self.nodes.append(Node(layer, bottom, top, weights))
        if self.inspectable:
            for parameter in layer.parameters:
                parameter.data.flexible = False

    def _find_ends(self) -> None:
        """Name the inputs and outputs, and let the outputs keep their memory."""
        consumed = {blob for node in self.nodes for blob in node.bottom if blob not in node.top}
        outputs = {
            blob
            for node in self.nodes
            for blob in node.top[: len(node.layer.param.top)]
            if blob not in consumed
        }
        self.inputs = [
            blob.name for node in self.nodes if node.layer.type == "Input" for blob in node.top
        ]
        self.outputs = sorted(name for name, blob in self.blobs.items() if blob in outputs)
        for blob in outputs:
            (blob.data.base or blob.data).kept = True
        self._losses = [
            (blob, weight)
            for node in self.nodes
            for blob, weight in zip(node.top, node.loss_weight, strict=True)
            if weight
        ]
        for blob, _ in self._losses:
            blob.data.kept = blob.diff.kept = True
        self.total = Tensor((), name="total loss", kept=True)

    def _record_forward(self) -> Program:
        program = Program()
        for node in self.nodes:
            program.layer = node.layer.name
            node.layer.forward(program, node.bottom, node.top)
        program.layer = ""
        if self._losses:
            blobs, weights = zip(*self._losses, strict=True)
            program.total([blob.data for blob in blobs], self.total, weights=weights)
        return program

    def _record_backward(self, accumulate: bool) -> Program:
        program = Program(accumulate=accumulate)
        constant = {blob.diff for blob, _ in self._losses}
        if self.inspectable:  # a user may seed the gradients of the outputs
            diffs = [self.blobs[name].diff for name in self.outputs]
            constant.update(diff.base or diff for diff in diffs)
        for node in reversed(self.nodes):
            if not node.backward:
                continue
            program.layer = node.layer.name
            for blob in node.top:
                # A top that leads to no loss adds nothing.
                diff = blob.diff.base or blob.diff
                if diff not in constant and not program.has_written(diff):
                    program.fill(blob.diff, value=0.0)
            node.layer.backward(program, node.top, node.propagate_down, node.bottom)
        return program

    def _compile(self, gradients: bool, accumulate: bool) -> None:
        """Prepare every call, plan the memory and place all tensors."""
        self.backend.random = self.random
        forward = self._record_forward().calls
        programs = [forward if self.inspectable else fuse_relu(forward)]
        if gradients:
            programs.append(self._record_backward(False).calls)
        if accumulate:
            programs.append(self._record_backward(True).calls)
        self.programs = programs  # forward, backward, backward that accumulates
        steps = [[(call, self.backend.prepare(call)) for call in calls] for calls in programs]
        self._forward = self._by_layer(steps[0])
        self._backward = self._by_layer(steps[1]) if gradients else None
        self._accumulate = self._by_layer(steps[2]) if accumulate else None

        own = [p for p in self.parameters if p.blob.data.array is None]
        self.arena = Arena(self.backend, own[::-1], gradients=gradients)
        # Both forms of backward take the same time slots, behind forward's.
        timelines = [programs[0] + backward for backward in programs[1:]] or [programs[0]]
        plan = plan_memory(timelines, self.backend.nbytes, share=not self.inspectable)
        self.pool.add(plan)
        kept = dict.fromkeys(plan.kept + [blob.diff for blob, _ in self._losses] * gradients)
        for tensor in kept | dict.fromkeys(self._untouched()):
            memory = self.backend.allocate(self.backend.nbytes(tensor))
            memory[:] = 0
            self.backend.place(tensor, memory, 0)
        self.memory = plan
        if plan.unshared:
            log.info(
                "Memory for blobs and scratch of the %s net: %.1f MB (%.1f MB if none were shared)",
                self.phase,
                plan.size / 1e6,
                plan.unshared / 1e6,
            )

    def _untouched(self) -> Iterator[Tensor]:
        """Tensors that a user may set or read although no call has anything to do with them."""
        for name, blob in self.blobs.items():
            if self.inspectable or name in self.inputs:
                for tensor in (blob.data, blob.diff) if self.inspectable else (blob.data,):
                    if tensor.array is None:
                        yield tensor.base or tensor

    def _by_layer(self, steps: list[tuple[Call, Step]]) -> LayerSteps:
        index = {name: position for position, name in enumerate(self.layer_names)}
        index[""] = len(self.layer_names)
        by_layer: LayerSteps = [[] for _ in range(len(self.layer_names) + 1)]
        for call, step in steps:
            by_layer[index[call.layer]].append(step)
        return by_layer

    def _fill(self) -> None:
        """Give the parameters that are this net's own their first values."""
        generator = np.random.Generator(np.random.PCG64(self.random.seed))
        own = {id(parameter.blob) for _, _, parameter in self.arena.segments}
        for layer in self.layers:
            for blob, kind in zip(layer.parameters, layer.fillers, strict=True):
                if id(blob) in own:
                    own.discard(id(blob))
                    where = f'layer "{layer.name}" ({layer.type})'
                    self.backend.write(blob.data, filler.fill(kind, blob.shape, generator, where))
        for blob, weight in self._losses:
            if blob.diff.array is not None:
                self.backend.write(blob.diff, np.full(blob.shape, weight, np.float32))

    # -- running ---------------------------------------------------------------------------------

    def forward(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        after: Callable[[int], None] | None = None,
    ) -> None:
        """Run the layers start..end (not included). after: called with each layer's index."""
        self.random.step += 1
        end = len(self._forward) if end is None else end
        for index in range(start, end):
            for step in self._forward[index]:
                step()
            if after:
                after(index)

    def backward(
        self,
        start: int | None = None,
        end: int = 0,
        *,
        accumulate: bool = False,
        after: Callable[[int], None] | None = None,
    ) -> None:
        """Run backward from layer `start` (default: the last) down to `end`, both included.

        accumulate: add to the parameters' gradients instead of overwriting them.
        after: called with each layer's index when its gradients are complete.
        """
        steps = self._accumulate if accumulate else self._backward
        assert steps is not None, "this net was built without (accumulating) gradients"
        start = len(self.layers) - 1 if start is None else start
        for index in range(start, end - 1, -1):
            for step in steps[index]:
                step()
            if after:
                after(index)

    def loss(self) -> float:
        """The weighted sum of the losses of the last forward pass."""
        return float(self.backend.read(self.total)) if self._losses else 0.0

    def loss_weight(self, name: str) -> float:
        """The weight of an output in the loss (0: it is no loss)."""
        return next((weight for blob, weight in self._losses if blob.name == name), 0.0)

    def read(self, name: str) -> np.ndarray:
        """A row-major copy of a blob's data."""
        return self.backend.read(self.blobs[name].data)

    def write(self, name: str, values: np.ndarray) -> None:
        """Set the data of a blob, such as an input."""
        blob = self.blobs[name]
        if np.shape(values) != blob.shape:
            raise UserError(f'blob "{name}" has shape {blob.shape}, not {np.shape(values)}')
        self.backend.write(blob.data, values)

    # -- weights ---------------------------------------------------------------------------------

    def load(self, weights: caffe_pb2.NetParameter) -> None:
        """Copy the weights of the layers that have the same names. Other shapes: UserError."""
        copy_weights(weights, self.layers, self.backend)

    def to_proto(self, *, diff: bool = False) -> caffe_pb2.NetParameter:
        """The net and its weights (diff: and their gradients), as a .caffemodel holds them."""
        result = caffe_pb2.NetParameter()
        result.CopyFrom(self.param)
        for layer, param in zip(self.layers, result.layer, strict=True):
            param.phase = getattr(caffe_pb2, self.phase)
            del param.blobs[:]
            for blob in layer.parameters:
                gradient = self.backend.read(blob.diff) if diff else None
                fill_blob(param.blobs.add(), self.backend.read(blob.data), gradient)
        return result


def _alias(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return tensor if tensor.shape == tuple(shape) else tensor.view(shape)
