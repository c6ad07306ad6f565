"""Owns what comes out of a detector, and its comparison with the truth, by NumPy."""

from __future__ import annotations

import numpy as np

from ..boxes import judge, overlaps, thin, without_warnings
from ..tensor import Step, Tensor
from .registry import CpuCall, primitive


@primitive()
def detect_boxes(
    call: CpuCall,
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
    count, _, classes = confidence.shape

    def item_rows(item: int) -> np.ndarray:
        """The rows of an item, by class and score."""
        found = [np.empty((0, 7), y.array.dtype)]
        for label in range(classes):
            scores = confidence.array[item, :, label]
            if label == background:
                continue
            (able,) = np.nonzero(scores > (-np.inf if least is None else least))
            places = boxes.array[item, able, label if boxes.shape[2] > 1 else 0]
            kept = thin(places, scores[able], threshold, top_k=top_k, eta=eta)
            ends = np.broadcast_to([item, label], (len(kept), 2))
            found.append(np.concatenate([ends, scores[able[kept], None], places[kept]], axis=1))
        rows = np.concatenate(found)
        if 0 <= keep < len(rows):
            rows = rows[np.sort(np.argsort(-rows[:, 2], kind="stable")[:keep])]
        return rows

    @without_warnings
    def step() -> None:
        rows = np.concatenate([item_rows(item) for item in range(count)])
        if not len(rows):
            rows = np.full((count, 7), -1.0)
            rows[:, 0] = np.arange(count)
        y.array.fill(-1)
        y.array[: len(rows)] = rows
        length.array.fill(len(rows))

    return step


@primitive()
def evaluate_boxes(
    call: CpuCall,
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
    def step() -> None:
        goals, rows = truth.array[truth.array[:, 0] != -1], found.array
        counted = goals if difficult else goals[goals[:, 7] == 0]
        labels = [label for label in range(classes) if label != background]
        y.array.fill(-1)
        at = len(labels)
        y.array[:at, 1] = labels
        y.array[:at, 2] = [(counted[:, 1] == label).sum() for label in labels]
        rows = rows[(rows[:, 1] != -1) & (rows[:, 0] != -1)]
        for image, label in np.unique(rows[:, :2], axis=0):
            mine = rows[(rows[:, 0] == image) & (rows[:, 1] == label)]
            goal = goals[(goals[:, 0] == image) & (goals[:, 1] == label)]
            if len(goal):
                mine = mine[np.argsort(-mine[:, 2], kind="stable")]
            part = y.array[at : at + len(mine)]
            shared = overlaps(mine[:, None, 3:7], goal[:, 3:7])
            skipped = (goal[:, 7] != 0) & (not difficult)
            part[:, :3], part[:, 3:] = mine[:, :3], judge(shared, skipped, threshold)
            at += len(mine)
        length.array.fill(at)

    return step
