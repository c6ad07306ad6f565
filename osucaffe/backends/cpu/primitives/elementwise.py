"""Owns the NumPy primitives that treat each element alone, in chunks and on several threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from string import ascii_lowercase
from typing import Any

import numpy as np

from ...primitives.formulas import Dropout, DropoutBackward, Elementwise, Relu, ReluBackward, Sum
from ...random import call_key, keep_threshold, squares32
from ...tensor import Step, Tensor
from ..evaluate import CHUNK, Evaluate
from ..registry import CpuCall, primitive


def flat(tensor: Tensor) -> np.ndarray:
    """All elements of a placed tensor, padding included, as one axis."""
    array: np.ndarray = tensor.array.reshape(-1)
    return array


def over_chunks(call: CpuCall, size: int, worker: Callable[[], Callable[[int, int], None]]) -> Step:
    """A step that covers range(size) by several threads, each with a function of its own.

    worker() makes one function (start, stop), with the scratch memory of one thread.
    """
    tasks = [partial(worker(), start, stop) for start, stop in call.backend.workers.ranges(size)]

    def step() -> None:
        call.backend.workers.run(tasks)

    return step


def formula(
    call: CpuCall,
    text: str,
    operands: dict[str, Tensor],
    constants: dict[str, float] | None = None,
) -> Step:
    """A step that evaluates a formula over all elements of the operands, by their names."""
    tensors = list(operands.values())
    size = tensors[0].size

    def worker() -> Callable[[int, int], None]:
        evaluate = Evaluate(
            text, list(operands), (), constants,
            dtype=call.backend.dtype, length=min(size, CHUNK), shared=True,
        )  # fmt: skip

        def work(start: int, stop: int) -> None:
            evaluate([flat(tensor) for tensor in tensors], (), start, stop)

        return work

    return over_chunks(call, size, worker)


OUTPUTS = ("y", "z")


def keeps_zeros(settings: dict[str, Any]) -> bool:
    """Whether all outputs of the formula are zero where all inputs are."""
    names = [*ascii_lowercase[: ascii_lowercase.index(OUTPUTS[0])], *OUTPUTS]
    arrays = [np.zeros(1) for _ in names]
    with np.errstate(all="ignore"):
        evaluate = Evaluate(
            settings["formula"], names, (), settings["constants"], dtype="float64", length=1
        )
        evaluate(arrays, (), 0, 1)
    return not any(array.any() for array in arrays)


@primitive(agnostic=keeps_zeros)
def elementwise(call: CpuCall, a: Elementwise) -> Step:
    operands = dict(zip(ascii_lowercase, a.inputs, strict=False))
    operands |= dict(zip(OUTPUTS, a.outputs, strict=False))
    return _formula(call, a.formula, operands, a.constants)


_formula = formula  # the setting of that name hides it in `elementwise`


@primitive(agnostic=True)
def sum_(call: CpuCall, a: Sum) -> Step:
    operands = {f"x{i}": x for i, x in enumerate(a.xs)}
    constants = {f"c{i}": c for i, c in enumerate(a.coefficients or [1.0] * len(a.xs)) if c != 1}
    terms = [f"c{i} * x{i}" if f"c{i}" in constants else f"x{i}" for i in range(len(a.xs))]
    return formula(call, "y = " + " + ".join(terms), operands | {"y": a.y}, constants)


@primitive(agnostic=True)
def relu(call: CpuCall, a: Relu) -> Step:
    return formula(call, relu_formula(a.slope), {"y": a.y} | {"x": a.x})


def relu_formula(slope: float) -> str:
    """y = x if x > 0 else slope * x, as cheap as it goes."""
    if slope == 0:
        return "y = max(x, 0)"
    return f"y = max(x, {slope!r} * x)" if 0 < slope <= 1 else f"y = where(x > 0, x, {slope!r} * x)"


@primitive(agnostic=True)
def relu_backward(call: CpuCall, a: ReluBackward) -> Step:
    below = f"{a.slope!r} * dy" if a.slope else "0"
    return formula(call, f"dx = where(x > 0, dy, {below})", {"x": a.x, "dy": a.dy, "dx": a.dx})


@primitive()
def dropout(call: CpuCall, a: Dropout) -> Step:
    threshold, scale = keep_threshold(a.ratio), 1 / (1 - a.ratio)
    random = call.backend.random

    def worker() -> Callable[[int, int], None]:
        length = max(1, min(CHUNK, a.x.size))
        numbers = [np.empty(length, np.uint64) for _ in range(4)]

        def work(start: int, stop: int) -> None:
            source, target, kept = flat(a.x), flat(a.y), flat(a.mask)
            seed = call_key(random.seed, a.key)
            for begin in range(start, stop, length):
                end = min(begin + length, stop)
                drawn, *scratch = [array[: end - begin] for array in numbers]
                squares32(random.counter(a.x.size, begin), seed, drawn, scratch)
                keep = kept[begin:end]
                np.greater_equal(drawn, threshold, out=keep, casting="unsafe")
                np.multiply(source[begin:end], keep, out=target[begin:end])
                np.multiply(target[begin:end], scale, out=target[begin:end])

        return work

    return over_chunks(call, a.x.size, worker)


@primitive()
def dropout_backward(call: CpuCall, a: DropoutBackward) -> Step:
    operands = {"dy": a.dy, "mask": a.mask, "dx": a.dx}
    return formula(call, "dx = dy * mask * scale", operands, {"scale": 1 / (1 - a.ratio)})
