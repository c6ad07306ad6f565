"""Owns the passes that leave out pixels that nobody reads.

A convolution of 1 x 1 filters with a stride, as at the head of each stage of a ResNet, reads one
pixel of four. Where all that read a blob are such, what makes it makes these alone, and they read
all that there is. In training, that is batch normalization, and gradients have no zeros between;
where nothing runs backward, also sums and convolutions, which have the stride then.
"""

from __future__ import annotations

from typing import NamedTuple

from ...backends import primitives as ops
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Shape, Tensor
from .editing import (
    Programs,
    Users,
    fuse,
    insert,
    is_exposed,
    is_handed_over,
    normalization_gradient,
    reads_view,
    replace_read,
    replace_written,
    writes,
)
from .inference import sum_of_two

_ALL = (1, 1)
_Reader = ops.Convolution | ops.MaxPooling


class _Backward(NamedTuple):
    """What backward does with the blob: the gradients of the filters and of the blob by
    the convolutions, and that of the batch normalization, which reads the latter."""

    filters: list[ops.ConvolutionBackwardFilter]
    images: list[ops.ConvolutionBackwardData]
    norm: ops.BatchNormBackward


def skip_pixels(programs: Programs) -> None:
    """Let batch normalizations make only what convolutions with a stride read, where something runs
    backward: else they are folded."""
    forward, backward = programs
    users = Users(programs)
    for norm in [call for call in forward if isinstance(call, ops.BatchNorm)]:
        y = norm.y
        others = [call for call in users.of(y) if call in forward and call is not norm]
        readers = _readers(y, others)
        if not readers or y in norm.read_tensors():
            continue
        found = _backward(backward, users, norm, readers)
        if found and users.only(y, norm, *readers, *found.filters, found.norm):
            _skip(norm, readers, found)


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


def _every_pixel(y: Tensor, every: Shape) -> Tensor:
    """Images of the pixels alone that these steps reach."""
    extents = zip(y.shape[2:], every, strict=True)
    shape = (*y.shape[:2], *(-(-extent // step) for extent, step in extents))
    return Tensor(shape, name=y.name, flexible=True)


def _backward(
    calls: list[Primitive], users: Users, norm: ops.BatchNorm, readers: list[_Reader]
) -> _Backward | None:
    """What backward does with the blob that a batch normalization makes, if its gradient is what
    these convolutions write alone, and nobody else reads their terms of it."""
    positions = {call.position for call in readers}
    backward = normalization_gradient(calls, norm)
    if backward is None:
        return None
    terms = backward.dys
    of_readers = [call for call in calls if call.position in positions]
    filters = [
        call
        for call in of_readers
        if isinstance(call, ops.ConvolutionBackwardFilter) and call.x is norm.y
    ]
    images = [
        call
        for call in of_readers
        if isinstance(call, ops.ConvolutionBackwardData) and call.dx in terms
    ]
    if len(images) != len(readers) or {call.dx for call in images} != {*terms}:
        return None
    for maker in images:
        if (
            maker.addend is not None
            or maker.relu_output is not None
            or terms.count(maker.dx) > 1
            or not is_handed_over(users, maker.dx, maker, backward)
        ):
            return None
    return _Backward(filters, images, backward)


def _skip(norm: ops.BatchNorm, readers: list[_Reader], found: _Backward) -> None:
    """Let the blob have the pixels alone that its readers reach, and so its gradient's terms."""
    every = _stride(readers)
    made = _every_pixel(norm.y, every)
    norm.y, norm.every = made, every
    for call in [*readers, *found.filters]:
        call.x, call.stride = made, _ALL
    terms: dict[Tensor, Tensor] = {}
    for image in found.images:
        terms[image.dx] = Tensor(made.shape, name=image.dx.name, like=made)
        image.dx, image.stride = terms[image.dx], _ALL
    found.norm.dys = [terms[term] for term in found.norm.dys]
    if found.norm.relu_output is not None:
        found.norm.relu_output = made
    found.norm.every = every


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
        every = _stride(readers)
        made = _every_pixel(y, every)
        for each in (call, *relus):
            replace_written(each, y, made)
            replace_read(each, y, made)
        if isinstance(call, ops.Convolution):
            call.stride = [int(own) * step for own, step in zip(call.stride, every, strict=True)]
        for term in terms:
            picked = _every_pixel(term, every)
            pick = ops.MaxPooling(term, picked, None, kernel=_ALL, stride=every, pad=(0, 0))
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
