"""Owns the cases of the primitives that make images larger or smaller."""

from __future__ import annotations

import functools

import numpy as np

from . import reference
from .cases import Gradients, case, normal
from .running import Output


def unpooling_cases() -> None:
    # 2 x 2 x 3 windows into planes of 4 x 6; the first two places of each plane are one.
    place = np.array([[0, 0, 5, 13, 14, 23], [7, 1, 1, 12, 22, 17]], float).reshape(1, 2, 2, 3)
    x, index = normal(3, 2, 2, 3), np.repeat(place, 3, axis=0)
    dy = normal(3, 2, 4, 6)
    placed = functools.partial(reference.unpooling, index=index, shape=dy.shape)
    case("", "unpooling", {"x": x, "index": index, "y": Output(dy.shape)}, {},
         lambda: {"y": placed(x)})  # fmt: skip
    case("", "unpooling_backward", {"dy": dy, "index": index, "dx": Output(x.shape)}, {},
         lambda: {"dx": np.take_along_axis(
             dy.reshape(3, 2, 24), index.reshape(3, 2, 6).astype(int), axis=2
         ).reshape(x.shape)})  # fmt: skip
    outside = index.copy()
    outside[1, 1, 0, 0], outside[2, 0, 1, 1] = 24, -1

    def missed() -> np.ndarray:
        y = reference.unpooling(x, index, dy.shape)
        y[1, 1], y[2, 0] = 0, 0
        for n, c in (1, 1), (2, 0):
            for value, to in zip(x[n, c].flat, outside[n, c].flat, strict=True):
                if 0 <= to < 24:
                    y[n, c].flat[int(to)] = value
            y[n, c, 0, 0] = np.nan
        return y

    case("out of range", "unpooling", {"x": x, "index": outside, "y": Output(dy.shape)}, {},
         lambda: {"y": missed()})  # fmt: skip


def interpolation_cases() -> None:
    for label, image, out in [
        ("larger", (2, 3, 4, 5), (7, 13)), ("smaller", (2, 3, 7, 9), (3, 5)),
        ("of one row", (1, 2, 1, 4), (3, 4)), ("to one row", (1, 17, 5, 3), (1, 6)),
        ("the same", (2, 2, 3, 4), (3, 4)),
    ]:  # fmt: skip
        x, dy = normal(*image), normal(*image[:2], *out)
        function = functools.partial(reference.interpolation, out=out)
        case(label, "interpolation", {"x": x, "y": Output(dy.shape)}, {},
             lambda f=function, x=x: {"y": f(x)})  # fmt: skip
        case(label, "interpolation_backward", {"dy": dy}, {}, Gradients(dx=(function, x, dy)))
