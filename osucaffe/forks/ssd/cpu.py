"""The NumPy primitives of detectors: boxes decoded, matched with the truth, mined, thinned,
scored."""

from __future__ import annotations

import numpy as np

from ...backends.cpu.registry import Context, direct
from ...backends.primitives.losses import MAX_LOSS
from ..boxes import SMALL, areas, decode, encode, iou, match_detections, nms, without_warnings
from . import primitives as ops


@direct()
@without_warnings
def detect_boxes(ctx: Context, a: ops.DetectBoxes) -> None:
    count, _, classes = a.confidence.shape

    def item_rows(item: int) -> np.ndarray:
        """The rows of an item, by class and score."""
        found = [np.empty((0, 7), a.y.array.dtype)]
        for label in range(classes):
            scores = a.confidence.array[item, :, label]
            if label == a.background:
                continue
            (eligible,) = np.nonzero(scores > (-np.inf if a.least is None else a.least))
            places = a.boxes.array[item, eligible, label if a.boxes.shape[2] > 1 else 0]
            kept = nms(places, scores[eligible], a.threshold, top_k=a.top_k, eta=a.eta)
            ends = np.broadcast_to([item, label], (len(kept), 2))
            found.append(np.concatenate([ends, scores[eligible[kept], None], places[kept]], axis=1))
        rows = np.concatenate(found)
        if 0 <= a.keep < len(rows):
            rows = rows[np.sort(np.argsort(-rows[:, 2], kind="stable")[: a.keep])]
        return rows

    rows = np.concatenate([item_rows(item) for item in range(count)])
    if not len(rows):
        rows = np.full((count, 7), -1.0)
        rows[:, 0] = np.arange(count)
    a.y.array.fill(-1)
    a.y.array[: len(rows)] = rows
    a.length.array.fill(len(rows))


@direct()
def evaluate_boxes(ctx: Context, a: ops.EvaluateBoxes) -> None:
    goals, rows = a.ground_truth.array[a.ground_truth.array[:, 0] != -1], a.found.array
    counted = goals if a.difficult else goals[goals[:, 7] == 0]
    labels = [label for label in range(a.classes) if label != a.background]
    a.y.array.fill(-1)
    at = len(labels)
    a.y.array[:at, 1] = labels
    a.y.array[:at, 2] = [(counted[:, 1] == label).sum() for label in labels]
    rows = rows[(rows[:, 1] != -1) & (rows[:, 0] != -1)]
    for image, label in np.unique(rows[:, :2], axis=0):
        mine = rows[(rows[:, 0] == image) & (rows[:, 1] == label)]
        goal = goals[(goals[:, 0] == image) & (goals[:, 1] == label)]
        if len(goal):
            mine = mine[np.argsort(-mine[:, 2], kind="stable")]
        part = a.y.array[at : at + len(mine)]
        shared = iou(mine[:, None, 3:7], goal[:, 3:7])
        skipped = (goal[:, 7] != 0) & (not a.difficult)
        part[:, :3], part[:, 3:] = mine[:, :3], match_detections(shared, skipped, a.threshold)
        at += len(mine)
    a.length.array.fill(at)


def decoded(location: np.ndarray, priors: np.ndarray, coding: str, scaled: bool) -> np.ndarray:
    """The boxes (N, P, L, 4) of their codes."""
    boxes, variances = priors[:, :, None]
    return decode(location * variances if scaled else location, boxes, coding)


@direct()
def decode_boxes(ctx: Context, a: ops.DecodeBoxes) -> None:
    a.boxes.array[...] = decoded(a.location.array, a.priors.array, a.coding, a.scaled)


MIN_OVERLAP = 1e-6
"""Boxes that overlap less do not meet."""


def _match(
    boxes: np.ndarray, ground_truth: np.ndarray, threshold: float | None, inside: bool
) -> tuple[np.ndarray, np.ndarray]:
    """For each of the boxes (P, 4) which of truth (T, 4) it has (-1: none, -2: ignored), and the
    overlap."""
    if not len(ground_truth):
        return np.full(len(boxes), -2), np.zeros(len(boxes), boxes.dtype)
    found = np.full(len(boxes), -1)
    shared = iou(boxes[:, None], ground_truth)
    shared[shared <= MIN_OVERLAP] = 0
    if inside:
        beyond = ((boxes < 0) | (boxes > 1)).any(axis=1)
        found[beyond], shared[beyond] = -2, 0
    best = shared.max(axis=1)
    left = shared.copy()
    for _ in ground_truth:
        box, row = divmod(int(np.argmax(left)), len(ground_truth))
        if not left[box, row]:
            break
        found[box], best[box] = row, shared[box, row]
        left[box], left[:, row] = 0, 0
    if threshold is not None:
        free = (found == -1) & (best >= threshold) & (best > 0)
        found[free] = shared[free].argmax(axis=1)
    return found, best


@direct()
@without_warnings
def match_boxes(ctx: Context, a: ops.MatchBoxes) -> None:
    count, classes, _ = a.match.shape
    rows = a.ground_truth.array
    counts = np.ones(len(rows), bool) if a.difficult else rows[:, 7] == 0
    places = np.broadcast_to(a.priors.array[0][:, None], (count, a.priors.shape[1], 1, 4))
    if a.location is not None:
        places = decoded(a.location.array, a.priors.array, a.coding, a.scaled)
    a.match.array[...], a.iou.array[...] = -2, 0
    for item, number in np.ndindex(count, classes):
        if classes > 1 and number == a.background:
            continue
        mine = counts & (rows[:, 0] == item)
        if classes > 1:
            mine &= rows[:, 1] == number
        (indices,) = np.nonzero(mine)
        found, best = _match(places[item, :, number], rows[indices, 3:7], a.threshold, a.inside)
        whole = np.append(indices, [-2, -1])  # -2 and -1 pick themselves, from the end
        a.match.array[item, number], a.iou.array[item, number] = whole[found], best


class _Boxes:
    """The matched boxes of a batch: which (item, box, prior) they are, and how their codes err.

    label: their truth's; error (B, 4): of their codes with variances.
    """

    def __init__(self, a: ops.Multibox) -> None:
        location, ground_truth, match = a.location.array, a.ground_truth.array, a.match.array
        self.places = np.nonzero(match > -1)
        item, _, prior = self.places
        target = ground_truth[match[self.places].astype(np.int64)]
        self.label = target[:, 1].astype(np.int64)
        width = location.shape[2]
        self.place = (item, prior, self.label if width > 1 else np.zeros_like(item))
        valid = self.place[2] < width
        self.place = (item, prior, np.where(valid, self.place[2], 0))
        boxes, variances = a.priors.array[:, prior]
        goal = encode(target[:, 3:7], boxes, a.coding)
        codes = location[self.place]
        self.error = (codes if a.scaled else codes / variances) - goal / variances
        if a.bounded is not None:
            if a.bounded == "decoded":
                codes = codes * variances if a.scaled else codes
                boxes = decode(codes, boxes, a.coding)
            self.error = np.where((boxes < 0) | (boxes > 1), 0, self.error)


def _loss(error: np.ndarray, smooth: bool) -> np.ndarray:
    size, half = np.abs(error), 0.5 * error * error
    return np.where(size < 1, half, size - 0.5) if smooth else half


def _targets(boxes: _Boxes, a: ops.Multibox) -> np.ndarray:
    """1 at the label of each prior (N, P, C), or at none; NaN for a prior with a wrong label."""
    shape, background = a.confidence.shape, a.background
    targets = np.zeros(shape, np.float32)
    matched = np.zeros(shape[:2], bool)
    item, number, prior = boxes.places
    matched[item, prior] = True
    if not a.matched_only and background < shape[2]:
        targets[..., background] = ~matched
    label = np.full_like(boxes.label, background + 1) if a.agnostic else boxes.label
    wrong = (label < 0) | (label >= shape[2]) | (label == background)
    label, value = np.where(wrong, 0, label), np.where(wrong, np.nan, 1)
    for each in np.unique(number):  # of several boxes to a prior, softmax takes the last
        own = number == each
        if a.softmax:
            targets[item[own], prior[own]] = 0
        targets[item[own], prior[own], label[own]] = value[own]
    return targets


@direct()
@without_warnings
def multibox_losses(ctx: Context, a: ops.MultiboxLosses) -> None:
    boxes = _Boxes(a)
    a.location_loss.array.fill(0)
    item, _, prior = boxes.places
    losses = _loss(boxes.error, a.smooth).sum(axis=1)
    np.add.at(a.location_loss.array, (item, prior), losses)
    x = a.confidence.array
    targets = _targets(boxes, a)
    if a.softmax:
        top = x.max(axis=2)
        total = top + np.log(np.exp(x - top[..., None]).sum(axis=2))
        a.confidence_loss.array[...] = np.clip(total - (x * targets).sum(axis=2), 0, MAX_LOSS)
    else:
        each = np.maximum(x, 0) - x * targets + np.log1p(np.exp(-np.abs(x)))
        a.confidence_loss.array[...] = each.sum(axis=2)


@direct()
@without_warnings
def multibox_losses_backward(ctx: Context, a: ops.MultiboxLossesBackward) -> None:
    boxes = _Boxes(a)
    scale = a.dloss.array.item()
    if a.dlocation is not None:
        a.dlocation.array.fill(0)
        slope = np.clip(boxes.error, -1, 1) if a.smooth else boxes.error
        np.add.at(a.dlocation.array, boxes.place, slope * (a.weight * scale))
    if a.dconfidence is not None:
        x, out = a.confidence.array, a.dconfidence.array
        targets = _targets(boxes, a)
        if a.softmax:
            np.exp(x - x.max(axis=2, keepdims=True), out=out)
            out /= out.sum(axis=2, keepdims=True)
        else:
            np.copyto(out, 0.5 + 0.5 * np.tanh(0.5 * x))
        out -= targets
        out *= scale
        if a.chosen is not None:
            counts = a.chosen.array > 0
            counts[boxes.places[0], boxes.places[2]] = True
            out[~counts] = 0


@direct()
@without_warnings
def mine_boxes(ctx: Context, a: ops.MineBoxes) -> None:
    def pick(item: int) -> np.ndarray:
        """The priors of an item that are chosen."""
        losses, matches = a.loss.array[item], a.match.array[item]
        if not a.hard:
            (eligible,) = np.nonzero((matches == -1) & (a.iou.array[item] < a.most_overlap))
            most = int(np.float32((matches > -1).sum()) * np.float32(a.ratio))
            return eligible[np.argsort(-losses[eligible], kind="stable")[:most]]
        if a.boxes is None:
            return np.argsort(-losses, kind="stable")[: a.size]
        places = a.boxes.array[item if len(a.boxes.array) > 1 else 0]
        order = np.argsort(-losses, kind="stable")
        order = order[: a.top_k if a.top_k >= 0 else None]
        (large,) = np.nonzero(areas(places[order]) >= SMALL)
        order = order[large]
        return order[nms(places[order], losses[order], a.threshold)][: a.size]

    a.negative.array.fill(0)
    for item in range(len(a.loss.array)):
        chosen = np.zeros(a.loss.shape[1], bool)
        chosen[pick(item)] = True
        matches = a.match.array[item]
        a.negative.array[item] = chosen & (matches == -1)
        if a.hard:
            matches[(matches > -1) & ~chosen] = -1
