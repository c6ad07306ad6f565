"""Owns the pass that lets batch normalization leave out pixels that nobody reads.

A convolution of 1 x 1 filters with a stride, as at the head of each stage of a ResNet, reads one
pixel of four. Where all that read a blob are such, batch normalization makes these alone; the
convolutions become products of all that there is, and the gradients that they write have no zeros
between. The others of its pixels are made by nobody: its owner must not look at them.
"""

from __future__ import annotations

from typing import NamedTuple

from ...backends.tensor import Call, Tensor
from .editing import Programs, Users

_ALL = (1, 1)


class _Backward(NamedTuple):
    """What a backward program does with the blob: the gradients of the filters and of the blob by
    the convolutions, and that of the batch normalization, which reads the latter."""

    filters: list[Call]
    images: list[Call]
    norm: Call


def skip_pixels(programs: Programs, *, offered: bool) -> None:
    """Let batch normalizations make only what convolutions with a stride read. offered:
    whether the backend gains by that (`Backend.skips_pixels`)."""
    users = Users(programs)
    for norm in [call for call in programs[0] if offered and call.name == "batch_norm"]:
        y = norm.writes["y"]
        if len(y.shape) != 4 or y.persistent or y.base or y.viewed or not y.is_open:
            continue
        readers = [call for call in users.of(y) if call in programs[0] and call is not norm]
        strides = {_stride_of_product(call, y) for call in readers}
        if len(strides) != 1 or y in norm.read_tensors():
            continue
        found = [_backward(calls, norm, readers) for calls in programs[1:]]
        known = [call for each in found if each for call in (*each.filters, each.norm)]
        if (every := strides.pop()) and None not in found and users.only(y, norm, *readers, *known):
            _skip(norm, readers, [each for each in found if each], every)


def _stride_of_product(call: Call, x: Tensor) -> tuple[int, ...] | None:
    """The stride of a convolution whose outputs depend on one pixel of x each, but not on all."""
    if call.name != "convolution" or call.reads["x"] is not x or any(call.settings["pad"]):
        return None
    stride = tuple(map(int, call.settings["stride"]))
    return stride if {*call.reads["w"].shape[2:]} == {1} and max(stride) > 1 else None


def _backward(calls: list[Call], norm: Call, readers: list[Call]) -> _Backward | None:
    """What a backward program does with the blob that a batch normalization makes, if its gradient
    is what these convolutions write alone, and nobody else reads their terms of it."""
    y, positions, users = norm.writes["y"], {call.position for call in readers}, Users([calls])
    norms = [
        call
        for call in calls
        if call.name == "batch_norm_backward" and call.reads["x"] is norm.reads["x"]
    ]
    if len(norms) != 1:
        return None
    (backward,) = norms
    terms, written = backward.reads["dys"], [*backward.written_tensors()]
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
        others = [call for call in users.of(term) if call not in (maker, backward)]
        later = all(calls.index(call) > calls.index(backward) for call in others)
        if (
            (others and not (later and term in written))
            or maker.reads.keys() & {"addend", "relu_output"}
            or terms.count(term) > 1
            or term.persistent
            or term.base
            or term.viewed
        ):
            return None
    return _Backward(filters, images, backward)


def _skip(norm: Call, readers: list[Call], found: list[_Backward], every: tuple[int, ...]) -> None:
    """Let the blob have the pixels alone that these steps reach, and so its gradient's terms."""
    y = norm.writes["y"]
    extents = zip(y.shape[2:], every, strict=True)
    shape = (*y.shape[:2], *(-(-extent // step) for extent, step in extents))
    made = Tensor(shape, name=y.name, flexible=True)
    norm.writes["y"] = made
    norm.settings["every"] = every
    for call in [*readers, *(call for each in found for call in each.filters)]:
        call.reads["x"] = made
        call.settings["stride"] = _ALL
    terms: dict[Tensor, Tensor] = {}
    for _, images, backward in found:
        for call in images:
            term = call.writes["dx"]
            call.writes["dx"] = terms.setdefault(term, Tensor(shape, name=term.name, like=made))
            call.settings["stride"] = _ALL
        backward.reads["dys"] = [terms[term] for term in backward.reads["dys"]]
        if "relu_output" in backward.reads:
            backward.reads["relu_output"] = made
        backward.settings["every"] = every
