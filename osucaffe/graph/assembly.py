"""The assembly of a net: its layers, the blobs that they make, shapes, inputs and outputs."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..backends.tensor import Shape, Tensor
from ..blob import Blob
from ..labels import Classes, Labels
from ..layer import create_layer, messages_of
from ..layers.base import Context, Layer, registered
from ..messages import is_users
from ..proto import caffe_pb2, idle_fields, refuse_unread
from .gradients import Node

log = logging.getLogger("osucaffe")
_OTHER_AXES = re.compile("tuple index out of range|values to unpack")


class Known(Protocol):
    """What is remembered of a net's layers and blobs of other shapes: see `BuildCache`."""

    def node(self, position: int, now: Node, bottom: Sequence[Blob]) -> Node | None:
        """The layer at a position as it was when it had these bottoms."""

    def blob(self, name: str, shape: Shape) -> Blob | None:
        """A blob that has memory of its own as it was when it had this shape."""


@dataclass
class Assembly:
    """Blobs by name, the layers in order, the names of inputs and outputs, the weighted losses.

    reach: how many layers have these blobs' shapes, if not all: see `assemble_again`.
    """

    blobs: dict[str, Blob] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    losses: list[tuple[Blob, float]] = field(default_factory=list)
    reach: int | None = None


def assemble(
    param: caffe_pb2.NetParameter,
    phase: str,
    seed: int,
    context: Context,
) -> Assembly:
    """Create the layers of a net and their blobs, without memory. Bad layers raise UserError."""
    parts = Assembly()
    refuse_unread(param, f'net "{param.name}", ')
    idle: dict[str, list[str]] = {}
    for layer_param in param.layer:
        layer = create_layer(layer_param, phase, key=len(parts.nodes), seed=seed)
        for text in _check_fields(layer, layer_param, phase):
            idle.setdefault(text, []).append(layer.title)
        _refuse_infinite(layer)
        layer.context = context
        tops = _set_up(layer, [parts.blobs[name].shape for name in layer_param.bottom])
        _add_layer(parts, layer, tops, context.inspectable)
    _find_inputs_and_outputs(parts)
    for text, (first, *more) in idle.items():
        log.warning("%s, %s%s", first, text, f" (so in {len(more):,} more layers)" if more else "")
    return parts


def assemble_again(
    before: Assembly,
    shapes: Mapping[str, Shape],
    *,
    inspectable: bool,
    known: Known | None = None,
    reach: int | None = None,
) -> Assembly:
    """The same layers with blobs of other shapes. Persistent tensors of the same shape keep their
    memory.

    shapes: those of tops of Input and DummyData layers, where they change. Other layers without
    bottoms know their shapes themselves.
    known: what is taken as it was.
    reach: only that many layers follow, and those without bottoms. The others keep the blobs that
    they read, and so their shapes: they cannot run before all follow.
    """
    parts = Assembly(reach=reach)
    others = Assembly(nodes=parts.nodes)
    for index, node in enumerate(before.nodes):
        names = node.layer.param.bottom
        follows = reach is None or index < reach or not names
        target = parts if follows else others
        if not follows:
            for name, blob in zip(names, node.bottom, strict=True):
                if name not in others.blobs or others.blobs[name].shape != blob.shape:
                    others.blobs[name] = blob
        bottom = [target.blobs[name] for name in names]
        if known is not None and (same := known.node(index, node, bottom)):
            parts.nodes.append(same)
            parts.blobs |= {blob.name: blob for blob in same.top}
            continue
        node.layer.tensors = []
        tops = _set_up_again(node, [blob.shape for blob in bottom], shapes)
        _add_layer(target, node.layer, tops, inspectable, known)
        again = parts.nodes[-1]
        again.backward, again.propagate_down = node.backward, node.propagate_down
    made = {blob.name: blob for node in parts.nodes for blob in node.top}
    parts.blobs = made | parts.blobs
    _find_inputs_and_outputs(parts)
    keep_memory(before, parts)
    return parts


def keep_memory(before: Assembly, after: Assembly) -> bool:
    """Let the persistent blobs of the same layers that have the same shape as before lie where
    those did, but for those that layers make constant; returns whether any has moved."""
    moved = False
    constant = {t for node in before.nodes if node.bottom for t, _ in node.layer.initial}
    for name, blob in after.blobs.items():
        old = before.blobs.get(name)
        fixed = blob.data.persistent and not blob.data.flexible
        if old is not None and old.shape == blob.shape and fixed and old.data not in constant:
            moved |= _reuse_memory(old.data, blob.data)
            if blob.diff.persistent:  # else others use its memory in turn
                moved |= _reuse_memory(old.diff, blob.diff)
    return moved


def _check_fields(layer: Layer, param: caffe_pb2.LayerParameter, phase: str) -> Iterator[str]:
    """Refuse a field of a fork that the layer would drop; yield what is to be told of fields that
    its type does not use.

    param: as the net has it; a layer may change its own. phase: the net's.
    """
    own = messages_of(registered[param.type])
    for setting, message in param.ListFields():
        name = setting.name
        if name in own:
            for text in idle_fields(message, f"{layer.title}, {name}.", param.type):
                yield text.removeprefix(f"{layer.title}, ")
        elif name.endswith("_param"):
            yield f"{name}: has no effect: layers of this type do not read it"
        elif name == "phase" and layer.phase != phase:  # as in a printed .caffemodel
            yield f"phase: works as in {layer.phase}, the net is in {phase}"
        elif name == "blobs":
            yield "blobs: has no effect: give weights as a file"


def _refuse_infinite(layer: Layer) -> None:
    """Refuse a setting that is NaN or infinite: formulas have no such numbers."""
    for name in messages_of(registered[layer.param.type]):
        for setting, value in getattr(layer.param, name).ListFields():
            numbers = value if isinstance(value, Sequence) else [value]
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                layer.fail(f"{name}.{setting.name}", "is not finite")


def _set_up(layer: Layer, bottom: list[Shape]) -> list[Shape]:
    """The shapes of a layer's tops. UserError too where it looks for axes that a bottom lacks."""
    for name, shape in zip(layer.param.bottom, bottom, strict=True):
        if 0 in shape and not layer.takes_empty:
            text = f'"{name}" has shape {shape}: only Python and Silence take what has no elements'
            layer.fail("bottom", text)
    try:
        return layer.setup(bottom)
    except (IndexError, ValueError) as error:
        if is_users(error) or not _OTHER_AXES.search(str(error)):
            raise
        layer.fail("bottom", f"has shapes {bottom}: not the axes that {layer.type} needs")


def _add_layer(
    parts: Assembly,
    layer: Layer,
    shapes: list[Shape],
    inspectable: bool,
    known: Known | None = None,
) -> None:
    """Make the blobs of a layer, but for those that are known: its tops have these shapes."""
    param, blobs = layer.param, parts.blobs
    bottom = [blobs[name] for name in param.bottom]
    names = list(param.top)
    if layer.loss and not names:
        names = [_automatic(layer, blobs)]
    if len(shapes) < len(names):
        layer.fail("top", f"this layer makes {len(shapes)} tops, the net names {len(names)}")
    top = []
    for position, (name, shape) in enumerate(zip(names, shapes, strict=False)):
        layer.check_shape("top", f'"{name}"', shape)
        if position < len(bottom) and name == param.bottom[position]:
            if not layer.in_place:
                layer.fail("top", f'it cannot work in place: give "{name}" another name')
            top.append(bottom[position])
            continue
        if name in blobs:
            layer.fail("top", f'an earlier layer already makes "{name}": choose another name')
        if known is not None and not layer.alias and (same := known.blob(name, shape)):
            blobs[name] = same
            top.append(same)
            continue
        computed = bool(bottom) or position in layer.computed
        blob = Blob(name, shape, flexible=computed and not inspectable)
        blob.data.persistent = inspectable or not computed
        blob.diff.persistent = inspectable
        if "data" in layer.alias:
            blob.data = _alias(bottom[0].data, shape)
            blob.diff.like = blob.data
        if "diff" in layer.alias:
            blob.diff = _alias(bottom[0].diff, shape)
        blobs[name] = blob
        top.append(blob)
    weights = [float(weight) for weight in param.loss_weight]
    if weights and len(weights) != len(names):
        layer.fail("loss_weight", f"has {len(weights)} values for {len(names)} tops")
    if not weights:
        weights = [1.0 if layer.loss and position == 0 else 0.0 for position in range(len(top))]
    parts.nodes.append(Node(layer, bottom, top, weights))
    if inspectable:
        for parameter in layer.parameters:
            parameter.data.flexible = False


def _automatic(layer: Layer, taken: Collection[str]) -> str:
    """The name of the top of a loss for which the net names none."""
    name = f"{layer.name} (automatic)"
    while name in taken:  # by another loss of that name
        name += "'"
    return name


def _find_inputs_and_outputs(parts: Assembly) -> None:
    """Name them, and let the outputs keep their memory."""
    nodes = parts.nodes
    consumed = {blob for node in nodes for blob in node.bottom if blob not in node.top}
    outputs = {
        blob
        for node in nodes
        for blob in node.top[: len(node.layer.param.top)]
        if blob not in consumed
    }
    parts.inputs = [blob.name for node in nodes if node.layer.type == "Input" for blob in node.top]
    parts.outputs = sorted(name for name, blob in parts.blobs.items() if blob in outputs)
    for blob in outputs:
        blob.data.owner.persistent = True
    parts.losses = [
        (blob, weight)
        for node in nodes
        for blob, weight in zip(node.top, node.loss_weight, strict=True)
        if weight
    ]
    for blob, _ in parts.losses:
        blob.data.persistent = blob.diff.persistent = True


def unused_tensors(parts: Assembly, *, inspectable: bool) -> Iterator[Tensor]:
    """Data that has no memory yet, as no call uses it, but a user may set or read."""
    for name, blob in parts.blobs.items():
        seen = inspectable or name in parts.inputs or name in parts.outputs
        if seen and blob.data.array is None:
            yield blob.data.owner


def _set_up_again(node: Node, bottom: list[Shape], given: Mapping[str, Shape]) -> list[Shape]:
    """The shapes of a layer's tops for new shapes of its bottoms. Its parameters stay."""
    layer = node.layer
    if not bottom and not layer.reshapes:
        open_ = layer.type in ("Input", "DummyData")
        return [
            tuple(given.get(blob.name, blob.shape)) if open_ else blob.shape for blob in node.top
        ]
    parameters, fillers, learns = layer.parameters, layer.fillers, layer.need_gradients
    layer.parameters, layer.fillers, layer.need_gradients = [], [], []
    try:
        tops = _set_up(layer, bottom)
        for index, (old, new) in enumerate(zip(parameters, layer.parameters, strict=True)):
            if old.shape != new.shape:
                change = f"the new shape of its bottom needs {new.shape} instead of {old.shape}"
                layer.fail("param", f"parameter {index}: {change}")
    finally:
        layer.parameters, layer.fillers, layer.need_gradients = parameters, fillers, learns
    return tops


def reuse_tensors(layer: Layer, before: Sequence[Tensor]) -> None:
    """Let the persistent tensors of a layer that has been recorded again keep their memory, where
    their shapes are the same."""
    for old, new in zip(before, layer.tensors, strict=False):
        if new.persistent and (old.shape, old.dtype) == (new.shape, new.dtype):
            _reuse_memory(old, new)


def _reuse_memory(old: Tensor, new: Tensor) -> bool:
    """Let a tensor lie where another does, if it can; returns whether it has moved."""
    if old.array is None or old.layout is not None or new.base is not None:
        return False
    if moves := new.address != old.address:
        new.place(old.array.reshape(-1), old.address)
    return moves


def _alias(tensor: Tensor, shape: Shape) -> Tensor:
    return tensor if tensor.shape == tuple(shape) else tensor.view(shape)


def limit_labels(nodes: Sequence[Node]) -> dict[str, Labels]:
    """Tell every layer without bottoms which labels the layers take that its tops reach as they
    are: directly, or through layers that share their bottom's memory, such as Split. Returns the
    same by the names of these tops."""
    origins: dict[Blob, tuple[Node, int]] = {}
    classes_of: dict[tuple[Node, int], list[Classes]] = {}
    for node in nodes:
        if not node.bottom:
            for top, blob in enumerate(node.top):
                origins[blob] = node, top
                classes_of[node, top] = []
        elif "data" in node.layer.alias and node.bottom[0] in origins:
            origins |= dict.fromkeys(node.top, origins[node.bottom[0]])
        for bottom, classes in node.layer.label_bottoms.items():
            if node.bottom[bottom] in origins:
                classes_of[origins[node.bottom[bottom]]].append(classes)
    limits: dict[str, Labels] = {}
    for (node, top), readers in classes_of.items():
        labels = limits[node.top[top].name] = Labels(readers)
        node.layer.limit_labels(top, labels)
    return limits
