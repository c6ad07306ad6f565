"""The passes that leave out pixels that nobody reads.

A convolution of 1 x 1 filters with a stride, as at the head of each stage of a ResNet, reads one
pixel of four. Where all that read a blob are such, what makes it makes these alone, and they read
all that there is. In training, that is batch normalization, and gradients have no zeros between;
where nothing runs backward, also sums and convolutions, which have the stride then.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...backends import primitives as ops
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Shape, Tensor
from ...blob import Blob
from ..gradients import Node
from .editing import (
    Users,
    fuse,
    insert,
    is_exposed,
    reads_view,
    replace_read,
    replace_written,
    writes,
)
from .inference import sum_of_two

_ALL = (1, 1)
_Reader = ops.Convolution | ops.MaxPooling


def skip_pixels(calls: list[Primitive], nodes: Sequence[Node]) -> None:
    """Let batch normalizations make only what convolutions with a stride read, where backward
    follows: else they are folded. A Split between adds gradients of as few pixels."""
    users = Users([calls])
    splits = {node.bottom[0].diff: node for node in nodes if node.layer.type == "Split"}
    for norm in [call for call in calls if isinstance(call, ops.BatchNorm) and call.diffs]:
        readers = _readers(norm.y, [call for call in users.of(norm.y) if call is not norm])
        dy, split = norm.diffs["y"], splits.get(norm.diffs["y"])
        terms = [blob.diff for blob in split.top] if split else [dy]
        if (
            not readers
            or norm.y in norm.read_tensors()
            or {reader.diffs.get("x") for reader in readers} != {*terms}
        ):
            continue
        norm.subsample = _stride(readers)
        made = norm.y = _every_pixel(norm.y, norm.subsample)
        diffs = {each: Tensor(made.shape, name=each.name, like=made) for each in (dy, *terms)}
        norm.diffs["y"] = diffs[dy]
        for reader in readers:
            reader.x, reader.stride = made, _ALL
            reader.diffs["x"] = diffs[reader.diffs["x"]]
        for node in nodes[norm.layers[-1]], split:
            if node:
                node.top = [
                    Blob.of(blob.name, made, diffs[blob.diff]) if blob.diff in diffs else blob
                    for blob in node.top
                ]
        if split:
            split.bottom = nodes[norm.layers[-1]].top[:1]


def _readers(y: Tensor, calls: list[Primitive]) -> list[_Reader]:
    """These calls, if all of them read the images y at the same stride, each output one pixel, and
    the images may change; else none."""
    if len(y.shape) != 4 or is_exposed(y) or not y.layout_undecided:
        return []
    readers = [call for call in calls if isinstance(call, _Reader) and _skips(call, y)]
    strides = {tuple(map(int, call.stride)) for call in readers}
    return readers if len(strides) == 1 and len(readers) == len(calls) else []


def _skips(call: _Reader, x: Tensor) -> bool:
    """Whether its outputs depend on one pixel of x each, but not on all."""
    match call:
        case ops.Convolution():
            window = call.w.shape[2:]
        case ops.MaxPooling(index=None):
            window = tuple(call.kernel)
        case _:
            return False
    alone = {*window} == {1} and not any(call.pad)
    return call.x is x and alone and max(call.stride) > 1


def _stride(readers: list[_Reader]) -> Shape:
    """The one that they share."""
    return tuple(map(int, readers[0].stride))


def _every_pixel(y: Tensor, subsample: Shape) -> Tensor:
    """Images of the pixels alone that these steps reach."""
    extents = zip(y.shape[2:], subsample, strict=True)
    shape = (*y.shape[:2], *(-(-extent // step) for extent, step in extents))
    return Tensor(shape, name=y.name, flexible=True)


def move_strides(calls: list[Primitive]) -> None:
    """Let convolutions and sums of two make only what convolutions with a stride read, where
    nothing runs backward. What a sum adds is picked before it, or made so in turn."""
    users = Users([calls])
    for call in reversed(list(calls)):
        if not isinstance(call, ops.Convolution | ops.Sum | ops.BatchNorm):
            continue
        y, terms = call.y, [term for pair in sum_of_two(call)[:1] for term in pair]
        if not (isinstance(call, ops.Convolution) or terms):
            continue
        if any(reads_view(call, each) for each in terms):
            continue
        relus = [
            each for each in users.of(y) if isinstance(each, ops.Relu) and each.x is each.y is y
        ]
        readers = _readers(y, [each for each in users.of(y) if each not in (call, *relus)])
        if not readers:
            continue
        subsample = _stride(readers)
        made = _every_pixel(y, subsample)
        for each in (call, *relus):
            replace_written(each, y, made)
            replace_read(each, y, made)
        if isinstance(call, ops.Convolution):
            call.stride = [
                int(own) * step for own, step in zip(call.stride, subsample, strict=True)
            ]
        for term in terms:
            picked = _every_pixel(term, subsample)
            pick = ops.MaxPooling(term, picked, None, kernel=_ALL, stride=subsample, pad=(0, 0))
            insert(calls, calls.index(call), pick, call)
            replace_read(call, term, picked)
        for reader in readers:
            reader.x, reader.stride = made, _ALL
            others = [other for other in users.of(reader.y) if other is not reader]
            fixed = is_exposed(reader.y) or any(writes(other, reader.y) for other in others)
            if isinstance(reader, ops.MaxPooling) and not fixed:  # it picks all
                for other in others:
                    replace_read(other, reader.y, made)
                fuse(calls, (call, *relus)[-1], reader)
        users = Users([calls])
