"""Owns the ways to compute convolutions and matrix products by libraries.

A way: cuDNN on all groups at once; cuDNN on each group, as slices of the channels (packing.py has
another, on copies of them); where a 1 x 1 kernel visits every pixel, a matrix product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..tensor import Step, Tensor, sequence
from .cublas import Algorithm, Product
from .cudnn import HEAVY, Plan
from .cudnn_graph import Convolution, Operand
from .kernels import blocks_for, kernel, launch
from .layout import C_TYPES, ITEM_BYTES, channels_last, dtype_of
from .registry import CudaCall
from .ways import Way, Window

MOST_SLICES = 8
"""Up to so many groups, each may get a convolution of its own."""
LIGHT = 4e9
"""Multiplications below which a matrix product is taken as it comes: a faster plan would be a few
us faster, and takes 0.2 s to compile."""
WORKSPACE_ALIGNMENT = 256
"""cuBLASLt refuses a workspace that begins at no such address."""


def _operand(tensor: Tensor) -> Operand:
    """A tensor that lies channels last, for cuDNN: (N, C, L) becomes (N, C, 1, L)."""
    shape = tensor.shape
    if len(shape) == 3:
        shape = (*shape[:2], 1, shape[2])
    return Operand(shape, channels_last(shape), dtype_of(tensor))


def describe(
    call: CudaCall, operation: str, tensors: dict[str, Tensor], window: Window
) -> Convolution:
    """The convolution of x, w and y, which lie channels last."""
    stride, pad, dilation = window
    if len(stride) == 1:
        stride, pad, dilation = (1, *stride), (0, *pad), (1, *dilation)
    x, w, y = (_operand(tensors[name]) for name in "xwy")
    return Convolution(operation, call.backend.precision, x, w, y, stride, pad, dilation)


def library_ways(
    call: CudaCall, convolution: Convolution, tensors: dict[str, Tensor], group: int
) -> list[Way]:
    """The ways to compute it with what it fuses. tensors: the operands by name."""
    find = call.backend.cudnn.plan
    ways = convolution_product(call, convolution, tensors) if group == 1 else []
    if ways and (convolution.operation == "forward" or convolution.work < LIGHT):
        return ways  # no need to wait for cuDNN's compiler
    if whole := find(convolution):
        build, taken = whole
        ways.append(Way(taken, lambda: plan_step(call, build(), tensors)))
    if 1 < group <= MOST_SLICES:
        part = one_group(convolution, group)
        offsets = group_offsets(part)
        aligned = all(offsets[name] % 16 == 0 for name in tensors)
        if aligned and (sliced := find(part)):
            build_each, taken = sliced
            places = [{name: i * offsets[name] for name in tensors} for i in range(group)]
            ways.append(Way(group * taken, lambda: plan_step(call, build_each(), tensors, places)))
    return ways


def library_ways_with_passes(
    call: CudaCall,
    plain: tuple[Convolution, dict[str, Tensor]],
    fused: tuple[Convolution, dict[str, Tensor]] | None,
    behind: Callable[[Way], Way],
    group: int,
) -> list[Way]:
    """The ways to compute a convolution with what comes behind it: fused where that can be, and
    the plain one with a pass of its own for the rest. Each is given with its operands.

    behind: puts the pass behind a way.
    """
    ways = library_ways(call, *fused, group) if fused else []
    # All that fuses in 16 bits has to be compiled; where that takes longest, it is the fastest.
    if ways and call.backend.dtype != "float32" and plain[0].work > HEAVY:
        return ways
    return [*map(behind, library_ways(call, *plain, group)), *ways]


def one_group(convolution: Convolution, group: int) -> Convolution:
    """The convolution of one of the groups, with views into the whole tensors."""

    def channels(operand: Operand, axis: int) -> Operand:
        shape = list(operand.shape)
        shape[axis] //= group
        return operand._replace(shape=tuple(shape))

    return replace(
        convolution,
        x=channels(convolution.x, 1),
        w=channels(convolution.w, 0),
        y=channels(convolution.y, 1),
    )


def group_offsets(part: Convolution) -> dict[str, int]:
    """Bytes from each operand of a group to that of the next."""
    inputs = part.x.shape[1] * ITEM_BYTES[part.x.dtype]
    return {
        "x": inputs,
        "mask": inputs,
        "w": part.w.shape[0] * part.w.strides[0] * ITEM_BYTES[part.w.dtype],
        "y": part.y.shape[1] * ITEM_BYTES[part.y.dtype],
        "b": part.y.shape[1] * ITEM_BYTES[part.bias or "float32"],
    }


def _workspace(call: CudaCall, nbytes: int) -> Callable[[], int]:
    """What gives the address of so many bytes of scratch, or 0 if none are wanted."""
    if not nbytes:
        return lambda: 0
    scratch = call.temporary((nbytes + WORKSPACE_ALIGNMENT,), "uint8")
    return lambda: -(-scratch.address // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def plan_step(
    call: CudaCall,
    plan: Plan,
    tensors: dict[str, Tensor],
    places: Sequence[dict[str, int]] = ({},),
) -> Step:
    """A step that runs the plan at each of the places (offsets in bytes from the tensors)."""
    return sequence(plan_steps(call, plan, tensors, places))


def plan_steps(
    call: CudaCall, plan: Plan, tensors: dict[str, Tensor], places: Sequence[dict[str, int]]
) -> list[Step]:
    """A step for each of the places; they share scratch memory, so one runs after another."""
    scratch = _workspace(call, plan.workspace)

    def run(place: dict[str, int]) -> None:
        addresses = {name: tensor.address + place.get(name, 0) for name, tensor in tensors.items()}
        plan.execute(addresses, scratch())

    return [functools.partial(run, place) for place in places]


def _is_product(convolution: Convolution) -> bool:
    """Whether it is a matrix product: each pixel of y depends on that pixel of x alone."""
    return (
        math.prod(convolution.w.shape[2:]) == 1
        and set(convolution.stride) == {1}
        and not any(convolution.pad)
    )


def convolution_product(
    call: CudaCall,
    convolution: Convolution,
    tensors: dict[str, Tensor],
    *,
    accumulate: bool = False,
) -> list[Way]:
    """The way to compute it as a product, if it is one. accumulate: add to the result."""
    if not _is_product(convolution) or (convolution.operation == "data" and "mask" in tensors):
        return []
    x, w, y = (tensors[name] for name in "xwy")
    inputs, outputs = x.shape[1], y.shape[1]
    pixels = x.count // inputs
    if convolution.operation == "data":
        return product_ways(call, y, w, x, (pixels, inputs, outputs))
    if convolution.operation == "filter":
        size = outputs, inputs, pixels
        return product_ways(call, y, x, w, size, transpose_a=True, accumulate=accumulate)
    words = ["bias"] * (convolution.bias is not None) + ["relu"] * (convolution.relu is not None)
    return product_ways(
        call, x, w, y, (pixels, outputs, inputs), transpose_b=True, bias=tensors.get("b"),
        epilogue=" ".join(words),
    )  # fmt: skip


def product_ways(
    call: CudaCall,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    size: tuple[int, int, int],
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: Tensor | None = None,
    epilogue: str = "",
    accumulate: bool = False,
) -> list[Way]:
    """At most one way to compute c (m, n) = a (m, k) b (k, n), row-major matrices in memory.

    size: m, n, k. epilogue: see cublas.Product; bias: a parameter of n elements.
    """
    backend = call.backend
    product = Product(
        backend.precision, *size, transpose_a, transpose_b, dtype_of(a), dtype_of(c), epilogue,
        accumulate,
    )  # fmt: skip
    algorithm = backend.cublas.algorithm(product)
    if algorithm is None:
        return []
    return [Way(algorithm.milliseconds, lambda: _product_step(call, algorithm, a, b, c, bias))]


def _product_step(
    call: CudaCall, algorithm: Algorithm, a: Tensor, b: Tensor, c: Tensor, bias: Tensor | None
) -> Step:
    scratch = _workspace(call, algorithm.workspace)
    # The bias has to be of the output's type.
    short = call.backend.shadow(bias) if bias is not None else None

    def step() -> None:
        algorithm.execute(
            a.address, b.address, c.address, short.address if short else 0, scratch()
        )  # fmt: skip

    return step


def bias_step(
    y: Tensor,
    b: Tensor | None,
    relu: float | None,
    channels: int,
    part: Tensor | None = None,
    first: int = 0,
) -> Step:
    """A step that adds the bias and applies the ReLU; channels vary fastest in y.

    part: what they go to: those channels of y from `first` on, packed; None: all of them, in place.
    """
    x, width = (y, channels) if part is None else (part, part.shape[1])
    vector = math.gcd(channels, width, first, 16 // ITEM_BYTES[dtype_of(y)])
    function = kernel("convolution", "add_bias", T=C_TYPES[dtype_of(y)], VEC=vector)
    count = x.size // vector
    places = [np.int32(each // vector) for each in (width, channels, first)]
    slope = np.float32(1.0 if relu is None else relu)
    return launch(function, blocks_for(count), [x, y, b, np.int64(count), *places, slope])
