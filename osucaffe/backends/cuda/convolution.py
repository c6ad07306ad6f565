"""Owns convolution on the GPU, on images with the channels last, each in the fastest way."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..tensor import Step, Tensor, sequence
from .cudnn import Convolution
from .elementwise import mask_step
from .filter_gradient import large_gradients
from .folding import Folding, foldings, folds, may_fold
from .large import large, large_ways
from .layout import ITEM_BYTES, Layout, dtype_of, is_nhwc, strides
from .library import (
    bias_step,
    convolution_product,
    describe,
    library_ways,
    library_ways_with_passes,
    plan_step,
)
from .movement import convert
from .packing import packed_ways
from .registry import CudaCall, primitive
from .rows import sum_rows
from .small import Division, Small, small
from .warpgroup import correlate, divisions
from .ways import BYTES_A_MILLISECOND, LAUNCH, Maker, Way, fastest, measured, suffice, temporary

Window = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""stride, pad, dilation"""
FOLDED_WINDOW: Window = (1, 1), (0, 0), (1, 1)
WORTH_FUSING = 20 << 20
"""Bytes of an image's gradient from which on a search for plans that mask it is worth its time,
where no kernel of our own does."""


def _root(tensor: Tensor) -> Tensor:
    while tensor.like is not None:
        tensor = tensor.like
    return tensor


def settle_weights(tensor: Tensor) -> None:
    """Filters lie in float32 with the channels last, where that is open."""
    root = _root(tensor)
    if root.flexible:
        root.layout = Layout(root.shape, "float32", True)


def settle_row_major(tensor: Tensor | None) -> None:
    """It lies row-major in float32, where that is open: a bias."""
    if tensor is not None:
        _root(tensor).flexible = False


def _held_weights(call: CudaCall, w: Tensor) -> Tensor:
    """The filters in the type of the precision, with the channels last."""
    backend = call.backend
    if backend.dtype != "float32" and w.base is None and is_nhwc(w):
        return backend.shadow(w)
    return call.held(w, nhwc=True, dtype=backend.dtype)


def _held(call: CudaCall, tensor: Tensor) -> Tensor:
    """A blob in the type of the precision, with the channels last."""
    call.backend.settle(tensor)
    return call.held(tensor, nhwc=True, dtype=call.backend.dtype)


@primitive("own")
def convolution(
    call: CudaCall,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
    relu: float | None = None,
) -> Step:
    window: Window = stride, pad, dilation
    settle_weights(w)
    settle_row_major(b)
    call.backend.settle(x)
    maps = _held(call, y)
    around = b is not None or relu is not None
    slope = 1.0 if relu is None else relu
    passed = 2 * call.backend.nbytes(maps) if around else 0

    def with_bias(way: Way) -> Way:
        step = lambda: bias_step(maps, b, relu, y.shape[1])  # noqa: E731
        return way.then(step, passed) if around else way

    if folds(x, window, group):
        folded = foldings(call.backend.dtype, x, w, y, window)
        one, ways = folded[0], []
        if big := large(call.backend, one.folded_x, one.folded_y, one.kernel, FOLDED_WINDOW, 1):
            ways = large_ways(call, big, [], x, w, maps, b=b, slope=slope, folding=one)
        if not suffice(ways, w, y):
            ways += [with_bias(way) for each in folded for way in _folded(call, each, x, w, maps)]
        return fastest(call, ways)
    tiny = small(call, x, y, w.shape[2:], window, group)
    if tiny and x.shape[1] % 2:  # it takes x as it lies: no library does better
        own = _small_outputs(call, tiny, x, _held_weights(call, w), b, maps, slope)
        if own:
            return fastest(call, own)
    tensors = {"x": _held(call, x), "w": _held_weights(call, w), "y": maps}
    big = large(call.backend, x.shape, y.shape, w.shape[2:], window, group)

    def own_large(others: Sequence[Way]) -> list[Way]:
        held = tensors["x"], tensors["w"], maps
        return large_ways(call, big, others, *held, b=b, slope=slope) if big else []

    ways = own_large([]) if group > 1 else []
    if suffice(ways, w, y):
        return fastest(call, ways)
    plain = describe(call, "forward", tensors, window)
    fused = None
    if around and not relu:  # nothing fuses a slope
        bias = {} if b is None else {"b": b}
        fused = replace(plain, bias="float32" if bias else None, relu=relu), tensors | bias
    ways += library_ways_with_passes(call, (plain, tensors), fused, with_bias, group)
    ways += own_large(ways) if group == 1 else []
    ways += packed_ways(call, plain, tensors, group, ways, bias=b, relu=relu)
    if may_fold(call.backend.precision, x, w, y, window, group):
        widest = foldings(call.backend.dtype, x, w, y, window)[-1]
        ways += map(with_bias, _folded(call, widest, x, w, maps))
    if tiny:
        ways += _small_outputs(call, tiny, tensors["x"], tensors["w"], b, maps, slope)
    return fastest(call, ways)


def _small_outputs(
    call: CudaCall,
    tiny: Small,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    slope: float,
) -> list[Way]:
    """The ways to compute outputs by kernels of our own."""
    return _correlations(call, tiny, {"x": x, "w": w, "b": b, "y": y}, slope)


def _small_images(
    call: CudaCall, tiny: Small, dy: Tensor, w: Tensor, dx: Tensor, positive: Tensor | None
) -> list[Way]:
    """The ways to compute the gradients of images by kernels of our own.

    tiny: the convolution, turned. positive: what is to mask them.
    """
    tensors = {"x": dy, "w": w, "b": None, "positive": positive, "y": dx}
    return _correlations(call, tiny, tensors, 1.0, flipped=True)


def _correlations(
    call: CudaCall,
    tiny: Small,
    tensors: dict[str, Tensor | None],
    slope: float,
    *,
    flipped: bool = False,
) -> list[Way]:
    """The ways to correlate x with w that every GPU has, and those by warpgroups."""

    def maker(correlation: Callable[..., Step], division: Division) -> Maker:
        return lambda _, t: correlation(
            division, t["x"], t["w"], t["b"], t.get("positive"), t["y"], slope
        )

    masked = "masked " if tensors.get("positive") else ""
    by_warpgroups = functools.partial(correlate, tiny)
    general, special = tiny.correlations(flipped=flipped), divisions(tiny, flipped=flipped)
    own = {f"{masked}{each}": maker(tiny.correlate, each) for each in general}
    ways = _own_ways(call, tiny, tensors, own)
    own = {f"warpgroups {masked}{each}": maker(by_warpgroups, each) for each in special}
    return ways + _own_ways(call, tiny, tensors, own)


def _own_ways(
    call: CudaCall, tiny: Small, tensors: dict[str, Tensor | None], makers: dict[str, Maker]
) -> list[Way]:
    """Ways by kernels of our own, timed. makers: by what tells them apart for this convolution."""
    x = tensors["x"]
    assert x is not None
    lies = f"{dtype_of(x)} {strides(x)}"
    named = {f"{tiny} {lies} {what}": maker for what, maker in makers.items()}
    return measured(call, tensors, named)


def _small_gradients(
    call: CudaCall, tiny: Small, x: Tensor, dy: Tensor, dw: Tensor, db: Tensor | None
) -> list[Way]:
    """The ways to compute gradients of filters and biases by kernels of our own."""

    def maker(division: Division) -> Maker:
        return lambda call, t: tiny.gradients(division, call, t["x"], t["dy"], t["dw"], t["db"])

    own = {f"{division}": maker(division) for division in tiny.summations}
    return _own_ways(call, tiny, {"x": x, "dy": dy, "dw": dw, "db": db}, own)


def _folded(call: CudaCall, folding: Folding, x: Tensor, w: Tensor, y: Tensor) -> list[Way]:
    """The ways to compute a folded convolution."""
    found = call.backend.cudnn.plan(folding.convolution("forward", call.backend.precision))
    if found is None:
        return []
    build, taken = found

    def make() -> Step:
        folded_x = temporary(call, folding.folded_x)
        folded_w = temporary(call, folding.folded_w)
        tensors = {"x": folded_x, "w": folded_w, "y": y}
        return sequence([
            folding.fold_filters(w, folded_w),
            folding.fold_images(x, folded_x),
            plan_step(call, build(), tensors),
        ])  # fmt: skip

    return [Way(taken + _folding_time(call, folding, x), make)]


def _folding_time(call: CudaCall, folding: Folding, x: Tensor) -> float:
    """Milliseconds that it takes, about, to fold images, and to fold or unfold filters."""
    nbytes = call.backend.nbytes(x) + math.prod(folding.folded_x) * ITEM_BYTES[folding.dtype]
    return nbytes / BYTES_A_MILLISECOND + 2 * LAUNCH


@primitive("own")
def convolution_backward_data(
    call: CudaCall,
    dy: Tensor,
    w: Tensor,
    dx: Tensor,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
    positive: Tensor | None = None,
) -> Step:
    """positive: the output of a ReLU whose backward pass is folded in (by the fusion pass)."""
    settle_weights(w)
    window: Window = stride, pad, dilation
    tensors = {"x": _held(call, dx), "w": _held_weights(call, w), "y": _held(call, dy)}
    plain = describe(call, "data", tensors, window)
    image, fused = tensors["x"], None
    nbytes = call.backend.nbytes(image)
    mask = None if positive is None else _held(call, positive)
    big = large(call.backend, dx.shape, dy.shape, w.shape[2:], window, group)

    def own_large(others: Sequence[Way]) -> list[Way]:
        if big is None:
            return []
        turned, filters = big.gradient(masked=mask is not None), tensors["w"]
        return large_ways(call, turned, others, tensors["y"], filters, image, positive=mask)

    ways = own_large([]) if group > 1 else []
    if suffice(ways, w, dy):
        return fastest(call, ways)
    if mask is not None and nbytes >= WORTH_FUSING and big is None:
        fused = replace(plain, relu=0.0), tensors | {"mask": mask}

    def with_mask(way: Way) -> Way:
        return way if mask is None else way.then(lambda: mask_step(image, mask), 3 * nbytes)

    ways += library_ways_with_passes(call, (plain, tensors), fused, with_mask, group)
    ways += own_large(ways) if group == 1 else []
    ways += packed_ways(call, plain, tensors, group, ways, positive=mask)
    if tiny := small(call, dx, dy, w.shape[2:], window, group):
        back, filters = tiny.turned, tensors["w"]
        ways += _small_images(call, back, tensors["y"], filters, image, mask)
    return fastest(call, ways)


@primitive("own")
def convolution_backward_filter(
    call: CudaCall,
    x: Tensor,
    dy: Tensor,
    dw: Tensor | None,
    db: Tensor | None,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
) -> Step:
    call.backend.settle(x)
    settle_row_major(db)
    maps = _held(call, dy)
    window: Window = stride, pad, dilation

    def bias_gradient() -> Step:
        assert db is not None
        rows = maps.size // maps.shape[1]
        return sum_rows(call, maps, db, rows, accumulate="db" in call.accumulates)

    if dw is None:
        return bias_gradient()
    settle_weights(dw)
    tiny = small(call, x, dy, dw.shape[2:], window, group) if is_nhwc(dw) else None
    if tiny and x.shape[1] % 2:  # it takes x as it lies: no library does better
        own = _small_gradients(call, tiny, x, maps, dw, db)
        if own:
            return fastest(call, own)
    ways = _filter_ways(call, x, maps, dw, window, group)
    if db is not None:
        ways = [way.then(bias_gradient, call.backend.nbytes(maps)) for way in ways]
    if tiny:
        ways += _small_gradients(call, tiny, _held(call, x), maps, dw, db)
    return fastest(call, ways)


def _filter_ways(
    call: CudaCall, x: Tensor, dy: Tensor, dw: Tensor, window: Window, group: int
) -> list[Way]:
    backend, accumulate = call.backend, "dw" in call.accumulates
    if folds(x, window, group):
        folded = foldings(backend.dtype, x, dw, dy, window)
        ways = large_gradients(call, x, dy, dw, window, group, folded[0])
        if not suffice(ways, dw, dy):
            ways += [way for each in folded for way in _folded_filter(call, each, x, dy, dw)]
        return ways
    tensors = {"x": _held(call, x), "y": dy}
    ways = large_gradients(call, tensors["x"], dy, dw, window, group)
    if suffice(ways, dw, dy):
        return ways
    if may_fold(backend.precision, x, dw, dy, window, group):
        ways += _folded_filter(call, foldings(backend.dtype, x, dw, dy, window)[-1], x, dy, dw)

    def by_library(plain: Convolution, operands: dict[str, Tensor]) -> list[Way]:
        found = library_ways(call, plain, operands, group)
        return found + packed_ways(call, plain, operands, group, [*ways, *found])

    if is_nhwc(dw):
        direct = {**tensors, "w": dw}
        plain = describe(call, "filter", direct, window)
        if backend.dtype == "float32" and not accumulate:
            return ways + by_library(plain, direct)
        if group == 1:  # a product widens and adds, cuDNN does neither
            ways += convolution_product(call, plain, direct, accumulate=accumulate)
    part = temporary(call, dw.shape)
    indirect = {**tensors, "w": part}
    plain = describe(call, "filter", indirect, window)
    nbytes = backend.nbytes(part) + (1 + accumulate) * 4 * dw.count
    converted = lambda: convert(part, dw, accumulate=accumulate)  # noqa: E731
    return ways + [way.then(converted, nbytes) for way in by_library(plain, indirect)]


def _folded_filter(
    call: CudaCall, folding: Folding, x: Tensor, dy: Tensor, dw: Tensor
) -> list[Way]:
    """The ways to compute the filter gradients of a folded convolution."""
    found = call.backend.cudnn.plan(folding.convolution("filter", call.backend.precision))
    if found is None:
        return []
    build, taken = found

    def make() -> Step:
        folded_x = temporary(call, folding.folded_x)
        folded_w = temporary(call, folding.folded_w)
        tensors = {"x": folded_x, "w": folded_w, "y": dy}
        return sequence([
            folding.fold_images(x, folded_x),
            plan_step(call, build(), tensors),
            folding.unfold_filters(folded_w, dw, accumulate="dw" in call.accumulates),
        ])  # fmt: skip

    return [Way(taken + _folding_time(call, folding, x), make)]
