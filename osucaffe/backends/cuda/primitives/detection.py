"""Owns what detectors need, on the GPU: the kernels of detection.cu and multibox.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...boxes import SMALL
from ...primitives.detection import (
    Coded,
    DecodeBoxes,
    DetectBoxes,
    EvaluateBoxes,
    MatchBoxes,
    MineBoxes,
    Multibox,
    MultiboxLosses,
    MultiboxLossesBackward,
)
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


def _int32(*values: int) -> list[np.int32]:
    return [np.int32(value) for value in values]


@primitive("plain")
def detect_boxes(call: CudaCall, a: DetectBoxes) -> Step:
    items, count, classes = a.confidence.shape
    room = min(count, a.top_k) if a.top_k >= 0 else count
    thinned, kept, kept_count = thin(
        call, a.boxes, a.confidence, room,
        threshold=a.threshold, background=a.background, least=a.least, eta=a.eta,
    )  # fmt: skip
    counts = call.temporary(kept_count.shape, "int32")
    keeping = [a.confidence, kept, kept_count, counts, *_int32(count, classes, room, a.keep)]
    sizes = _int32(items, count, classes, a.boxes.shape[2], room)
    writing = [a.boxes, a.confidence, kept, counts, a.y, a.length, *sizes]
    steps = [
        launch(box_kernel("detection", name), items, arguments, block=WIDE_BLOCK)
        for name, arguments in (("keep_highest", keeping), ("write_detections", writing))
    ]
    return sequence([thinned, fill_step(a.y, -1), *steps])


@primitive("plain")
def evaluate_boxes(call: CudaCall, a: EvaluateBoxes) -> Step:
    rows = a.found.shape[0]
    hit, has = call.temporary((rows,), "int32"), call.temporary((rows,), "int32")
    sizes = _int32(rows, a.truth.shape[0])
    looking = [a.found, a.truth, hit, has, *sizes, np.float32(a.threshold)]
    settings = _int32(a.classes, a.background, a.difficult)
    judging = [a.found, a.truth, hit, has, a.y, a.length, *sizes, *settings]
    return sequence([
        launch(box_kernel("detection", "look_up_truth"), blocks_for(rows), looking),
        fill_step(a.y, -1),
        launch(box_kernel("detection", "judge_boxes"), blocks_for(max(rows, a.classes)), judging),
    ])  # fmt: skip


CODINGS = {"CORNER": 1, "CENTER_SIZE": 2, "CORNER_SIZE": 3}
BOUNDS = {None: 0, "prior": 1, "decoded": 2}


def _kernel(function: str, a: Coded | None = None, **macros: Any) -> Kernel:
    """A kernel of multibox.cu; a: how the boxes that it reads are coded."""
    coding, scaled = ("CORNER", True) if a is None else (a.coding, a.scaled)
    return box_kernel("multibox", function, CODING=CODINGS[coding], SCALED=int(scaled), **macros)


@primitive("plain")
def decode_boxes(call: CudaCall, a: DecodeBoxes) -> Step:
    _, count, wide, _ = a.location.shape
    total = a.location.count // 4
    arguments = [a.location, a.priors, a.boxes, np.int64(total), *_int32(count, wide)]
    return launch(_kernel("decode_boxes", a), blocks_for(total), arguments)


@primitive("plain")
def match_boxes(call: CudaCall, a: MatchBoxes) -> Step:
    items, wide, count = a.match.shape
    room = (items * wide, a.truth.shape[0])
    scratch = [call.temporary(room, dtype) for dtype in ("int32", "float32", "int32")]
    arguments = [
        a.priors, a.truth, a.location, a.match, a.overlap, *scratch,
        *_int32(count, wide, a.truth.shape[0], a.background, a.difficult),
        np.float32(-1 if a.threshold is None else a.threshold), np.int32(a.inside),
    ]  # fmt: skip
    return launch(_kernel("match_boxes", a), items * wide, arguments, block=WIDE_BLOCK)


def _losses(a: Multibox, function: str, *ends: Any) -> Step:
    """A step that launches a kernel of the losses, a thread for each prior; ends: its arguments
    behind those that both directions share."""
    items, count, _ = a.confidence.shape
    names = ("smooth", "softmax", "background", "agnostic", "matched_only")
    macros = {name.upper(): int(getattr(a, name)) for name in names}
    macros |= {"BOUNDED": BOUNDS[a.bounded], "WIDE": a.location.shape[2]}
    made = _kernel(function, a, MATCHES=a.match.shape[1], **macros)
    given = [a.location, a.confidence, a.priors, a.truth, a.match, *ends]
    return launch(made, blocks_for(items * count), given)


@primitive("plain")
def multibox_losses(call: CudaCall, a: MultiboxLosses) -> Step:
    sizes = _int32(*a.confidence.shape)
    return _losses(a, "multibox_losses", a.location_loss, a.confidence_loss, *sizes)


@primitive("plain")
def multibox_losses_backward(call: CudaCall, a: MultiboxLossesBackward) -> Step:
    ends = [a.chosen, a.dloss, a.dlocation, a.dconfidence, *_int32(*a.confidence.shape)]
    return _losses(a, "multibox_losses_backward", *ends, np.float32(a.weight))


@primitive("plain")
def mine_boxes(call: CudaCall, a: MineBoxes) -> Step:
    items, count = a.loss.shape
    if not a.hard or a.boxes is None:
        limits = [np.float32(a.ratio), np.float32(a.most_overlap), np.int32(a.size)]
        given = [a.loss, a.match, a.overlap, a.negative, *_int32(count, a.hard), *limits]
        return launch(_kernel("mine_boxes"), items, given, block=WIDE_BLOCK)
    room = min(count, a.top_k) if a.top_k >= 0 else count
    thinned, kept, kept_count = thin(
        call, a.boxes.view((a.boxes.shape[0], count, 1, 4)), a.loss.view((items, count, 1)), room,
        threshold=a.threshold, smallest=SMALL,
    )  # fmt: skip
    picking = [a.match, a.negative, kept, kept_count, *_int32(count, room, a.size)]
    return sequence([thinned, launch(_kernel("pick_thinned"), items, picking, block=WIDE_BLOCK)])
