"""The geometry of boxes by NumPy: overlaps, codes against priors, which to keep of many.

Boxes are rows (xmin, ymin, xmax, ymax), in shares of an image.
"""

from __future__ import annotations

import numpy as np

without_warnings = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""A net that has learned nothing yet may tell boxes without end."""
_AT_ONCE = 512
"""How many boxes are compared with one another all at once."""
SMALL = 1e-5
"""Area below which mining leaves a box out."""


def areas(boxes: np.ndarray) -> np.ndarray:
    """Of (..., 4) boxes; 0 where a side is negative."""
    width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    area: np.ndarray = np.where((width < 0) | (height < 0), 0, width * height)
    return area


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of (..., 4) boxes, broadcast against each other."""
    width = np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0])
    height = np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1])
    inside = np.maximum(width, 0) * np.maximum(height, 0)
    union = areas(a) + areas(b) - inside
    return np.divide(inside, union, out=np.zeros_like(inside), where=inside > 0)


def _centres(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]


def encode(boxes: np.ndarray, priors: np.ndarray, coding: str) -> np.ndarray:
    """Codes (..., 4) of boxes against priors of the same shape, without variances."""
    if coding == "CORNER":
        return boxes - priors
    centre, size = _centres(priors)
    if coding == "CORNER_SIZE":
        coded: np.ndarray = (boxes - priors) / np.concatenate([size, size], axis=-1)
        return coded
    other, extent = _centres(boxes)
    return np.concatenate([(other - centre) / size, np.log(extent / size)], axis=-1)


@without_warnings
def decode(codes: np.ndarray, priors: np.ndarray, coding: str) -> np.ndarray:
    """The reverse of `encode`."""
    if coding == "CORNER":
        return priors + codes
    centre, size = _centres(priors)
    if coding == "CORNER_SIZE":
        boxes: np.ndarray = priors + codes * np.concatenate([size, size], axis=-1)
        return boxes
    middle, half = codes[..., :2] * size + centre, np.exp(codes[..., 2:]) * size / 2
    return np.concatenate([middle - half, middle + half], axis=-1)


def nms(
    boxes: np.ndarray, scores: np.ndarray, threshold: float, *, top_k: int = -1, eta: float = 1.0
) -> np.ndarray:
    """The indices of the boxes that overlap no better one too much: see `detect_boxes`."""
    order = np.argsort(-scores, kind="stable")
    if top_k >= 0:
        order = order[:top_k]
    kept: list[int] = []
    if eta < 1:
        for index in order.tolist():
            if (iou(boxes[index], boxes[kept]) <= threshold).all():
                kept.append(index)
                threshold *= eta if threshold > 0.5 else 1
    elif len(order) <= _AT_ONCE:
        near = iou(boxes[order][:, None], boxes[order]) > threshold
        free = np.ones(len(order), bool)
        for place, index in enumerate(order.tolist()):
            if free[place]:
                kept.append(index)
                free &= ~near[place]
    else:
        while len(order):
            kept.append(int(order[0]))
            left = iou(boxes[order[0]], boxes[order]) <= threshold
            left[0] = False
            order = order[left]
    return np.array(kept, np.int64)


def match_detections(shared: np.ndarray, skipped: np.ndarray, threshold: float) -> np.ndarray:
    """(true, false) for boxes, the highest scores first, by their overlaps with truth (N, G).

    The first to hit a truth by the threshold is true; what hits one that is skipped is neither.
    """
    verdict = np.zeros((len(shared), 2))
    hit = np.zeros(len(skipped), bool)
    for at, own in enumerate(shared):
        best = int(np.argmax(own)) if len(own) else 0
        if not len(own) or own[best] < threshold:
            verdict[at] = 0, 1
        elif not skipped[best]:
            verdict[at] = (0, 1) if hit[best] else (1, 0)
            hit[best] = True
    return verdict
