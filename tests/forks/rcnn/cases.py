"""The cases of the primitives that look at regions of images, and plain versions of these."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from tests.backends.cases import Gradients, both_ways, case, distinct, eighths
from tests.backends.running import Output

MAPS = (2, 4, 4, 5)
ROIS = np.array([
    [0, 2, 1, 7, 8],  # halves are rounded away from 0
    [1, -3, 0, 30, 4],  # beyond three edges
    [1, 3, 3, 3, 3],  # one place
    [0, 40, 40, 44, 44],  # outside
    [0, 8, 7, 2, 1],  # the corners exchanged
    [7, 0, 0, 9, 9],  # of no image
    [0, 1.5, 2.5, 10, 6],
], np.float64)  # fmt: skip


def away(value: float) -> int:
    return math.floor(abs(value) + 0.5) * (1 if value > 0 else -1)


def grown(roi, pad):
    """Image, x1, y1, x2, y2."""
    image, x1, y1, x2, y2 = roi
    wide, high = pad * (x2 - x1 + 1), pad * (y2 - y1 + 1)
    return int(image), x1 - wide, y1 - high, x2 + wide, y2 + high


def bins_of(start, size, count, extent):
    for i in range(count):
        low, high = math.floor(i * size + start), math.ceil((i + 1) * size + start)
        yield range(min(max(low, 0), extent), min(max(high, 0), extent))


def roi_max_pooling(x, bins, scale, pad):
    y = np.zeros((len(ROIS), x.shape[1], *bins))
    index = np.full(y.shape, -1)
    for r, roi in enumerate(ROIS):
        image, *corners = grown(roi, pad)
        if image >= len(x):
            continue
        x1, y1, x2, y2 = (away(each * scale) for each in corners)
        rows = list(bins_of(y1, max(y2 - y1 + 1, 1) / bins[0], bins[0], x.shape[2]))
        columns = list(bins_of(x1, max(x2 - x1 + 1, 1) / bins[1], bins[1], x.shape[3]))
        for c, h, w in np.ndindex(*y.shape[1:]):
            places = [i * x.shape[3] + j for i in rows[h] for j in columns[w]]
            if places:
                values = x[image, c].reshape(-1)
                index[r, c, h, w] = max(places, key=lambda place: values[place])
                y[r, c, h, w] = values[index[r, c, h, w]]
    return y, index


def psroi_pooling(x, group, scale):
    y = np.zeros((len(ROIS), x.shape[1] // group**2, group, group))
    for r, (image, *corners) in enumerate(ROIS):
        if image >= len(x):
            continue
        x1, y1 = (away(each) * scale for each in corners[:2])
        x2, y2 = ((away(each) + 1) * scale for each in corners[2:])
        rows = list(bins_of(y1, max(y2 - y1, 0.1) / group, group, x.shape[2]))
        columns = list(bins_of(x1, max(x2 - x1, 0.1) / group, group, x.shape[3]))
        for d, h, w in np.ndindex(*y.shape[1:]):
            part = x[int(image), (d * group + h) * group + w][np.ix_(rows[h], columns[w])]
            y[r, d, h, w] = part.mean() if part.size else 0
    return y


def roi_align(x, points, scale, pad):
    y = np.zeros((len(ROIS), x.shape[1], *points))
    for r, roi in enumerate(ROIS):
        image, *corners = grown(roi, pad)
        x1, y1, x2, y2 = (each * scale - 0.5 for each in corners)
        if image >= len(x) or x2 <= x1 or y2 <= y1:
            continue
        for h, w in np.ndindex(*points):
            at = [y1 + h * (y2 - y1) / (points[0] - 1), x1 + w * (x2 - x1) / (points[1] - 1)]
            if not all(-0.5 <= a <= n - 0.5 for a, n in zip(at, x.shape[2:], strict=True)):
                continue
            at = [min(max(a, 0), n - 1) for a, n in zip(at, x.shape[2:], strict=True)]
            rows, columns = (
                np.maximum(1 - abs(a - np.arange(n)), 0)
                for a, n in zip(at, x.shape[2:], strict=True)
            )
            y[r, :, h, w] = x[image] @ columns @ rows
    return y


def warped_points(roi, points, scale):
    """Where the points of `roi_align` with `warp` stand: rows, columns."""
    x1, y1, x2, y2 = (away(each * scale) for each in roi[1:])
    for start, end, count in ((y1, y2, points[0]), (x1, x2, points[1])):
        yield start, max(end - start, 0), [start + i * max(end - start, 0) / count
                                           for i in range(count)]  # fmt: skip


def roi_warping(x, points, scale):
    y = np.zeros((len(ROIS), x.shape[1], *points))
    height, width = x.shape[2:]
    for r, roi in enumerate(ROIS):
        if roi[0] >= len(x):
            continue
        (_, _, rows), (_, _, columns) = warped_points(roi, points, scale)
        for i, h in enumerate(rows):
            for j, w in enumerate(columns):
                if not (-0.5 <= h <= height - 0.5 and -0.5 <= w <= width - 0.5):
                    continue
                h, w = min(max(h, 0), height - 1), min(max(w, 0), width - 1)
                top, left = int(h), int(w)
                for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    share = abs(1 - a - (h - top)) * abs(1 - b - (w - left))
                    if share:
                        y[r, :, i, j] += share * x[int(roi[0]), :, top + a, left + b]
    return y


def roi_warping_rois_backward(x, dy, scale):
    drois = np.zeros((len(ROIS), 5))
    for r, roi in enumerate(ROIS):
        if roi[0] >= len(x):
            continue
        (y1, high, rows), (x1, wide, columns) = warped_points(roi, dy.shape[2:], scale)
        for c, i, j in np.ndindex(*dy.shape[1:]):
            if rows[i] < -0.5 or columns[j] < -0.5:
                continue
            h, w = max(rows[i], 0), max(columns[j], 0)
            top, left = int(h), int(w)
            if top + 1 > x.shape[2] - 1 or left + 1 > x.shape[3] - 1:
                continue
            (a, b), (d, e) = x[int(roi[0]), c, top : top + 2, left : left + 2]
            over = (top + 1 - h) * (b - a) + (h - top) * (e - d)
            down = (left + 1 - w) * (d - a) + (w - left) * (e - b)
            u, v = (w - x1) / (wide + 1), (h - y1) / (high + 1)
            moves = np.array([0, (1 - u) * over, (1 - v) * down, u * over, v * down])
            drois[r] += scale * dy[r, c, i, j] * moves
    return drois


def region_cases() -> None:
    x, rois = distinct(*MAPS), {"rois": ROIS}
    for label, scale, pad in ("", 0.5, 0.0), ("padded", 0.5, 0.25):
        settings: dict[str, Any] = {"scale": scale, "pad": pad}
        y, index = roi_max_pooling(x, (2, 3), **settings)
        case(label, "roi_max_pooling", {"x": x, **rois, "index": Output(y.shape, "int32")},
             settings, {"y": y, "index": index})  # fmt: skip
        maxima = lambda x, s=settings: roi_max_pooling(x, (2, 3), **s)[0]  # noqa: E731
        dy = eighths(*y.shape)
        case(label, "roi_max_pooling_backward",
             {"dy": dy, **rois, "index": index.astype(np.int32)}, settings,
             Gradients(dx=(maxima, x, dy)))  # fmt: skip
        both_ways(label, "roi_align", partial(roi_align, points=(3, 4), **settings), x,
                  settings, eighths, **rois)  # fmt: skip
    for label, points in (("few points", (2, 2)), ("many points", (7, 5)), ("a point", (1, 1))):
        both_ways(label, "roi_align", partial(roi_warping, points=points, scale=0.5), x,
                  {"scale": 0.5, "pad": 0.0, "warp": True}, eighths, **rois)  # fmt: skip
        dy = eighths(len(ROIS), MAPS[1], *points)
        case(label, "roi_warping_rois_backward", {"x": x, **rois, "dy": dy}, {"scale": 0.5},
             {"drois": roi_warping_rois_backward(x, dy, 0.5)})  # fmt: skip
    both_ways("channels of bins", "psroi_pooling",
              partial(psroi_pooling, group=2, scale=0.5), x, {"scale": 0.5}, eighths,
              **rois)  # fmt: skip

    losses = np.array([3, 1, 2, 3, 2, 1], np.float64).reshape(6, 1)
    images = np.zeros((6, 5))
    images[:, 0] = [0, 0, 1, 0, 0, 1]
    case("", "ohem_select", {"rois": images, "loss": losses}, {"count": 2},
         {"y": np.array([[1], [0], [1], [1], [0], [1]])})  # fmt: skip
    maps = np.moveaxis(images.reshape(2, 3, 5), 2, 1)[..., None]
    case("of places", "ohem_select", {"rois": maps, "loss": losses.reshape(2, 1, 3, 1)},
         {"count": 1}, {"y": np.reshape([1, 0, 1, 0, 0, 0], (2, 1, 3, 1))})  # fmt: skip
