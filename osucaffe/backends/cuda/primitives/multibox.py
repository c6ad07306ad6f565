"""Owns the matching and mining of boxes, and their losses: the kernels of multibox.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...boxes import SMALL
from ...tensor import Step, Tensor, sequence
from ..registry import CudaCall, primitive
from ..runtime.compile import Kernel
from ..runtime.launch import blocks_for, launch
from .detection import box_kernel, thin

CODINGS = {"CORNER": 1, "CENTER_SIZE": 2, "CORNER_SIZE": 3}
BOUNDS = {None: 0, "prior": 1, "decoded": 2}
WIDE_BLOCK = 1024


def _kernel(function: str, coding: str = "CORNER", scaled: bool = True, **macros: Any) -> Kernel:
    return box_kernel("multibox", function, CODING=CODINGS[coding], SCALED=int(scaled), **macros)


@primitive("own")
def decode_boxes(
    call: CudaCall, location: Tensor, priors: Tensor, boxes: Tensor, *, coding: str, scaled: bool
) -> Step:
    location, priors, boxes = (call.row_major(each) for each in (location, priors, boxes))
    _, count, wide, _ = location.shape
    total = location.count // 4
    arguments = [location, priors, boxes, np.int64(total), np.int32(count), np.int32(wide)]
    return launch(_kernel("decode_boxes", coding, scaled), blocks_for(total), arguments)


@primitive("own")
def match_boxes(
    call: CudaCall,
    priors: Tensor,
    truth: Tensor,
    match: Tensor,
    overlap: Tensor,
    *,
    location: Tensor | None = None,
    coding: str,
    scaled: bool,
    background: int,
    difficult: bool,
    threshold: float | None,
    inside: bool,
) -> Step:
    priors, truth, match, overlap = (
        call.row_major(each) for each in (priors, truth, match, overlap)
    )
    location = None if location is None else call.row_major(location)
    items, wide, count = match.shape
    room = (items * wide, truth.shape[0])
    scratch = [call.temporary(room, dtype) for dtype in ("int32", "float32", "int32")]
    sizes = [count, wide, truth.shape[0], background, difficult]
    arguments = [
        priors, truth, location, match, overlap, *scratch, *map(np.int32, sizes),
        np.float32(-1 if threshold is None else threshold), np.int32(inside),
    ]  # fmt: skip
    return launch(_kernel("match_boxes", coding, scaled), items * wide, arguments, block=WIDE_BLOCK)


class _Losses:
    """What both directions of the losses give their kernels."""

    def __init__(self, call: CudaCall, settings: dict[str, Any], *tensors: Tensor) -> None:
        self.tensors = [call.row_major(each) for each in tensors]
        location, confidence, *_, match = self.tensors
        items, count, classes = confidence.shape
        self.count = items * count
        self.sizes = [np.int32(each) for each in (items, count, classes)]
        self.macros = {
            name.upper(): int(settings[name])
            for name in ("smooth", "softmax", "background", "agnostic", "matched_only", "scaled")
        } | {
            "BOUNDED": BOUNDS[settings["bounded"]], "WIDE": location.shape[2],
            "MATCHES": match.shape[1], "CODING": CODINGS[settings["coding"]],
        }  # fmt: skip

    def launch(self, function: str, arguments: list[Any]) -> Step:
        """A step that launches a kernel, a thread for each prior."""
        made = box_kernel("multibox", function, **self.macros)
        return launch(made, blocks_for(self.count), [*self.tensors, *arguments])


@primitive("own")
def multibox_losses(
    call: CudaCall,
    location: Tensor,
    confidence: Tensor,
    priors: Tensor,
    truth: Tensor,
    match: Tensor,
    location_loss: Tensor,
    confidence_loss: Tensor,
    **settings: Any,
) -> Step:
    losses = _Losses(call, settings, location, confidence, priors, truth, match)
    out = [call.row_major(location_loss), call.row_major(confidence_loss)]
    return losses.launch("multibox_losses", [*out, *losses.sizes])


@primitive("own")
def multibox_losses_backward(
    call: CudaCall,
    location: Tensor,
    confidence: Tensor,
    priors: Tensor,
    truth: Tensor,
    match: Tensor,
    dloss: Tensor,
    *,
    chosen: Tensor | None = None,
    dlocation: Tensor | None = None,
    dconfidence: Tensor | None = None,
    weight: float,
    **settings: Any,
) -> Step:
    losses = _Losses(call, settings, location, confidence, priors, truth, match)
    ends = [
        None if each is None else call.row_major(each)
        for each in (chosen, dloss, dlocation, dconfidence)
    ]
    arguments = [*ends, *losses.sizes, np.float32(weight)]
    return losses.launch("multibox_losses_backward", arguments)


@primitive("own")
def mine_boxes(
    call: CudaCall,
    loss: Tensor,
    match: Tensor,
    overlap: Tensor,
    negative: Tensor,
    boxes: Tensor | None = None,
    *,
    hard: bool,
    ratio: float,
    most_overlap: float,
    size: int,
    threshold: float,
    top_k: int,
) -> Step:
    loss, match, overlap, negative = (
        call.row_major(each) for each in (loss, match, overlap, negative)
    )
    items, count = loss.shape
    if not hard or boxes is None:
        limits = [np.float32(ratio), np.float32(most_overlap), np.int32(size)]
        arguments = [loss, match, overlap, negative, np.int32(count), np.int32(hard), *limits]
        return launch(_kernel("mine_boxes"), items, arguments, block=WIDE_BLOCK)
    boxes = call.row_major(boxes)
    room = min(count, top_k) if top_k >= 0 else count
    thinned, kept, kept_count = thin(
        call, boxes.view((boxes.shape[0], count, 1, 4)), loss.view((items, count, 1)), room,
        threshold=threshold, smallest=SMALL,
    )  # fmt: skip
    sizes = [np.int32(each) for each in (count, room, size)]
    picking = [match, negative, kept, kept_count, *sizes]
    return sequence([thinned, launch(_kernel("pick_thinned"), items, picking, block=WIDE_BLOCK)])
