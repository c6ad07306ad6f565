"""Owns the passes that leave out pixels that nobody reads.

A convolution of 1 x 1 filters with a stride, as at the head of each stage of a ResNet, reads one
pixel of four. Where all that read a blob are such, what makes it makes these alone, and they read
all that there is. In training, that is batch normalization, and gradients have no zeros between;
where nothing runs backward, also sums and convolutions, which have the stride then.
"""

from __future__ import annotations

from typing import NamedTuple

from ...backends.primitives import Program
from ...backends.tensor import Call, Tensor
from .editing import (
    Programs,
    Users,
    fuse,
    is_call,
    is_exposed,
    is_handed_over,
    normalization_gradient,
    reads_view,
    replace_read,
    writes,
)
from .inference import sum_of_two

_ALL = (1, 1)


class _Backward(NamedTuple):
    """What a backward program does with the blob: the gradients of the filters and of the blob by
    the convolutions, and that of the batch normalization, which reads the latter."""

    filters: list[Call]
    images: list[Call]
    norm: Call


def skip_pixels(programs: Programs) -> None:
    """Let batch normalizations make only what convolutions with a stride read, where something runs
    backward: else they are folded."""
    if len(programs) == 1:
        return
    users = Users(programs)
    for norm in [call for call in programs[0] if call.name == "batch_norm"]:
        y = norm.writes["y"]
        readers = [call for call in users.of(y) if call in programs[0] and call is not norm]
        every = _common_stride(y, readers)
        if every is None or y in norm.read_tensors():
            continue
        found = [_backward(calls, norm, readers) for calls in programs[1:]]
        known = [call for each in found if each for call in (*each.filters, each.norm)]
        if None not in found and users.only(y, norm, *readers, *known):
            _skip(norm, readers, [each for each in found if each], every)


def _common_stride(y: Tensor, readers: list[Call]) -> tuple[int, ...] | None:
    """The stride at which all of these read the images y, each output one pixel; None: they want
    others, too, or the images are not to change."""
    if len(y.shape) != 4 or is_exposed(y) or not y.is_open:
        return None
    strides = {_stride_of_product(call, y) for call in readers}
    return strides.pop() if len(strides) == 1 else None


def _stride_of_product(call: Call, x: Tensor) -> tuple[int, ...] | None:
    """The stride of a convolution or pooling whose outputs depend on one pixel of x each, but not
    on all."""
    if call.name not in ("convolution", "max_pooling") or call.reads["x"] is not x:
        return None
    window = call.settings["kernel"] if call.name == "max_pooling" else call.reads["w"].shape[2:]
    stride = tuple(map(int, call.settings["stride"]))
    alone = {*window} == {1} and not any(call.settings["pad"])
    return stride if alone and max(stride) > 1 and "index" not in call.writes else None


def _every_pixel(y: Tensor, every: tuple[int, ...]) -> Tensor:
    """Images of the pixels alone that these steps reach."""
    extents = zip(y.shape[2:], every, strict=True)
    shape = (*y.shape[:2], *(-(-extent // step) for extent, step in extents))
    return Tensor(shape, name=y.name, flexible=True)


def _backward(calls: list[Call], norm: Call, readers: list[Call]) -> _Backward | None:
    """What a backward program does with the blob that a batch normalization makes, if its gradient
    is what these convolutions write alone, and nobody else reads their terms of it."""
    y, positions, users = norm.writes["y"], {call.position for call in readers}, Users([calls])
    backward = normalization_gradient(calls, norm)
    if backward is None:
        return None
    terms = backward.reads["dys"]
    of_readers = [call for call in calls if call.position in positions]
    filters = [
        call
        for call in of_readers
        if call.name == "convolution_backward_filter" and call.reads["x"] is y
    ]
    images = [
        call
        for call in of_readers
        if call.name == "convolution_backward_data" and call.writes["dx"] in terms
    ]
    if len(images) != len(readers) or {call.writes["dx"] for call in images} != {*terms}:
        return None
    for maker in images:
        term = maker.writes["dx"]
        if (
            maker.reads.keys() & {"addend", "relu_output"}
            or terms.count(term) > 1
            or not is_handed_over(calls, users, term, maker, backward)
        ):
            return None
    return _Backward(filters, images, backward)


def _skip(norm: Call, readers: list[Call], found: list[_Backward], every: tuple[int, ...]) -> None:
    """Let the blob have the pixels alone that these steps reach, and so its gradient's terms."""
    norm.writes["y"] = made = _every_pixel(norm.writes["y"], every)
    norm.settings["every"] = every
    for call in [*readers, *(call for each in found for call in each.filters)]:
        call.reads["x"] = made
        call.settings["stride"] = _ALL
    terms: dict[Tensor, Tensor] = {}
    for _, images, backward in found:
        for call in images:
            term = call.writes["dx"]
            call.writes["dx"] = terms.setdefault(
                term, Tensor(made.shape, name=term.name, like=made)
            )
            call.settings["stride"] = _ALL
        backward.reads["dys"] = [terms[term] for term in backward.reads["dys"]]
        if "relu_output" in backward.reads:
            backward.reads["relu_output"] = made
        backward.settings["every"] = every


def move_strides(calls: list[Call]) -> None:
    """Let convolutions and sums of two make only what convolutions with a stride read, where
    nothing runs backward. What a sum adds is picked before it, or made so in turn."""
    users = Users([calls])
    for call in reversed(list(calls)):
        y, terms = call.writes.get("y"), [term for pair in sum_of_two(call)[:1] for term in pair]
        makes = call.name == "convolution" or terms
        if not makes or not isinstance(y, Tensor) or any(reads_view(call, each) for each in terms):
            continue
        relus = [other for other in users.of(y) if is_call(other, "relu", x=y, y=y)]
        readers = [other for other in users.of(y) if other not in (call, *relus)]
        if (every := _common_stride(y, readers)) is None:
            continue
        made = _every_pixel(y, every)
        for each in (call, *relus):
            each.writes["y"] = made
            replace_read(each, y, made)
        if call.name == "convolution":
            strides = zip(call.settings["stride"], every, strict=True)
            call.settings["stride"] = [int(own) * step for own, step in strides]
        for term in terms:
            picked = _every_pixel(term, every)
            program = Program()
            program.enter(call.layer, call.position)
            program.max_pooling(term, picked, None, kernel=_ALL, stride=every, pad=(0, 0))
            calls.insert(calls.index(call), program.calls.pop())
            replace_read(call, term, picked)
        for reader in readers:
            reader.reads["x"], reader.settings["stride"] = made, _ALL
            picked = reader.writes["y"]
            others = [other for other in users.of(picked) if other is not reader]
            fixed = is_exposed(picked) or any(writes(other, picked) for other in others)
            if reader.name == "max_pooling" and not fixed:  # it picks all
                for other in others:
                    replace_read(other, picked, made)
                fuse(calls, (call, *relus)[-1], reader)
        users = Users([calls])
