"""The GPU primitives of detectors: the kernels of detection.cu and multibox.cu."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ...backends.cuda.passes.elementwise import fill_step
from ...backends.cuda.registry import Context, primitive
from ...backends.cuda.runtime.compile import Kernel, kernel
from ...backends.cuda.runtime.launch import blocks_for, launch
from ...backends.tensor import Run, Tensor, sequence
from ..boxes import SMALL
from . import primitives as ops

DETECTION, MULTIBOX = (Path(__file__).with_name(name) for name in ("detection.cu", "multibox.cu"))
LIST_BLOCK, WIDE_BLOCK = 256, 1024


def nms(
    ctx: Context,
    boxes: Tensor,
    scores: Tensor,
    room: int,
    *,
    threshold: float,
    background: int = -1,
    least: float | None = None,
    eta: float = 1.0,
    smallest: float = 0.0,
) -> tuple[Run, Tensor, Tensor]:
    """A step that keeps of each item and class of scores (N, P, C) up to `room` boxes, and where it
    puts which these are (N * C, room), and how many (N * C). boxes: (N or 1, P, L, 4)."""
    items, count, classes = scores.shape
    kept, kept_count = (
        ctx.temporary(shape, "int32") for shape in ((items * classes, room), (items * classes,))
    )
    scratch = [ctx.temporary((items * classes, each), "int32") for each in (count, room)]
    arguments = [
        boxes, scores, kept, kept_count, *scratch, count, classes, boxes.shape[2],
        boxes.shape[0] < items, room, background, -math.inf if least is None else least, threshold,
        eta, smallest,
    ]  # fmt: skip
    function = kernel(DETECTION, "nms")
    return launch(function, items * classes, arguments, block=LIST_BLOCK), kept, kept_count


@primitive("plain")
def detect_boxes(ctx: Context, a: ops.DetectBoxes) -> Run:
    items, count, classes = a.confidence.shape
    room = min(count, a.top_k) if a.top_k >= 0 else count
    thinned, kept, kept_count = nms(
        ctx, a.boxes, a.confidence, room,
        threshold=a.threshold, background=a.background, least=a.least, eta=a.eta,
    )  # fmt: skip
    counts = ctx.temporary(kept_count.shape, "int32")
    keeping = [a.confidence, kept, kept_count, counts, count, classes, room, a.keep]
    writing = [
        a.boxes, a.confidence, kept, counts, a.y, a.length, items, count, classes, a.boxes.shape[2],
        room,
    ]  # fmt: skip
    steps = [
        launch(kernel(DETECTION, name), items, arguments, block=WIDE_BLOCK)
        for name, arguments in (("keep_highest", keeping), ("write_detections", writing))
    ]
    return sequence([thinned, fill_step(a.y, -1), *steps])


@primitive("plain")
def evaluate_boxes(ctx: Context, a: ops.EvaluateBoxes) -> Run:
    rows, known = a.found.shape[0], a.ground_truth.shape[0]
    hit, has = ctx.temporary((rows,), "int32"), ctx.temporary((rows,), "int32")
    looking = [a.found, a.ground_truth, hit, has, rows, known, a.threshold]
    judging = [
        a.found, a.ground_truth, hit, has, a.y, a.length, rows, known, a.classes, a.background,
        a.difficult,
    ]  # fmt: skip
    return sequence([
        launch(kernel(DETECTION, "look_up_ground_truth"), blocks_for(rows), looking),
        fill_step(a.y, -1),
        launch(kernel(DETECTION, "match_detections"), blocks_for(max(rows, a.classes)), judging),
    ])  # fmt: skip


CODINGS = {"CORNER": 1, "CENTER_SIZE": 2, "CORNER_SIZE": 3}
BOUNDS = {None: 0, "prior": 1, "decoded": 2}


def _kernel(function: str, a: ops.Coded | None = None, **macros: Any) -> Kernel:
    """A kernel of multibox.cu; a: how the boxes that it reads are coded."""
    coding, scaled = ("CORNER", True) if a is None else (a.coding, a.scaled)
    return kernel(MULTIBOX, function, CODING=CODINGS[coding], SCALED=scaled, **macros)


@primitive("plain")
def decode_boxes(ctx: Context, a: ops.DecodeBoxes) -> Run:
    _, count, wide, _ = a.location.shape
    total = a.location.count // 4
    arguments = [a.location, a.priors, a.boxes, total, count, wide]
    return launch(_kernel("decode_boxes", a), blocks_for(total), arguments)


@primitive("plain")
def match_boxes(ctx: Context, a: ops.MatchBoxes) -> Run:
    items, wide, count = a.match.shape
    room = (items * wide, a.ground_truth.shape[0])
    scratch = [ctx.temporary(room, dtype) for dtype in ("int32", "float32", "int32")]
    arguments = [
        a.priors, a.ground_truth, a.location, a.match, a.iou, *scratch,
        count, wide, a.ground_truth.shape[0], a.background, a.difficult,
        -1 if a.threshold is None else a.threshold, a.inside,
    ]  # fmt: skip
    return launch(_kernel("match_boxes", a), items * wide, arguments, block=WIDE_BLOCK)


def _losses(a: ops.Multibox, *ends: Any) -> Run:
    """A step that launches the primitive's kernel, a thread for each prior; ends: its arguments
    after those that both directions share."""
    items, count, _ = a.confidence.shape
    names = ("smooth", "softmax", "background", "agnostic", "matched_only")
    macros = {name.upper(): int(getattr(a, name)) for name in names}
    macros |= {"BOUNDED": BOUNDS[a.bounded], "WIDE": a.location.shape[2]}
    function = _kernel(a.name, a, MATCHES=a.match.shape[1], **macros)
    arguments = [a.location, a.confidence, a.priors, a.ground_truth, a.match, *ends]
    return launch(function, blocks_for(items * count), arguments)


@primitive("plain")
def multibox_losses(ctx: Context, a: ops.MultiboxLosses) -> Run:
    return _losses(a, a.location_loss, a.confidence_loss, *a.confidence.shape)


@primitive("plain")
def multibox_losses_backward(ctx: Context, a: ops.MultiboxLossesBackward) -> Run:
    gradients = [a.chosen, a.dloss, a.dlocation, a.dconfidence]
    return _losses(a, *gradients, *a.confidence.shape, a.weight)


@primitive("plain")
def mine_boxes(ctx: Context, a: ops.MineBoxes) -> Run:
    items, count = a.loss.shape
    if not a.hard or a.boxes is None:
        numbers = [count, a.hard, a.ratio, a.most_overlap, a.size]
        arguments = [a.loss, a.match, a.iou, a.negative, *numbers]
        return launch(_kernel("mine_boxes"), items, arguments, block=WIDE_BLOCK)
    room = min(count, a.top_k) if a.top_k >= 0 else count
    thinned, kept, kept_count = nms(
        ctx, a.boxes.view((a.boxes.shape[0], count, 1, 4)), a.loss.view((items, count, 1)), room,
        threshold=a.threshold, smallest=SMALL,
    )  # fmt: skip
    picking = [a.match, a.negative, kept, kept_count, count, room, a.size]
    return sequence([thinned, launch(_kernel("pick_thinned"), items, picking, block=WIDE_BLOCK)])
