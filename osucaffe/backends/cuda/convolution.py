"""Owns convolution on the GPU, on images with the channels last, each in the fastest way.

What is asked for first, and what need not be asked for then, is decided here; other modules have
the ways themselves (see ways.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..tensor import Step, Tensor
from .cudnn_graph import Convolution
from .elementwise import mask_step
from .filter_gradient import large_gradients
from .folding import folded_ways, foldings, may_fold
from .large import large_ways
from .layout import Layout, is_nhwc
from .library import (
    bias_step,
    convolution_product,
    describe,
    library_ways,
    library_ways_with_passes,
)
from .movement import convert
from .own import (
    large_gradient,
    large_images,
    large_outputs,
    small_correlations,
    small_gradients,
)
from .packing import packed_ways
from .registry import CudaCall, primitive
from .rows import sum_rows
from .small import small
from .ways import Problem, Way, fastest, suffice, temporary

WORTH_FUSING = 20 << 20
"""Bytes of an image's gradient from which on a search for plans that mask it is worth its time,
where no kernel of our own does."""


def settle_weights(tensor: Tensor) -> None:
    """Filters lie in float32 with the channels last, where that is open."""
    root = tensor.root
    if root.flexible:
        root.layout = Layout(root.shape, "float32", True)


def settle_row_major(tensor: Tensor | None) -> None:
    """It lies row-major in float32, where that is open: a bias."""
    if tensor is not None:
        tensor.root.flexible = False


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
    relu: float | None = None,
    **settings: Any,
) -> Step:
    problem = Problem.of(x, w, y, **settings)
    backend = call.backend
    settle_weights(w)
    settle_row_major(b)
    backend.settle(x)
    maps = _held(call, y)
    around = b is not None or relu is not None
    slope = 1.0 if relu is None else relu
    passed = 2 * backend.nbytes(maps)

    def with_bias(way: Way) -> Way:
        step = lambda: bias_step(maps, b, relu, y.shape[1])  # noqa: E731
        return way.then(step, passed) if around else way

    big, folding = large_outputs(backend, problem)
    if folding is not None:
        ways = []
        if big is not None:
            ways = large_ways(call, big, [], x, w, maps, b=b, slope=slope, folding=folding)
        if not suffice(ways, problem):
            tried = foldings(backend.dtype, problem)
            ways += map(with_bias, folded_ways(call, tried, "forward", x, w, maps))
        return fastest(call, ways)
    tiny = small(backend, problem)
    if tiny and x.shape[1] % 2:  # it takes x as it lies: no library does better
        own = small_correlations(call, tiny, x, _held_weights(call, w), maps, b=b, slope=slope)
        if own:
            return fastest(call, own)
    images, filters = _held(call, x), _held_weights(call, w)
    tensors = {"x": images, "w": filters, "y": maps}
    plain = describe(call, "forward", tensors, problem.window)
    fused = None
    if around and not relu:  # nothing fuses a slope
        bias = {} if b is None else {"b": b}
        fused = replace(plain, bias="float32" if bias else None, relu=relu), tensors | bias

    def own_large(others: Sequence[Way]) -> list[Way]:
        return large_ways(call, big, others, images, filters, maps, b=b, slope=slope) if big else []

    ways = _outputs(call, problem, (plain, tensors), fused, with_bias, own_large, bias=b, relu=relu)
    if may_fold(backend.precision, problem):
        widest = foldings(backend.dtype, problem)[-1:]
        ways += map(with_bias, folded_ways(call, widest, "forward", x, w, maps))
    if tiny:
        ways += small_correlations(call, tiny, images, filters, maps, b=b, slope=slope)
    return fastest(call, ways)


def _outputs(
    call: CudaCall,
    problem: Problem,
    plain: tuple[Convolution, dict[str, Tensor]],
    fused: tuple[Convolution, dict[str, Tensor]] | None,
    behind: Callable[[Way], Way],
    own: Callable[[Sequence[Way]], list[Way]],
    **passes: Any,
) -> list[Way]:
    """The ways to compute outputs, or the gradients of images, by libraries and by the kernel for
    large convolutions.

    plain, fused, behind: see `library_ways_with_passes`. own: those by the kernel that may be
    faster than others. passes: what `packed_ways` puts behind.
    """
    group = problem.group
    ways = own([]) if group > 1 else []  # libraries are slow there, and may be spared
    if suffice(ways, problem):
        return ways
    ways += library_ways_with_passes(call, plain, fused, behind, group)
    ways += own(ways) if group == 1 else []
    return ways + packed_ways(call, *plain, group, ways, **passes)


@primitive("own")
def convolution_backward_data(
    call: CudaCall,
    dy: Tensor,
    w: Tensor,
    dx: Tensor,
    *,
    positive: Tensor | None = None,
    **settings: Any,
) -> Step:
    """positive: the output of a ReLU whose backward pass is folded in (by the fusion pass)."""
    problem = Problem.of(dx, w, dy, **settings)
    settle_weights(w)
    image, filters, maps = _held(call, dx), _held_weights(call, w), _held(call, dy)
    mask = None if positive is None else _held(call, positive)
    tensors = {"x": image, "w": filters, "y": maps}
    plain = describe(call, "data", tensors, problem.window)
    big = large_images(call.backend, problem, masked=mask is not None)
    nbytes = call.backend.nbytes(image)
    fused = None
    if mask is not None and nbytes >= WORTH_FUSING and big is None:
        fused = replace(plain, relu=0.0), tensors | {"mask": mask}

    def with_mask(way: Way) -> Way:
        return way if mask is None else way.then(lambda: mask_step(image, mask), 3 * nbytes)

    def own_large(others: Sequence[Way]) -> list[Way]:
        return large_ways(call, big, others, maps, filters, image, positive=mask) if big else []

    ways = _outputs(call, problem, (plain, tensors), fused, with_mask, own_large, positive=mask)
    if tiny := small(call.backend, problem):
        ways += small_correlations(
            call, tiny.turned, maps, filters, image, positive=mask, flipped=True
        )
    return fastest(call, ways)


@primitive("own")
def convolution_backward_filter(
    call: CudaCall,
    x: Tensor,
    dy: Tensor,
    dw: Tensor | None,
    db: Tensor | None,
    **settings: Any,
) -> Step:
    call.backend.settle(x)
    settle_row_major(db)
    maps = _held(call, dy)

    def bias_gradient() -> Step:
        assert db is not None
        rows = maps.size // maps.shape[1]
        return sum_rows(call, maps, db, rows, accumulate="db" in call.accumulates)

    if dw is None:
        return bias_gradient()
    problem = Problem.of(x, dw, dy, **settings)
    settle_weights(dw)
    tiny = small(call.backend, problem) if is_nhwc(dw) else None
    if tiny and x.shape[1] % 2:  # it takes x as it lies: no library does better
        own = small_gradients(call, tiny, x, maps, dw, db)
        if own:
            return fastest(call, own)
    ways = _filter_ways(call, problem, x, maps, dw)
    if db is not None:
        ways = [way.then(bias_gradient, call.backend.nbytes(maps)) for way in ways]
    if tiny:
        ways += small_gradients(call, tiny, _held(call, x), maps, dw, db)
    return fastest(call, ways)


def _filter_ways(call: CudaCall, problem: Problem, x: Tensor, dy: Tensor, dw: Tensor) -> list[Way]:
    """The ways to compute the gradients of filters alone, but for those by kernels for small
    convolutions."""
    backend, group, accumulate = call.backend, problem.group, "dw" in call.accumulates
    big, folding = large_gradient(backend, problem)
    images = _held(call, x) if folding is None else x
    ways = large_gradients(call, big, images, dy, dw, folding=folding) if big else []
    if suffice(ways, problem):
        return ways
    if folding is not None:
        tried = foldings(backend.dtype, problem)
        return ways + folded_ways(call, tried, "filter", x, dw, dy)
    if may_fold(backend.precision, problem):
        widest = foldings(backend.dtype, problem)[-1:]
        ways += folded_ways(call, widest, "filter", x, dw, dy)

    def by_library(plain: Convolution, operands: dict[str, Tensor]) -> list[Way]:
        found = library_ways(call, plain, operands, group)
        return found + packed_ways(call, plain, operands, group, [*ways, *found])

    if is_nhwc(dw):
        direct = {"x": images, "y": dy, "w": dw}
        plain = describe(call, "filter", direct, problem.window)
        if backend.dtype == "float32" and not accumulate:
            return ways + by_library(plain, direct)
        if group == 1:  # a product widens and adds, cuDNN does neither
            ways += convolution_product(call, plain, direct, accumulate=accumulate)
    part = temporary(call, dw.shape)
    indirect = {"x": images, "y": dy, "w": part}
    plain = describe(call, "filter", indirect, problem.window)
    nbytes = backend.nbytes(part) + (1 + accumulate) * 4 * dw.count
    converted = lambda: convert(part, dw, accumulate=accumulate)  # noqa: E731
    return ways + [way.then(converted, nbytes) for way in by_library(plain, indirect)]
