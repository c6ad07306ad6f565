"""The pass that lets convolutions of one window that read the same blob run as one call, as
those of 1 x 1 in Inception modules can, where gradients are computed.

The blob is read once for all outputs, and once for the gradients of all filters; its gradient is
written once, where each convolution wrote one, and a sum read them all. Filters and biases lie next
to one another in the arena, so that they are one tensor (`join`). Outputs are copies of parts of
the joint output, and their gradients are copied together: that must be less than what is saved.
What goes on to a concatenation is not copied twice (`copy_parts_once`).
Views in their place would be for few: oneDNN has only reference code for a window of the channels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ...arena import ALIGNMENT
from ...backends import primitives as ops
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor, join
from ..gradients import Node
from .editing import Programs, Users, fuse, insert, is_exposed, reads, writes


@dataclass
class _Sibling:
    """A convolution, its gradient of the filters, and that of the images with the sum that reads it
    (or none)."""

    call: ops.Convolution
    filters: ops.ConvolutionBackwardFilter
    images: ops.ConvolutionBackwardData | None = None
    total: ops.Sum | None = None

    @property
    def outputs(self) -> int:
        """How many channels it makes."""
        return self.call.y.shape[1]

    @property
    def kind(self) -> Hashable:
        """What siblings have in common."""
        call = self.call
        return (
            call.x,
            call.w.shape[1:],
            call.b is None,
            call.relu,
            *map(tuple, (call.stride, call.pad, call.dilation)),
            self.filters.accumulates,
            self.total,
        )


def join_siblings(programs: Programs, nodes: Sequence[Node]) -> None:
    """Let convolutions that read the same blob run as one, wherever that saves memory traffic.

    nodes: those of the net, for the parameters of its layers.
    """
    forward, backward = programs
    users = Users(programs)
    families: defaultdict[Hashable, list[_Sibling]] = defaultdict(list)
    for call in forward:
        if sibling := _sibling(call, backward, nodes, users):
            families[sibling.kind].append(sibling)
    for family in families.values():
        # After a part that is not a multiple of the alignment, no other can follow without a gap.
        odd = [each for each in family if each.outputs % ALIGNMENT]
        members = [each for each in family if each not in odd[1:]]
        members.sort(key=lambda each: each.outputs % ALIGNMENT > 0)
        if len(members) > 1 and _pays(members) and _fit(members) and _may_join(members, programs):
            _join(members, programs)


def _sibling(
    call: Primitive, backward: Sequence[Primitive], nodes: Sequence[Node], users: Users
) -> _Sibling | None:
    """What belongs to a call, if it is a convolution of which nothing speaks against joining it."""
    match call:
        case ops.Convolution(group=1, addend=None, activation=None) if (
            not is_exposed(call.y) and call.y.layout_undecided
        ):
            of_layer = [each for each in backward if each.position == call.position]
        case _:
            return None
    filters = [e for e in of_layer if isinstance(e, ops.ConvolutionBackwardFilter)]
    images = [e for e in of_layer if isinstance(e, ops.ConvolutionBackwardData)]
    if len(filters) != 1 or len(images) > 1:
        return None
    sibling = _Sibling(call, filters[0])
    for image in images:
        total = users.other(image.dx, image)
        if not isinstance(total, ops.Sum) or any(each != 1 for each in total.coefficients or ()):
            return None
        if image.dx.persistent or image.relu_output is not None:
            return None
        sibling.images, sibling.total = image, total
    layer, mine = nodes[call.position].layer, [call, *filters, *images]
    for index, (name, blob) in enumerate(zip("wb", layer.parameters, strict=False)):
        if (
            getattr(call, name) is not blob.data
            or getattr(sibling.filters, f"d{name}") is not blob.diff
            or not layer.spec(index).lr_mult
            or blob.data.viewed
            or not {*users.of(blob.data), *users.of(blob.diff)}.issubset(mine)
        ):
            return None
    return sibling


def _pays(members: Sequence[_Sibling]) -> bool:
    """Whether reading the images and writing their gradients once saves more than copies cost."""
    first = members[0]
    x, y = first.call.x, first.call.y
    pixels = x.shape[0] * math.prod(y.shape[2:])
    times = 4 if first.images else 2  # read for outputs and filters; written, read by the sum
    saved = times * (len(members) - 1) * x.shape[1] * pixels
    return saved > 4 * sum(member.outputs for member in members) * pixels


def _fit(members: Sequence[_Sibling]) -> bool:
    """Whether their parameters can lie together: where they have been placed already, they do."""
    filters = [each.call.w for each in members]
    joint = filters[0].whole
    if joint is None:
        return all(each.whole is None and each.array is None for each in filters)
    return joint.parts == (*filters,)


def _may_join(members: Sequence[_Sibling], programs: Programs) -> bool:
    """Whether nothing changes meanwhile what they read, when the first layer of them runs for all:
    it is the first forward and the last backward."""
    first = min(members, key=lambda each: each.call.position)
    forward, backward = programs
    last = max(forward.index(each.call) for each in members)
    x = first.call.x
    if any(writes(call, x) for call in forward[forward.index(first.call) : last]):
        return False
    end = backward.index(first.filters)
    return not any(
        writes(call, x) or writes(call, each.filters.dy)
        for each in members
        for call in backward[backward.index(each.filters) : end]
    )


def _join(members: Sequence[_Sibling], programs: Programs) -> None:
    """Let the first layer's calls do the work of all."""
    forward, backward = programs
    first = min(members, key=lambda each: each.call.position)
    others = [each for each in members if each is not first]
    call, parts = first.call, [each.call.y for each in members]
    shape = (parts[0].shape[0], sum(part.shape[1] for part in parts), *parts[0].shape[2:])
    y = Tensor(shape, name=f"{parts[0].name} and others", flexible=True)
    dy = Tensor(shape, name=f"{y.name}.diff", like=y)

    def joined(calls: Sequence[Any], *fields: str) -> None:
        """Let the first layer's call have its parameters, or their gradients, with the others'."""
        joint = calls[members.index(first)]
        for field in fields:
            if getattr(joint, field) is not None:
                setattr(joint, field, join([getattr(each, field) for each in calls]))

    joined([each.call for each in members], "w", "b")
    call.y = y
    insert(forward, forward.index(call) + 1, ops.Split(y, parts, axis=1), call)
    fuse(forward, call, *(each.call for each in others))
    concat = ops.Concat([each.filters.dy for each in members], dy, axis=1)
    joined([each.filters for each in members], "dw", "db")
    first.filters.dy = dy
    fuse(backward, first.filters, *(each.filters for each in others))
    if first.images and first.total:
        joined([each.images for each in members], "w")
        first.images.dy = dy
        gone = [each.images for each in others if each.images]
        fuse(backward, first.images, *gone)
        _shorten(first.total, first.images, gone, backward)
    at = min(backward.index(each) for each in (first.filters, first.images) if each)
    insert(backward, at, concat, first.filters)


def copy_parts_once(programs: Programs) -> None:
    """Let a concatenation take a part from where it is cut off, if that is all that reads the part:
    in Inception modules the outputs of 1 x 1 convolutions, and their gradients, were copied out of
    the joint ones, and then again."""
    users = Users(programs)
    for calls in programs:
        for concat in [call for call in calls if isinstance(call, ops.Concat)]:
            for number, x in enumerate(concat.xs):
                split = users.other(x, concat)
                if isinstance(split, ops.Split) and _may_cut(split, concat, x, calls):
                    _cut(split, concat, number)
                    for user in users.of(concat.y):
                        user.share_work(split)


def _may_cut(split: ops.Split, concat: ops.Concat, x: Tensor, calls: list[Primitive]) -> bool:
    """Whether the concatenation may read x from the tensor of which it is a part."""
    if split not in calls:
        return False
    ys, whole = split.ys, split.x
    between = calls[calls.index(split) + 1 : calls.index(concat)]
    masks = split.relu_output or [None] * len(ys)
    return (
        not is_exposed(x)
        and x in ys
        and None not in ys
        and len(ys) > 1
        and masks[ys.index(x)] is None
        and split.axis == concat.axis
        and concat.xs.count(x) == 1
        and not is_exposed(whole)
        and concat in calls[calls.index(split) :]
        and not any(writes(call, whole) for call in [*between, concat])
    )


def _cut(split: ops.Split, concat: ops.Concat, number: int) -> None:
    at = split.ys.index(concat.xs[number])
    extents = [y.shape[split.axis] for y in split.ys]
    concat.slices = concat.slices or [None] * len(concat.xs)
    concat.slices[number] = sum(extents[:at]), extents[at]
    concat.xs[number] = split.x
    split.ys[at] = None  # type: ignore[call-overload]


def _shorten(
    total: ops.Sum,
    images: ops.ConvolutionBackwardData,
    gone: Sequence[Primitive],
    calls: list[Primitive],
) -> None:
    """Take the gradients that are no longer computed from a sum, which the joint call has a part
    of now; if no other is left, it does all of it."""
    dropped = [tensor for call in gone for tensor in call.written_tensors()]
    total.xs = [term for term in total.xs if term not in dropped]
    total.coefficients = None
    images.share_work(total)
    target = total.y
    between = calls[calls.index(images) + 1 : calls.index(total)]
    used = any(reads(call, target) or writes(call, target) for call in between)
    if len(total.xs) == 1 and not used:
        images.dx = target
        images.relu_output = total.relu_output
        fuse(calls, images, total)
