"""Owns what detectors need, on the GPU: the kernels of detection.cu and multibox.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...boxes import SMALL
from ...tensor import Step, Tensor, sequence
from ..passes.elementwise import fill_step
from ..registry import CudaCall, primitive
from ..runtime.compile import Kernel, kernel_from, read
from ..runtime.launch import blocks_for, launch

LIST_BLOCK, WIDE_BLOCK = 256, 1024


def box_kernel(file: str, function: str, **macros: Any) -> Kernel:
    """A kernel of a file that stands on boxes.cuh."""
    lines = "".join(f"#define {macro} {value}\n" for macro, value in sorted(macros.items()))
    return kernel_from(lines + read("boxes.cuh") + read(f"{file}.cu"), function)


def thin(
    call: CudaCall,
    boxes: Tensor,
    scores: Tensor,
    room: int,
    *,
    threshold: float,
    background: int = -1,
    least: float | None = None,
    eta: float = 1.0,
    smallest: float = 0.0,
) -> tuple[Step, Tensor, Tensor]:
    """A step that keeps of each item and class of scores (N, P, C) up to `room` boxes, and where it
    puts which these are (N * C, room), and how many (N * C). boxes: (N or 1, P, L, 4)."""
    items, count, classes = scores.shape
    kept, kept_count = (
        call.temporary(shape, "int32") for shape in ((items * classes, room), (items * classes,))
    )
    scratch = [call.temporary((items * classes, each), "int32") for each in (count, room)]
    sizes = [count, classes, boxes.shape[2], boxes.shape[0] < items, room, background]
    limits = [-np.inf if least is None else least, threshold, eta, smallest]
    arguments = [
        boxes, scores, kept, kept_count, *scratch, *map(np.int32, sizes), *map(np.float32, limits)
    ]  # fmt: skip
    made = box_kernel("detection", "thin_boxes")
    return launch(made, items * classes, arguments, block=LIST_BLOCK), kept, kept_count


@primitive("own")
def detect_boxes(
    call: CudaCall,
    boxes: Tensor,
    confidence: Tensor,
    y: Tensor,
    length: Tensor,
    *,
    background: int,
    least: float | None,
    threshold: float,
    eta: float,
    top_k: int,
    keep: int,
) -> Step:
    boxes, scores, y, length = (call.row_major(each) for each in (boxes, confidence, y, length))
    items, count, classes = scores.shape
    room = min(count, top_k) if top_k >= 0 else count
    thinned, kept, kept_count = thin(
        call, boxes, scores, room, threshold=threshold, background=background, least=least, eta=eta
    )
    counts = call.temporary(kept_count.shape, "int32")
    sizes = [np.int32(each) for each in (count, classes, room, keep)]
    keeping = [scores, kept, kept_count, counts, *sizes]
    sizes = [np.int32(each) for each in (items, count, classes, boxes.shape[2], room)]
    writing = [boxes, scores, kept, counts, y, length, *sizes]
    steps = [
        launch(box_kernel("detection", name), items, arguments, block=WIDE_BLOCK)
        for name, arguments in (("keep_highest", keeping), ("write_detections", writing))
    ]
    return sequence([thinned, fill_step(y, -1), *steps])


@primitive("own")
def evaluate_boxes(
    call: CudaCall,
    found: Tensor,
    truth: Tensor,
    y: Tensor,
    length: Tensor,
    *,
    classes: int,
    background: int,
    threshold: float,
    difficult: bool,
) -> Step:
    found, truth, y, length = (call.row_major(each) for each in (found, truth, y, length))
    rows, known = found.shape[0], truth.shape[0]
    hit, has = call.temporary((rows,), "int32"), call.temporary((rows,), "int32")
    sizes = [np.int32(rows), np.int32(known)]
    looking = [found, truth, hit, has, *sizes, np.float32(threshold)]
    settings = [np.int32(each) for each in (classes, background, difficult)]
    judging = [found, truth, hit, has, y, length, *sizes, *settings]
    return sequence([
        launch(box_kernel("detection", "look_up_truth"), blocks_for(rows), looking),
        fill_step(y, -1),
        launch(box_kernel("detection", "judge_boxes"), blocks_for(max(rows, classes)), judging),
    ])  # fmt: skip


CODINGS = {"CORNER": 1, "CENTER_SIZE": 2, "CORNER_SIZE": 3}
BOUNDS = {None: 0, "prior": 1, "decoded": 2}


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
