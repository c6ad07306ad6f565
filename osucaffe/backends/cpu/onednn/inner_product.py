"""Owns inner products on oneDNN, forward and backward."""

from __future__ import annotations

import math

from ...primitives.products import (
    InnerProduct,
    InnerProductBackwardData,
    InnerProductBackwardFilter,
)
from ...tensor import Step, Tensor
from . import api
from .activation import Ending
from .api import Descriptor, PostOperation, PrimitiveDescriptor
from .preparation import Operand, Preparation


def _images(p: Preparation, x: Tensor, axis: int) -> Operand:
    """x as (rows, K), always flattened: oneDNN would take images as they are, but its code for
    them is much slower than to reorder x, which is small beside the weights."""
    flattened = (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    return p.operand(x, p.library.plain(flattened))


def _weights(p: Preparation, w: Tensor, transpose: bool, *, add: bool = False) -> Operand:
    """w as (O, K); with `transpose` its elements are those of (K, O)."""
    if transpose:
        return p.operand(w, p.library.plain(w.shape[::-1], (1, w.shape[1])), add=add)
    return p.operand(w, add=add)


def _scores(p: Preparation, y: Tensor) -> Operand:
    """y as (rows, O)."""
    return p.operand(y, p.library.plain((math.prod(y.shape[:-1]), y.shape[-1])))


def _forward(
    p: Preparation,
    x: Descriptor,
    w: Descriptor,
    b: Descriptor | None,
    y: Descriptor,
    then: PostOperation | None = None,
) -> PrimitiveDescriptor:
    return p.library.describe("inner_product_forward", api.FORWARD_TRAINING, x, w, b, y, then=then)


def inner_product(p: Preparation, a: InnerProduct) -> Step | None:
    """See `Program.inner_product`; activation: as for `convolution`."""
    images, weights, scores = (
        _images(p, a.x, a.axis),
        _weights(p, a.w, a.transpose),
        _scores(p, a.y),
    )
    ending = Ending(p.library, scores.plain.dimensions, a.relu, a.activation)
    bias = None if a.b is None else p.operand(a.b)
    bias_form = None if bias is None else bias.plain

    def describe(x: Descriptor, w: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return _forward(p, x, w, bias_form, y, ending.then)

    chosen = p.choose(describe, images.form, weights.form, scores.form)
    if a.activation is not None and not chosen.is_fast:
        return None
    reads = {api.SRC: images, api.WEIGHTS: weights, api.BIAS: bias}
    return p.step(chosen, reads, {api.DST: scores}, given=ending.arguments())


def inner_product_backward_data(p: Preparation, a: InnerProductBackwardData) -> Step:
    """See `Program.inner_product_backward_data`."""
    scores, weights, images = (
        _scores(p, a.dy),
        _weights(p, a.w, a.transpose),
        _images(p, a.dx, a.axis),
    )

    def describe(dx: Descriptor, w: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        x, v, y = (p.library.any(form.dimensions) for form in (dx, w, dy))
        hint = _forward(p, x, v, None, y)
        return p.library.describe("inner_product_backward_data", dx, w, dy, hint)

    chosen = p.choose(describe, images.form, weights.form, scores.form)
    return p.step(chosen, {api.DIFF_DST: scores, api.WEIGHTS: weights}, {api.DIFF_SRC: images})


def inner_product_backward_filter(p: Preparation, a: InnerProductBackwardFilter) -> Step | None:
    """See `Program.inner_product_backward_filter`; without dw it is left to NumPy."""
    if a.dw is None:
        return None
    accumulates = p.call.accumulates
    images, scores = _images(p, a.x, a.axis), _scores(p, a.dy)
    weights = _weights(p, a.dw, a.transpose, add="dw" in accumulates)
    bias = None if a.db is None else p.operand(a.db, add="db" in accumulates)

    def describe(x: Descriptor, dw: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe(
            "inner_product_backward_weights", x, dw, bias and bias.plain, dy, None
        )

    chosen = p.choose(describe, images.form, weights.form, scores.form)
    reads = {api.SRC: images, api.DIFF_DST: scores}
    return p.step(chosen, reads, {api.DIFF_WEIGHTS: weights, api.DIFF_BIAS: bias})
