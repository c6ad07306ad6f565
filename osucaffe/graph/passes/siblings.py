"""Owns the pass that lets convolutions of one window that read the same blob run as one call, as
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

from ...arena import ALIGNMENT
from ...backends.primitives import Program
from ...backends.tensor import Call, Tensor, join
from ..gradients import Node
from .editing import Programs, Users, fuse, is_exposed, reads, writes

_WINDOW = ("stride", "pad", "dilation")


@dataclass
class _Sibling:
    """A convolution, and in each backward program its gradient of the filters, and that of the
    images with the sum that reads it (or no such gradients)."""

    call: Call
    filters: list[Call]
    images: list[Call]
    sums: list[Call]

    @property
    def outputs(self) -> int:
        """How many channels it makes."""
        return self.call.writes["y"].shape[1]

    @property
    def kind(self) -> Hashable:
        """What siblings have in common."""
        settings, given = self.call.settings, self.call.reads
        return (
            given["x"],
            given["w"].shape[1:],
            "b" in given,
            settings["relu"],
            *(tuple(settings[name]) for name in _WINDOW),
            *(call.accumulates for call in self.filters),
            *map(id, self.sums),
        )


def join_siblings(programs: Programs, nodes: Sequence[Node]) -> None:
    """Let convolutions that read the same blob run as one, wherever that saves memory traffic.

    nodes: those of the net, for the parameters of its layers.
    """
    users = Users(programs)
    single = [Users([calls]) for calls in programs[1:]]
    families: defaultdict[Hashable, list[_Sibling]] = defaultdict(list)
    for call in programs[0] if len(programs) > 1 else ():
        if sibling := _sibling(call, programs[1:], nodes, users, single):
            families[sibling.kind].append(sibling)
    for family in families.values():
        # Behind a part that is no multiple of the alignment, no other can follow without a gap.
        odd = [each for each in family if each.outputs % ALIGNMENT]
        members = [each for each in family if each not in odd[1:]]
        members.sort(key=lambda each: each.outputs % ALIGNMENT > 0)
        if len(members) > 1 and _pays(members) and _fit(members) and _may_join(members, programs):
            _join(members, programs)


def _sibling(
    call: Call, backward: Programs, nodes: Sequence[Node], users: Users, single: Sequence[Users]
) -> _Sibling | None:
    """What belongs to a call, if it is a convolution of which nothing speaks against joining it."""
    if (
        call.name != "convolution"
        or call.settings["group"] != 1
        or "addend" in call.reads
        or call.settings.get("activation")
    ):
        return None
    y, layer = call.writes["y"], nodes[call.position].layer
    if is_exposed(y) or not y.is_open:
        return None
    sibling = _Sibling(call, [], [], [])
    for calls, users_in_pass in zip(backward, single, strict=True):
        gradients = {
            each.name: each
            for each in calls
            if each.position == call.position and each.name.startswith("convolution_backward")
        }
        sibling.filters += [gradients.pop(name) for name in [*gradients] if "filter" in name]
        for images in gradients.values():
            total = users_in_pass.other(images.writes["dx"], images, ("sum",))
            if total is None or any(each != 1 for each in total.settings["coefficients"] or ()):
                return None
            if images.writes["dx"].persistent or "relu_output" in images.reads:
                return None
            sibling.images.append(images)
            sibling.sums.append(total)
    if len(sibling.filters) < len(backward) or len(sibling.images) not in (0, len(backward)):
        return None
    calls = [call, *sibling.filters, *sibling.images]
    for index, (name, blob) in enumerate(zip("wb", layer.parameters, strict=False)):
        if (
            call.reads.get(name) is not blob.data
            or any(each.writes.get(f"d{name}") is not blob.diff for each in sibling.filters)
            or not layer.spec(index).lr_mult
            or blob.data.viewed
            or not {*users.of(blob.data), *users.of(blob.diff)}.issubset(calls)
        ):
            return None
    return sibling


def _pays(members: Sequence[_Sibling]) -> bool:
    """Whether reading the images and writing their gradients once saves more than copies cost."""
    first = members[0]
    x, y = first.call.reads["x"], first.call.writes["y"]
    pixels = x.shape[0] * math.prod(y.shape[2:])
    times = 4 if first.images else 2  # read for outputs and filters; written, read by the sum
    saved = times * (len(members) - 1) * x.shape[1] * pixels
    return saved > 4 * sum(member.outputs for member in members) * pixels


def _fit(members: Sequence[_Sibling]) -> bool:
    """Whether their parameters can lie together: where they have been placed already, they do."""
    filters = [each.call.reads["w"] for each in members]
    joint = filters[0].whole
    if joint is None:
        return all(each.whole is None and each.array is None for each in filters)
    return joint.parts == (*filters,)


def _may_join(members: Sequence[_Sibling], programs: Programs) -> bool:
    """Whether nothing changes meanwhile what they read, when the first layer of them runs for all:
    it is the first forward and the last backward."""
    first = min(members, key=lambda each: each.call.position)
    forward, *backward = programs
    last = max(forward.index(each.call) for each in members)
    x = first.call.reads["x"]
    if any(writes(call, x) for call in forward[forward.index(first.call) : last]):
        return False
    for number, calls in enumerate(backward):
        end = calls.index(first.filters[number])
        for each in members:
            between = calls[calls.index(each.filters[number]) : end]
            dy = each.filters[number].reads["dy"]
            if any(writes(call, x) or writes(call, dy) for call in between):
                return False
    return True


def _join(members: Sequence[_Sibling], programs: Programs) -> None:
    """Let the first layer's calls do the work of all."""
    forward, *backward = programs
    first = min(members, key=lambda each: each.call.position)
    others = [each for each in members if each is not first]
    call, parts = first.call, [each.call.writes["y"] for each in members]
    shape = (parts[0].shape[0], sum(part.shape[1] for part in parts), *parts[0].shape[2:])
    y = Tensor(shape, name=f"{parts[0].name} and others", flexible=True)
    dy = Tensor(shape, name=f"{y.name}.diff", like=y)

    def joined(calls: Sequence[Call], names: Sequence[str], side: str) -> None:
        """Let the first layer's call have its parameters, or their gradients, with the others'."""
        joint = calls[members.index(first)]
        tensors = {name: [getattr(each, side)[name] for each in calls] for name in names}
        getattr(joint, side).update({name: join(each) for name, each in tensors.items()})

    joined([each.call for each in members], [n for n in "wb" if n in call.reads], "reads")
    call.writes["y"] = y
    program = _program(call)
    program.split(y, parts, axis=1)
    forward.insert(forward.index(call) + 1, program.calls.pop())
    fuse(forward, call, *(each.call for each in others))
    for number, calls in enumerate(backward):
        filters = [each.filters[number] for each in members]
        joint_filter = first.filters[number]
        program = _program(joint_filter)
        program.concat([each.reads["dy"] for each in filters], dy, axis=1)
        joined(filters, [name for name in ("dw", "db") if name in joint_filter.writes], "writes")
        joint_filter.reads["dy"] = dy
        fuse(calls, joint_filter, *(each.filters[number] for each in others))
        at = calls.index(joint_filter)
        if first.images:
            images = first.images[number]
            joined([each.images[number] for each in members], ["w"], "reads")
            images.reads["dy"] = dy
            fuse(calls, images, *(each.images[number] for each in others))
            _shorten(first.sums[number], images, [each.images[number] for each in others], calls)
            at = min(calls.index(joint_filter), calls.index(images))
        calls.insert(at, program.calls.pop())


def copy_parts_once(programs: Programs) -> None:
    """Let a concatenation take a part from where it is cut off, if that is all that reads the part:
    in Inception modules the outputs of 1 x 1 convolutions, and their gradients, were copied out of
    the joint ones, and then again."""
    for calls in programs:
        concats = [call for call in calls if call.name == "concat"]
        if not concats:
            continue
        # A gradient is another in each form of backward.
        users = Users(programs if calls is programs[0] else [programs[0], calls])
        for concat in concats:
            for number, x in enumerate(concat.reads["xs"]):
                split = users.other(x, concat, ("split",))
                if split in calls and _may_cut(split, concat, x, calls):
                    _cut(split, concat, number)
                    for user in users.of(concat.writes["y"]):
                        user.trade(split)


def _may_cut(split: Call, concat: Call, x: Tensor, calls: list[Call]) -> bool:
    """Whether the concatenation may read x from the tensor of which it is a part."""
    ys, whole = split.writes["ys"], split.reads["x"]
    between = calls[calls.index(split) + 1 : calls.index(concat)]
    masks = split.reads.get("relu_output") or [None] * len(ys)
    return (
        not is_exposed(x)
        and x in ys
        and None not in ys
        and len(ys) > 1
        and masks[ys.index(x)] is None
        and split.settings["axis"] == concat.settings["axis"]
        and concat.reads["xs"].count(x) == 1
        and not is_exposed(whole)
        and concat in calls[calls.index(split) :]
        and not any(writes(call, whole) for call in [*between, concat])
    )


def _cut(split: Call, concat: Call, number: int) -> None:
    ys, axis = split.writes["ys"], split.settings["axis"]
    at = ys.index(concat.reads["xs"][number])
    extents = [y.shape[axis] for y in ys]
    cuts = concat.settings.setdefault("cuts", [None] * len(concat.reads["xs"]))
    cuts[number] = sum(extents[:at]), extents[at]
    concat.reads["xs"][number] = split.reads["x"]
    ys[at] = None


def _program(call: Call) -> Program:
    """What records calls of the same layer."""
    program = Program()
    program.enter(call.layer, call.position)
    return program


def _shorten(total: Call, images: Call, gone: Sequence[Call], calls: list[Call]) -> None:
    """Take the gradients that are no longer computed from a sum, which the joint call has a part
    of now; if no other is left, it does all of it."""
    dropped = [call.writes["dx"] for call in gone]
    terms = [term for term in total.reads["xs"] if term not in dropped]
    total.reads["xs"] = terms
    if total.settings["coefficients"]:
        total.settings["coefficients"] = [1.0] * len(terms)
    images.trade(total)
    target = total.writes["y"]
    between = calls[calls.index(images) + 1 : calls.index(total)]
    if len(terms) == 1 and not any(reads(call, target) or writes(call, target) for call in between):
        images.writes["dx"] = target
        if "relu_output" in total.reads:
            images.reads["relu_output"] = total.reads["relu_output"]
        fuse(calls, images, total)
