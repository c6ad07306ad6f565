"""Formulas by NumPy, in chunks and on several threads: over elements, over tensors that repeat
each other along axes of extent 1, and sums of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from string import ascii_lowercase

import numpy as np

from ...primitives import formulas as ops
from ...random import call_key, keep_threshold, squares32
from ...tensor import Run, Shape, Tensor
from ..evaluate import CHUNK, Evaluate
from ..registry import Context, primitive
from ..workers import SMALL, cut


def flat(tensor: Tensor) -> np.ndarray:
    """All elements of a placed tensor, padding included, as one axis."""
    array: np.ndarray = tensor.array.reshape(-1)
    return array


def matrix(tensor: Tensor, axis: int) -> np.ndarray:
    """The tensor with the axes before `axis` as rows and the others as columns."""
    rows, columns = math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:])
    matrix: np.ndarray = tensor.array.reshape(rows, columns)
    return matrix


def planes(tensor: Tensor, axis: int) -> np.ndarray:
    """The tensor's array as (outer, extent of axis, inner)."""
    outer, inner = math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis + 1 :])
    array: np.ndarray = tensor.array.reshape(outer, tensor.shape[axis], inner)
    return array


def over_chunks(ctx: Context, size: int, worker: Callable[[], Callable[[int, int], None]]) -> Run:
    """A step that covers range(size) by several threads, each with a function of its own.

    worker() makes one function (start, stop), with the scratch memory of one thread.
    """
    tasks = [partial(worker(), start, stop) for start, stop in ctx.backend.workers.ranges(size)]

    def step() -> None:
        ctx.backend.workers.run(tasks)

    return step


def formula(
    ctx: Context,
    text: str,
    operands: dict[str, Tensor],
    constants: dict[str, float] | None = None,
) -> Run:
    """A step that evaluates a formula over all elements of the operands, by their names."""
    tensors = list(operands.values())
    size = tensors[0].size

    def worker() -> Callable[[int, int], None]:
        evaluate = Evaluate(
            text, list(operands), (), constants,
            dtype=ctx.backend.dtype, length=min(size, CHUNK), shared=True,
        )  # fmt: skip

        def work(start: int, stop: int) -> None:
            evaluate([flat(tensor) for tensor in tensors], (), start, stop)

        return work

    return over_chunks(ctx, size, worker)


def keeps_zeros(a: ops.Elementwise) -> bool:
    """Whether all outputs of the formula are zero where all inputs are."""
    names = [*ascii_lowercase[: ascii_lowercase.index(ops.OUTPUTS[0])], *ops.OUTPUTS]
    arrays = [np.zeros(1) for _ in names]
    with np.errstate(all="ignore"):
        evaluate = Evaluate(a.formula, names, (), a.constants, dtype="float64", length=1)
        evaluate(arrays, (), 0, 1)
    return not any(array.any() for array in arrays)


@primitive(agnostic=keeps_zeros)
def elementwise(ctx: Context, a: ops.Elementwise) -> Run:
    return formula(ctx, a.formula, a.operands, a.constants)


@primitive(agnostic=True)
def sum_(ctx: Context, a: ops.Sum) -> Run:
    operands = {f"x{i}": x for i, x in enumerate(a.xs)}
    constants = {f"c{i}": c for i, c in enumerate(a.coefficients or [1.0] * len(a.xs)) if c != 1}
    terms = [f"c{i} * x{i}" if f"c{i}" in constants else f"x{i}" for i in range(len(a.xs))]
    return formula(ctx, "y = " + " + ".join(terms), operands | {"y": a.y}, constants)


@primitive(agnostic=True)
def relu(ctx: Context, a: ops.Relu) -> Run:
    return formula(ctx, relu_formula(a.slope), {"y": a.y} | {"x": a.x})


def relu_formula(slope: float) -> str:
    """y = x if x > 0 else slope * x, as cheap as it goes."""
    if slope == 0:
        return "y = max(x, 0)"
    return f"y = max(x, {slope!r} * x)" if 0 < slope <= 1 else f"y = where(x > 0, x, {slope!r} * x)"


@primitive(agnostic=True)
def relu_backward(ctx: Context, a: ops.ReluBackward) -> Run:
    below = f"{a.slope!r} * dy" if a.slope else "0"
    return formula(ctx, f"dx = where(x > 0, dy, {below})", {"x": a.x, "dy": a.dy, "dx": a.dx})


class RandomBits:
    """Draws 32 random bits for elements of a tensor of this size, a piece after another.

    An instance has memory of its own: give every thread one.
    """

    def __init__(self, ctx: Context, size: int, key: int) -> None:
        self._random, self._size, self._key = ctx.backend.random, size, key
        self._numbers = [np.empty(max(1, min(CHUNK, size)), np.uint64) for _ in range(4)]

    def __call__(self, start: int, stop: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Each piece of the elements, and its bits as uint64."""
        key, length = call_key(self._random.seed, self._key), len(self._numbers[0])
        for begin in range(start, stop, length):
            end = min(begin + length, stop)
            bits, *scratch = [array[: end - begin] for array in self._numbers]
            squares32(self._random.counter(self._size, begin), key, bits, scratch)
            yield slice(begin, end), bits


@primitive()
def dropout(ctx: Context, a: ops.Dropout) -> Run:
    threshold, scale = keep_threshold(a.ratio), 1 / (1 - a.ratio)

    def worker() -> Callable[[int, int], None]:
        draw = RandomBits(ctx, a.x.size, a.key)

        def work(start: int, stop: int) -> None:
            source, target, mask = flat(a.x), flat(a.y), flat(a.mask)
            for piece, bits in draw(start, stop):
                np.greater_equal(bits, threshold, out=mask[piece], casting="unsafe")
                np.multiply(source[piece], mask[piece], out=target[piece])
                np.multiply(target[piece], scale, out=target[piece])

        return work

    return over_chunks(ctx, a.x.size, worker)


@primitive()
def dropout_backward(ctx: Context, a: ops.DropoutBackward) -> Run:
    operands = {"dy": a.dy, "mask": a.mask, "dx": a.dx}
    return formula(ctx, "dx = dy * mask * scale", operands, {"scale": 1 / (1 - a.ratio)})


Box = tuple[slice, ...]


def boxes(shape: Shape) -> list[Box]:
    """Cut an array of this shape into boxes of at most CHUNK elements, in row-major order."""
    split, inner = len(shape), 1  # whole axes from `split` on are `inner` elements
    while split and inner * shape[split - 1] <= CHUNK:
        split -= 1
        inner *= shape[split]
    if not split:
        return [tuple(slice(0, extent) for extent in shape)]
    rows = max(1, CHUNK // inner)
    whole = tuple(slice(0, extent) for extent in shape[split:])
    return [
        (*(slice(at, at + 1) for at in outer), slice(start, min(start + rows, extent)), *whole)
        for extent in [shape[split - 1]]
        for outer in np.ndindex(*shape[: split - 1])
        for start in range(0, extent, rows)
    ]


def clip(box: Box, shape: Shape) -> Box:
    """The box in a tensor that is repeated along its axes of extent 1."""
    return tuple(
        slice(0, 1) if extent == 1 else part for part, extent in zip(box, shape, strict=True)
    )


def extents(box: Box) -> Shape:
    """The shape of a box."""
    return tuple(part.stop - part.start for part in box)


@primitive()
def broadcast(ctx: Context, a: ops.Broadcast) -> Run:
    operands, tensors = list(a.operands), list(a.operands.values())
    pieces = [
        (extents(box), [clip(box, tensor.shape) for tensor in tensors])
        for box in boxes(a.outputs[0].shape)
    ]

    def worker(start: int, stop: int) -> Callable[[], None]:
        evaluate = Evaluate(
            a.formula, operands, (), a.constants, dtype=ctx.backend.dtype, shared=True
        )

        def work() -> None:
            evaluate.set_scalars(())
            for shape, places in pieces[start:stop]:
                # The ellipsis keeps a scalar's array one: it is written to.
                arrays = [t.array[*p, ...] for t, p in zip(tensors, places, strict=True)]
                evaluate.piece(arrays, shape)

        return work

    workers = ctx.backend.workers
    parts = workers.count if a.outputs[0].count >= SMALL else 1
    return partial(workers.run, [worker(*part) for part in cut(len(pieces), parts)])


@primitive()
def reduce(ctx: Context, a: ops.Reduce) -> Run:
    inputs, y = a.inputs, a.y
    full = np.broadcast_shapes(*(tensor.shape for tensor in inputs))
    summed = tuple(a.axes)
    reduced = tuple(1 if axis in summed else extent for axis, extent in enumerate(full))
    operands = [*a.operands, "y"]
    evaluate = Evaluate(a.formula, operands, (), a.constants, dtype=ctx.backend.dtype)
    length = min(CHUNK, math.prod(full))
    value, part = ctx.temporary((length,)), ctx.temporary((length,))
    pieces = [
        (extents(box), [clip(box, tensor.shape) for tensor in inputs], clip(box, reduced))
        for box in boxes(full)
    ]

    def step() -> None:
        total = y.array.reshape(reduced)
        total.fill(0)
        evaluate.set_scalars(())
        for shape, places, place in pieces:
            values = value.array[: math.prod(shape)].reshape(shape)
            arrays = [t.array[*p, ...] for t, p in zip(inputs, places, strict=True)]
            evaluate.piece([*arrays, values], shape)
            target = total[*place, ...]
            sums = part.array[: target.size].reshape(target.shape)
            np.sum(values, axis=summed, keepdims=True, out=sums)
            np.add(target, sums, out=target)

    return step
