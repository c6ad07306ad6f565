"""The NumPy primitives that look at regions of images: bin after bin of each region."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...backends.cpu.registry import Context, direct
from ...backends.tensor import Shape, Tensor
from . import primitives as ops

Bin = tuple[int, int, slice, slice]
"""Row and column of a bin, and its part of the feature map."""


def _round(values: np.ndarray) -> np.ndarray:
    """To whole numbers, halves away from 0."""
    return np.trunc(values + np.copysign(0.5, values).astype(values.dtype))


def _padded(corners: np.ndarray, pad: float) -> np.ndarray:
    """Corners (x1, y1, x2, y2) that have grown by this much of their extents."""
    grown = (corners[2:] - corners[:2] + 1) * pad
    return np.concatenate([corners[:2] - grown, corners[2:] + grown])


def _regions(rois: np.ndarray, images: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Number, image and corners of each region of an image of the batch, where they are finite."""
    for number, (image, *corners) in enumerate(rois.reshape(-1, 5)):
        if 0 <= image < images and np.isfinite(corners).all():
            yield number, int(image), np.array(corners, rois.dtype)


def _begin(y: np.ndarray, rois: np.ndarray) -> None:
    """What regions hold that have no bins: 0, and NaN where they are not finite."""
    y.fill(0)
    y[~np.isfinite(rois.reshape(-1, 5)).all(axis=1)] = np.nan


def _edges(start: np.floating, size: np.floating, bins: int, extent: int) -> list[slice]:
    """The elements of each of the bins that an axis of a region is cut into."""
    places = np.arange(bins + 1, dtype=size.dtype) * size + start
    low, high = np.floor(places[:-1]).clip(0, extent), np.ceil(places[1:]).clip(0, extent)
    return [slice(int(a), int(b)) for a, b in zip(low, high, strict=True)]


def _bins(starts: np.ndarray, sizes: np.ndarray, bins: Shape, extents: Shape) -> Iterator[Bin]:
    """The bins of a region that are not empty. starts, sizes (of a bin): x before y."""
    rows = _edges(starts[1], sizes[1], bins[0], extents[0])
    columns = _edges(starts[0], sizes[0], bins[1], extents[1])
    for h, row in enumerate(rows):
        for w, column in enumerate(columns):
            if row.start < row.stop and column.start < column.stop:
                yield h, w, row, column


def _max_bins(corners: np.ndarray, bins: Shape, extents: Shape, scale: float) -> Iterator[Bin]:
    """The bins of ROIPooling: they begin at whole places."""
    places = _round(corners * scale)
    whole = np.maximum(places[2:] - places[:2] + 1, 1)
    sizes = whole / np.array(bins[::-1], whole.dtype)
    # Bins are laid from 0 and moved by whole places: rounding does not depend on where it lies.
    for h, w, row, column in _bins(
        np.zeros_like(sizes), sizes, bins, (int(whole[1]) + 1, int(whole[0]) + 1)
    ):
        moved = []
        for part, start, extent in ((row, places[1], extents[0]), (column, places[0], extents[1])):
            low = min(max(part.start + int(start), 0), extent)
            moved.append(slice(low, min(max(part.stop + int(start), 0), extent)))
        if all(part.start < part.stop for part in moved):
            yield h, w, moved[0], moved[1]


@direct()
def roi_max_pooling(ctx: Context, a: ops.RoiMaxPooling) -> None:
    extents, bins = a.x.shape[2:], a.y.shape[2:]
    channels = np.arange(a.x.shape[1])
    _begin(a.y.array, a.rois.array)
    a.index.array.fill(-1)
    for r, image, corners in _regions(a.rois.array, a.x.shape[0]):
        for h, w, row, column in _max_bins(_padded(corners, a.pad), bins, extents, a.scale):
            part = a.x.array[image, :, row, column]
            flat = part.reshape(len(channels), -1)
            best = flat.argmax(axis=1)
            a.y.array[r, :, h, w] = flat[channels, best]
            tall, wide = np.divmod(best, part.shape[2])
            a.index.array[r, :, h, w] = (row.start + tall) * extents[1] + column.start + wide


@direct()
def roi_max_pooling_backward(ctx: Context, a: ops.RoiMaxPoolingBackward) -> None:
    a.dx.array.fill(0)
    planes = a.dx.array.reshape(*a.dx.shape[:2], -1)
    channels = np.arange(a.dx.shape[1])[:, None]
    for r, image, _ in _regions(a.rois.array, a.dx.shape[0]):
        places = a.index.array[r].reshape(a.dx.shape[1], -1)
        gradient = np.where(places >= 0, a.dy.array[r].reshape(places.shape), 0)
        np.add.at(planes[image], (channels, np.maximum(places, 0)), gradient)


def _averaged(
    a: ops.PsroiPooling | ops.PsroiPoolingBackward, x: Tensor, bins: Shape
) -> Iterator[tuple[np.ndarray, tuple[Any, ...], int]]:
    """For all bins of all regions: the part of x (D, rows, columns) that a bin covers, where it
    stands among the bins, and its area."""
    maps = x.array.reshape(x.shape[0], -1, *bins, *x.shape[2:])
    for r, image, corners in _regions(a.rois.array, x.shape[0]):
        start = _round(corners[:2]) * a.scale
        end = (_round(corners[2:]) + 1) * a.scale
        sizes = np.maximum(end - start, np.array(0.1, start.dtype)) / np.array(bins[0], start.dtype)
        for h, w, row, column in _bins(start, sizes, bins, x.shape[2:]):
            area = (row.stop - row.start) * (column.stop - column.start)
            yield maps[image, :, h, w, row, column], (r, slice(None), h, w), area


@direct()
def psroi_pooling(ctx: Context, a: ops.PsroiPooling) -> None:
    _begin(a.y.array, a.rois.array)
    for part, at, area in _averaged(a, a.x, a.y.shape[2:]):
        a.y.array[at] = part.sum(axis=(1, 2)) / area


@direct()
def psroi_pooling_backward(ctx: Context, a: ops.PsroiPoolingBackward) -> None:
    a.dx.array.fill(0)
    for part, at, area in _averaged(a, a.dx, a.dy.shape[2:]):
        part += a.dy.array[at][:, None, None] / area


def _weights(start: np.floating, size: np.floating, points: int, extent: int) -> np.ndarray:
    """(points, extent): how much each element weighs in the value at each point of an axis."""
    at = np.arange(points, dtype=size.dtype) * size + start
    inside = (at >= -0.5) & (at <= extent - 0.5)
    gaps = np.abs(np.clip(at, 0, extent - 1)[:, None] - np.arange(extent, dtype=at.dtype))
    return np.where(inside[:, None], np.maximum(1 - gaps, 0), 0).astype(at.dtype)


def _grid(
    corners: np.ndarray, points: Shape, scale: float, pad: float, warp: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Where the points of a region begin and how far apart they are, rows before columns."""
    places = _padded(corners, pad) * scale
    if warp:
        places = _round(places)
        extent = np.maximum(places[2:] - places[:2], 0)[::-1]
        return places[1::-1], (extent / np.array(points, extent.dtype))
    places -= 0.5
    extent = (places[2:] - places[:2])[::-1]
    if not (extent > 0).all():
        return None
    return places[1::-1], (extent / (np.array(points) - 1)).astype(corners.dtype)


def _sampled(
    a: ops.RoiAlign | ops.RoiAlignBackward, images: Shape, points: Shape
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Region, image, and the weights of rows and of columns at its points."""
    for r, image, corners in _regions(a.rois.array, images[0]):
        grid = _grid(corners, points, a.scale, a.pad, a.warp)
        if grid is not None:
            starts, gaps = grid
            rows = _weights(starts[0], gaps[0], points[0], images[2])
            columns = _weights(starts[1], gaps[1], points[1], images[3])
            yield r, image, rows, columns


@direct()
def roi_align(ctx: Context, a: ops.RoiAlign) -> None:
    _begin(a.y.array, a.rois.array)
    for r, image, rows, columns in _sampled(a, a.x.shape, a.y.shape[2:]):
        a.y.array[r] = rows @ (a.x.array[image] @ columns.T)


@direct()
def roi_align_backward(ctx: Context, a: ops.RoiAlignBackward) -> None:
    a.dx.array.fill(0)
    for r, image, rows, columns in _sampled(a, a.dx.shape, a.dy.shape[2:]):
        a.dx.array[image] += rows.T @ (a.dy.array[r] @ columns)


def _moving(
    start: np.floating, gap: np.floating, points: int, extent: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of an axis: the weights at its points and their slopes (points, extent), 0 where a point has
    no neighbour after it, and how far towards the second corner each point stands."""
    weights = _weights(start, gap, points, extent)
    at = np.arange(points, dtype=gap.dtype) * gap + start
    before = np.floor(np.maximum(at, 0)).astype(int)
    inner = (at >= -0.5) & (before + 1 < extent)
    slopes = np.zeros_like(weights)
    rows = np.flatnonzero(inner)
    slopes[rows, before[rows]], slopes[rows, before[rows] + 1] = -1, 1
    share = (np.maximum(at, 0) - start) / (gap * points + 1)
    return weights * inner[:, None], slopes, share


@direct()
def roi_warping_rois_backward(ctx: Context, a: ops.RoiWarpingRoisBackward) -> None:
    points, extents = a.dy.shape[2:], a.x.shape[2:]
    a.drois.array.fill(0)
    corner = a.drois.array.reshape(-1, 5)
    for r, image, corners in _regions(a.rois.array, a.x.shape[0]):
        grid = _grid(corners, points, a.scale, 0, True)
        assert grid is not None
        rows, columns = (_moving(*axis) for axis in zip(*grid, points, extents, strict=True))
        maps, gradient = a.x.array[image], a.dy.array[r] * np.array(a.scale, a.dy.array.dtype)
        down = (gradient * (rows[1] @ maps @ columns[0].T)).sum(axis=(0, 2))
        over = (gradient * (rows[0] @ maps @ columns[1].T)).sum(axis=(0, 1))
        for column, moved, share in ((1, over, columns[2]), (2, down, rows[2])):
            corner[r, column] = (moved * (1 - share)).sum()
            corner[r, column + 2] = (moved * share).sum()


@direct()
def ohem_select(ctx: Context, a: ops.OhemSelect) -> None:
    images = a.rois.array.reshape(a.rois.shape[0], 5, -1)[:, 0].reshape(-1)
    order = np.argsort(-a.loss.array.reshape(-1), kind="stable")
    chosen = a.y.array.reshape(-1)
    chosen.fill(0)
    for image in np.unique(images):
        chosen[order[images[order] == image][: a.count]] = 1
