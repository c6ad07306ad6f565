"""Owns the permutohedral lattice: Gaussian filters over many features (Adams et al. 2010).

Points are splatted on the vertices of the simplex that they lie in, values are blurred along each
of the lattice's axes, and read again where the points lie. As the fork of CRF-RNN does
(torrvision/caffe, src/caffe/util/modified_permutohedral.cpp): a vertex beside which there is none
takes 0 from there, and what comes out is scaled by 1 / (1 + 2 ** -dimensions).
"""

from __future__ import annotations

import numpy as np


class Lattice:
    """A Gaussian filter of standard deviation 1 over points with these features, (points, d).

    ValueError where features are no numbers, or too far apart to be told from one another.
    """

    def __init__(self, features: np.ndarray) -> None:
        points, dimensions = features.shape
        place, rank, shares = _simplices(features.astype(np.float64))
        # Vertices by one number each, so that all are told apart and found by sorting.
        codes, steps = _codes(place, rank)
        order = np.argsort(codes, axis=None, kind="stable")
        ordered = codes.reshape(-1)[order]
        is_first = np.append(True, ordered[1:] != ordered[:-1])
        self._starts = np.flatnonzero(is_first)
        self._points = order % points
        self._shares = shares
        self._splats = shares.reshape(-1)[order]
        vertices = np.empty(codes.size, np.int64)
        vertices[order] = np.cumsum(is_first) - 1
        self._vertices = vertices.reshape(codes.shape)
        unique = ordered[self._starts]
        self._beside = [(_find(unique, unique + s), _find(unique, unique - s)) for s in steps]
        self._scale = 1 / (1 + 2.0**-dimensions)

    def filter(self, values: np.ndarray, *, reverse: bool = False) -> np.ndarray:
        """The filtered values, (k, points) as they are. reverse: of the transposed filter."""
        kind = values.dtype.type
        splats, shares = self._splats.astype(kind), (self._shares * self._scale).astype(kind)
        # The last one stands for all the vertices that there are not.
        old, new = (np.zeros(len(self._starts) + 1, kind) for _ in range(2))
        beside = np.empty_like(new[:-1])
        result = np.empty_like(values)
        for row, smooth in zip(values, result, strict=True):
            parts = np.take(row, self._points)
            parts *= splats
            np.add.reduceat(parts, self._starts, out=old[:-1])
            for before, behind in self._beside[:: -1 if reverse else 1]:
                inner = new[:-1]
                np.take(old, before, out=inner, mode="clip")
                np.take(old, behind, out=beside, mode="clip")
                inner += beside
                inner *= kind(0.5)
                inner += old[:-1]
                old, new = new, old
            read = np.take(old, self._vertices)
            read *= shares
            np.sum(read, axis=0, out=smooth)
        return result


def _simplices(features: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each point: the nearest vertex of remainder 0, the rank of each axis in its simplex, both
    (points, d + 1), and its barycentric coordinates, (d + 1, points)."""
    if not np.isfinite(features).all():
        raise ValueError("features are not all finite numbers")
    points, dimensions = features.shape
    around = dimensions + 1
    axes = np.arange(1, around)
    # Onto the plane where coordinates sum to 0, scaled so that all blurs have deviation 1.
    scaled = features * (np.sqrt(2 / 3) * around / np.sqrt(axes * (axes + 1)))
    elevated = np.zeros((points, around))
    elevated[:, :-1] = scaled[:, ::-1].cumsum(axis=1)[:, ::-1]
    elevated[:, 1:] -= scaled * axes
    nearest = np.rint(elevated / around)
    excess = nearest.sum(axis=1, keepdims=True).astype(np.int64)
    place = nearest.astype(np.int64) * around
    order = np.argsort(place - elevated, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(around), order.shape), axis=1)
    # Back to the plane, where rounding has left it.
    rank += excess
    moved = around * ((rank < 0).astype(np.int64) - (rank >= around))
    rank += moved
    place += moved
    sorted_gaps = np.empty_like(elevated)
    np.put_along_axis(sorted_gaps, rank, (elevated - place) / around, axis=1)
    shares = np.empty((around, points))
    shares[0] = 1 + sorted_gaps[:, -1] - sorted_gaps[:, 0]
    shares[1:] = (sorted_gaps[:, :-1] - sorted_gaps[:, 1:]).T[::-1]
    return place, rank, shares


def _codes(place: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """A number for each vertex of each point, (d + 1, points), and how far apart the numbers of
    neighbours are along each of the d + 1 axes."""
    around = place.shape[1]
    dimensions = around - 1
    low = place[:, :-1].min(axis=0) - 2 * around
    extents = place[:, :-1].max(axis=0) - low + 2 * around
    strides, total = [], 1
    for extent in extents:
        strides.append(total)
        total *= int(extent)
    if total >= 2**62:
        raise ValueError("features are too far apart")
    weights = np.array(strides)
    base = (place[:, :-1] - low) @ weights
    above = np.array([
        ((rank[:, :-1] > dimensions - remainder) @ weights) for remainder in range(around)
    ])  # fmt: skip
    codes = base + np.arange(around)[:, None] * weights.sum() - around * above
    steps = [int(around * stride - weights.sum()) for stride in (*strides, 0)]
    return codes, steps


def _find(ordered: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where these stand in what is ordered; behind its end where they do not."""
    at = np.searchsorted(ordered, wanted)
    found = ordered[np.minimum(at, len(ordered) - 1)] == wanted
    return np.where(found, at, len(ordered))
