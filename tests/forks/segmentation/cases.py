"""The cases of primitives that put pixels where they were, or between others."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.backends.cases import both_ways, case, normal


def unpooling(x, index, shape):
    """A place out of range makes the first element of its channel NaN."""
    y = np.zeros(shape)
    for n, c in np.ndindex(*shape[:2]):
        places = index[n, c].astype(int).ravel().tolist()
        inside = [0 <= place < y[n, c].size for place in places]
        for value, place, known in zip(x[n, c].flat, places, inside, strict=True):
            if known:
                y[n, c].flat[place] = value
        y[n, c, 0, 0] = y[n, c, 0, 0] if all(inside) else np.nan
    return y


def resize_bilinear(x, out):
    """One axis after the other, at points between the corners."""
    for axis, wanted in zip((2, 3), out, strict=True):
        extent = x.shape[axis]
        at = np.linspace(0, extent - 1, wanted) if wanted > 1 else np.zeros(1)
        left = np.minimum(np.floor(at + 1e-9).astype(int), extent - 1)
        right = np.minimum(left + 1, extent - 1)
        part = (at - left).reshape(-1, *[1] * (3 - axis))
        x = np.take(x, left, axis) * (1 - part) + np.take(x, right, axis) * part
    return x


def unpooling_cases() -> None:
    # 2 x 2 x 3 windows into planes of 4 x 6; the first two places of each plane are one.
    place = np.array([[0, 0, 5, 13, 14, 23], [7, 1, 1, 12, 22, 17]], float).reshape(1, 2, 2, 3)
    x, index, dy = normal(3, 2, 2, 3), np.repeat(place, 3, axis=0), normal(3, 2, 4, 6)
    case("", "unpooling", {"x": x, "index": index}, {},
         {"y": unpooling(x, index, dy.shape)})  # fmt: skip
    flat = dy.reshape(3, 2, 24), index.reshape(3, 2, 6).astype(int)
    case("", "unpooling_backward", {"dy": dy, "index": index}, {},
         {"dx": np.take_along_axis(*flat, axis=2).reshape(x.shape)})  # fmt: skip
    outside = index.copy()
    outside[1, 1, 0, 0], outside[2, 0, 1, 1] = 24, -1
    case("out of range", "unpooling", {"x": x, "index": outside}, {},
         {"y": unpooling(x, outside, dy.shape)})  # fmt: skip


def resize_bilinear_cases() -> None:
    for label, image, out in [
        ("larger", (2, 3, 4, 5), (7, 13)), ("smaller", (2, 3, 7, 9), (3, 5)),
        ("of one row", (1, 2, 1, 4), (3, 4)), ("to one row", (1, 17, 5, 3), (1, 6)),
        ("the same", (2, 2, 3, 4), (3, 4)),
    ]:  # fmt: skip
        function = partial(resize_bilinear, out=out)
        both_ways(label, "resize_bilinear", function, normal(*image), {})
