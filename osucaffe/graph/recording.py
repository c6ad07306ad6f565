"""The recording of a net's calls, of its forward and of its backward pass, and the warning of
layers in place that overwrite what gradients need."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ..backends import primitives as ops
from ..backends.primitives import Program
from ..backends.primitives.recording import Primitive
from ..backends.tensor import Tensor, map_tensors
from ..blob import Blob
from .assembly import Assembly
from .gradients import Node

log = logging.getLogger("osucaffe")


def record_forward(parts: Assembly, total: Tensor) -> list[Primitive]:
    """The calls of all layers' forward, and of the sum of the weighted losses, in total."""
    program = Program()
    for position, node in enumerate(parts.nodes):
        if not _has_recorded(program, node, 0):
            program.enter(node.layer.label, position)
            begin = len(program.calls)
            node.layer.forward(program, node.bottom, node.top)
            node.calls[0] = program.calls[begin:]
            if node.layer.derived:
                _find_diffs(node)
    program.enter()
    if parts.losses:
        blobs, weights = zip(*parts.losses, strict=True)
        program.total([blob.data for blob in blobs], total, weights=weights)
    return program.calls


def _find_diffs(node: Node) -> None:
    """Let the calls of a layer know where the gradients of what they read and make are."""
    layer, calls = node.layer, node.calls[0]
    read, made = (defaultdict[Tensor, list[Tensor | None]](list) for _ in range(2))
    made |= {blob.data.owner: [blob.diff] for blob in node.top}
    for blob, down in zip(node.bottom, node.propagate_down, strict=True):
        read[blob.data.owner].append(blob.diff if down else None)
    for index, blob in enumerate(layer.parameters):
        read[blob.data.owner] = [layer.gradient(index) if node.backward else None]

    def seen(diffs: Mapping[Tensor, list[Tensor | None]], tensor: Tensor) -> Any:
        found = diffs.get(tensor.owner) or [None]
        diff = found.pop(0) if len(found) > 1 else found[0]  # several bottoms may share their data
        return diff.view(tensor.shape) if diff and diff.shape != tensor.shape else diff

    for call in calls:
        if isinstance(call, ops.Copy):  # of what is about to be overwritten, in place
            read[call.y] = read[call.x.owner]
        fields = dict.fromkeys(call.read_fields, read) | dict.fromkeys(call.written_fields, made)
        for name, diffs in fields.items():
            call.diffs[name] = map_tensors(partial(seen, diffs), getattr(call, name))


def record_backward(
    parts: Assembly,
    forward: Iterable[Primitive],
    *,
    accumulate: bool,
    seeds: Mapping[str, Tensor],
    scale: Tensor | None,
    seedable: Iterable[Blob],
) -> list[Primitive]:
    """The calls of backward, from the last layer that `find_gradients` lets run to the first.

    forward: its calls, of which one that was fused with those of the next layers states a gradient
    that is that of all of them.
    accumulate: see `Recorder`. seeds, scale: see `_scale_losses`; without a scale, the seeds are
    the gradients of the losses. seedable: blobs whose gradients a user may set.
    """
    program = Program(accumulate=accumulate)
    given = {blob.diff.owner for blob in seedable}
    given.update(blob.diff for blob, _ in parts.losses)
    if scale is not None:
        program.enter(parts.nodes[-1].layer.label, len(parts.nodes) - 1)
        _scale_losses(program, parts.losses, seeds, scale)
    fused = {call.layers[-1]: call for call in forward if len(call.layers) > 1}
    done = len(parts.nodes)
    for position, node in reversed(list(enumerate(parts.nodes))):
        if position >= done or not node.backward or _has_recorded(program, node, 1):
            continue
        program.enter(node.layer.label, position)
        begin = len(program.calls)
        for blob in node.top:
            # A top that leads to no loss adds nothing.
            diff = blob.diff.owner
            if diff not in given and not program.has_written(diff):
                program.fill(blob.diff, value=0.0)
        if joint := fused.get(position):
            done = joint.layers[0]
            program.enter(joint.layer, joint.position)
            program.layers = joint.layers
            joint.gradient(program)
        elif any(node.propagate_down) or any(node.layer.need_gradients):
            node.layer.backward(program, node.top, node.propagate_down, node.bottom)
            for call in reversed(node.calls[0] if node.layer.derived else ()):
                call.gradient(program)
        node.calls[1] = program.calls[begin:]
    return program.calls


def _has_recorded(program: Program, node: Node, number: int) -> bool:
    """Whether the calls of a layer were recorded for these blobs before: then they are the same."""
    program.extend(node.calls.get(number, ()))
    return number in node.calls


def _scale_losses(
    program: Program,
    losses: Iterable[tuple[Blob, float]],
    seeds: Mapping[str, Tensor],
    scale: Tensor,
) -> None:
    """Record that the gradient of each loss is its weight, in seeds by its name, times the scale
    (of one element)."""
    for blob, _ in losses:
        # A scalar has no axes to repeat it along.
        multiply = program.broadcast if blob.shape else program.elementwise
        factor = scale.view((1,) * len(blob.shape))
        multiply([seeds[blob.name], factor], [blob.diff], formula="y = a * b")


# -- what Caffe computes wrongly, too --------------------------------------------------------------


def _keeps_signs(call: Primitive) -> bool:
    """Of elements that are not 0 after it: a ReLU's gradient looks at signs only."""
    match call:
        case ops.Elementwise():  # times a constant, as of dropout that does not scale
            factor = re.fullmatch(r"y = (\w+) \* a", call.formula)
            return factor is not None and (call.constants or {}).get(factor[1], 0) > 0
        case ops.Relu():
            return call.slope >= 0
    return isinstance(call, ops.Dropout)


Writers = Mapping[Tensor, Sequence[Primitive]]


def find_writers(forward: Sequence[Primitive]) -> Writers:
    """Who writes each tensor that has memory."""
    writers = defaultdict[Tensor, list[Primitive]](list)
    for call in forward:
        for tensor in call.written_tensors():
            writers[tensor.owner].append(call)
    return writers


def warn_of_overwriters(writers: Writers, backward: Sequence[Primitive]) -> int:
    """Log a line for each pair of layers of which the second overwrites, in place, data that the
    backward pass of the first reads; returns how many. writers: as forward was recorded."""
    pairs: dict[tuple[int, int], tuple[str, str]] = {}
    for call in backward:
        for tensor in call.read_tensors():
            known = writers.get(tensor.owner, ())
            later = [writer for writer in known if writer.position >= call.layers.stop]
            if isinstance(call, ops.ReluBackward) and all(map(_keeps_signs, later)):
                continue
            for writer in later:
                pairs[call.position, writer.position] = writer.layer, call.layer
    for names in pairs.values():
        log.warning(
            'Layer "%s" overwrites, in place, what the gradients of layer "%s" need: they will be '
            "wrong, as in Caffe. Give its top another name.",
            *names,
        )
    return len(pairs)
