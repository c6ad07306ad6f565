"""Owns convolution and inner product on oneDNN, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...tensor import Step, Tensor
from . import api
from .api import Descriptor, PrimitiveDescriptor
from .memory import Held, Preparation, is_open

_WEIGHTS = 1
"""Where the weights stand in the argument lists below."""

MOST_PADDED = 1.25
"""Above this share of channels with padding, oneDNN's channels-last code is faster."""


def _padding(
    x: Tensor, w: Tensor, y: Tensor, stride: Sequence[int], pad: Sequence[int], dilation: Any
) -> list[Sequence[int]]:
    """Strides, dilations less one, and padding before and after, as oneDNN wants them."""
    after = [
        (out - 1) * step + (kernel - 1) * apart + 1 - extent - before
        for out, step, kernel, apart, extent, before in zip(
            y.shape[2:], stride, w.shape[2:], dilation, x.shape[2:], pad, strict=True
        )
    ]
    return [stride, [apart - 1 for apart in dilation], pad, after]


def _output(p: Preparation, y: Tensor) -> Descriptor:
    """The format to write y in: channels last where blocks of 16 channels waste too much."""
    if is_open(y) and -(-y.shape[1] // 16) * 16 > MOST_PADDED * y.shape[1]:
        return p.channels_last(y.shape)
    return p.held(y)


def _weights(p: Preparation, w: Tensor, group: int) -> Descriptor:
    """The row-major format of weights: (O, I, *kernel), or (group, O / group, I, *kernel)."""
    if group == 1:
        return p.plain(w)
    return p.plain(w, (group, w.shape[0] // group, *w.shape[1:]))


def convolution(
    p: Preparation,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
    relu: float | None,
) -> Step:
    """See `Program.convolution`."""
    weights = _weights(p, w, group)
    bias = None if b is None else p.plain(b)

    def describe(x: Descriptor, w: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe(
            "convolution_forward",
            api.FORWARD_TRAINING,
            api.CONVOLUTION_DIRECT,
            *(x, w, bias, y),
            *geometry,
            relu=relu,
        )

    geometry = _padding(x, w, y, stride, pad, dilation)
    chosen = p.choose(describe, p.held(x), p.held(w, weights), _output(p, y), cheap=[_WEIGHTS])
    return p.execute(
        chosen,
        {
            api.SRC: p.source(x, chosen.wants(api.SRC)),
            api.WEIGHTS: p.source(w, chosen.wants(api.WEIGHTS), weights),
            api.BIAS: None if b is None else p.source(b, bias),
            api.DST: p.target(y, chosen.wants(api.DST)),
        },
    )


def convolution_backward_data(
    p: Preparation,
    dy: Tensor,
    w: Tensor,
    dx: Tensor,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
) -> Step:
    """See `Program.convolution_backward_data`."""
    weights = _weights(p, w, group)
    geometry = _padding(dx, w, dy, stride, pad, dilation)

    def describe(dx: Descriptor, w: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe(
            "convolution_backward_data", api.CONVOLUTION_DIRECT, dx, w, dy, *geometry, None
        )

    chosen = p.choose(describe, p.held(dx), p.held(w, weights), p.held(dy), cheap=[_WEIGHTS])
    return p.execute(
        chosen,
        {
            api.DIFF_DST: p.source(dy, chosen.wants(api.DIFF_DST)),
            api.WEIGHTS: p.source(w, chosen.wants(api.WEIGHTS), weights),
            api.DIFF_SRC: p.target(dx, chosen.wants(api.DIFF_SRC)),
        },
    )


def convolution_backward_filter(
    p: Preparation,
    x: Tensor,
    dy: Tensor,
    dw: Tensor | None,
    db: Tensor | None,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
) -> Step | None:
    """See `Program.convolution_backward_filter`."""
    if dw is None:
        return None
    weights = _weights(p, dw, group)
    bias = None if db is None else p.plain(db)
    geometry = _padding(x, dw, dy, stride, pad, dilation)

    def describe(x: Descriptor, dw: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe(
            "convolution_backward_weights",
            api.CONVOLUTION_DIRECT,
            *(x, dw, bias, dy),
            *geometry,
            None,
        )

    chosen = p.choose(describe, p.held(x), p.held(dw, weights), p.held(dy), cheap=[_WEIGHTS])
    return p.execute(
        chosen,
        {
            api.SRC: p.source(x, chosen.wants(api.SRC)),
            api.DIFF_DST: p.source(dy, chosen.wants(api.DIFF_DST)),
            **_gradients(p, chosen, dw, weights, db),
        },
    )


def _gradients(
    p: Preparation,
    chosen: PrimitiveDescriptor,
    dw: Tensor,
    weights: Descriptor,
    db: Tensor | None,
) -> dict[int, Held | None]:
    accumulates = p.call.accumulates
    wanted = chosen.wants(api.DIFF_WEIGHTS)
    arguments: dict[int, Held | None] = {
        api.DIFF_WEIGHTS: p.target(dw, wanted, weights, add="dw" in accumulates)
    }
    if db is not None:
        arguments[api.DIFF_BIAS] = p.target(db, p.plain(db), add="db" in accumulates)
    return arguments


class _Product:
    """The row-major formats of an inner product's x (rows, K), w (O, K) and y (rows, O).

    x is always flattened, although oneDNN takes images too: its implementations for those are much
    slower than to reorder x, which is small. With `transpose`, w has the elements of (K, O).
    """

    def __init__(self, p: Preparation, x: Tensor, w: Tensor, axis: int, transpose: bool) -> None:
        rows, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
        outputs = w.shape[1] if transpose else w.shape[0]
        self.x = p.library.plain((rows, inner))
        self.y = p.library.plain((rows, outputs))
        self.w = p.library.plain((outputs, inner), (1, outputs) if transpose else None)


def inner_product(
    p: Preparation,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    *,
    axis: int,
    transpose: bool,
    relu: float | None,
) -> Step:
    """See `Program.inner_product`."""
    plain = _Product(p, x, w, axis, transpose)
    bias = None if b is None else p.plain(b)

    def describe(x: Descriptor, w: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe(
            "inner_product_forward", api.FORWARD_TRAINING, x, w, bias, y, relu=relu
        )

    chosen = p.choose(describe, p.held(x, plain.x), p.held(w, plain.w), p.held(y, plain.y))
    return p.execute(
        chosen,
        {
            api.SRC: p.source(x, chosen.wants(api.SRC), plain.x),
            api.WEIGHTS: p.source(w, chosen.wants(api.WEIGHTS), plain.w),
            api.BIAS: None if b is None else p.source(b, bias),
            api.DST: p.target(y, chosen.wants(api.DST), plain.y),
        },
    )


def inner_product_backward_data(
    p: Preparation, dy: Tensor, w: Tensor, dx: Tensor, *, axis: int, transpose: bool
) -> Step:
    """See `Program.inner_product_backward_data`."""
    plain = _Product(p, dx, w, axis, transpose)

    def describe(dx: Descriptor, w: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe("inner_product_backward_data", dx, w, dy, hint)

    hint = p.library.describe(
        "inner_product_forward",
        api.FORWARD_TRAINING,
        *map(p.library.any, (plain.x.dimensions, plain.w.dimensions)),
        None,
        p.library.any(plain.y.dimensions),
    )
    chosen = p.choose(describe, p.held(dx, plain.x), p.held(w, plain.w), p.held(dy, plain.y))
    return p.execute(
        chosen,
        {
            api.DIFF_DST: p.source(dy, chosen.wants(api.DIFF_DST), plain.y),
            api.WEIGHTS: p.source(w, chosen.wants(api.WEIGHTS), plain.w),
            api.DIFF_SRC: p.target(dx, chosen.wants(api.DIFF_SRC), plain.x),
        },
    )


def inner_product_backward_filter(
    p: Preparation,
    x: Tensor,
    dy: Tensor,
    dw: Tensor | None,
    db: Tensor | None,
    *,
    axis: int,
    transpose: bool,
) -> Step | None:
    """See `Program.inner_product_backward_filter`."""
    if dw is None:
        return None
    plain = _Product(p, x, dw, axis, transpose)
    bias = None if db is None else p.plain(db)

    def describe(x: Descriptor, dw: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe("inner_product_backward_weights", x, dw, bias, dy, None)

    chosen = p.choose(describe, p.held(x, plain.x), p.held(dw, plain.w), p.held(dy, plain.y))
    return p.execute(
        chosen,
        {
            api.SRC: p.source(x, chosen.wants(api.SRC), plain.x),
            api.DIFF_DST: p.source(dy, chosen.wants(api.DIFF_DST), plain.y),
            **_gradients(p, chosen, dw, plain.w, db),
        },
    )
