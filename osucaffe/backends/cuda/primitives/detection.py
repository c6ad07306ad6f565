"""Owns what comes out of a detector, and its comparison with truth: kernels of detection.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

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
