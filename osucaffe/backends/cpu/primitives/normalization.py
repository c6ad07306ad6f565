"""Local response normalization, softmax and batch normalization by NumPy: the last by formulas
over a blob and one number for each channel."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from string import ascii_lowercase

import numpy as np

from ...primitives import normalization as ops
from ...primitives import pooling
from ...primitives.formulas import Broadcast, Reduce
from ...tensor import Run, Shape, Tensor, sequence
from ..registry import Context, primitive
from ..windows import Windows
from .formulas import broadcast, planes, reduce
from .pooling import max_pooling, max_pooling_backward


class _Neighbours(Windows):
    """Sums over the neighbours of each element of an image: of `size` channels or pixels a side.

    scale is what the sum of squares is multiplied with: alpha / the number of neighbours.
    """

    def __init__(self, ctx: Context, x: Tensor, a: ops.Neighbourhood) -> None:
        image, spatial = x.shape[1:], len(x.shape) - 2
        kernel = [1] + [a.size] * spatial if a.within_channel else [a.size] + [1] * spatial
        pad = [(extent - 1) // 2 for extent in kernel]
        super().__init__(image, image, kernel, [1] * len(kernel), pad)
        self.scale = a.alpha / self.area
        self._scratch = ctx.temporary(self.padded)

    def clear(self) -> None:
        """Zero the padding (scratch holds anything before a step)."""
        self._scratch.array.fill(0)

    @property
    def source(self) -> np.ndarray:
        """Where to write the values to be summed."""
        interior: np.ndarray = self._scratch.array[self.interior]
        return interior

    def sum(self, out: np.ndarray) -> None:
        """out = the sum of the neighbours of each element of `source`."""
        out.fill(0)
        for tap in self.taps:
            out += self._scratch.array[tap]


@primitive()
def lrn(ctx: Context, a: ops.Lrn) -> Run:
    neighbours = _Neighbours(ctx, a.x, a)
    offset = 1.0 if a.within_channel else a.k
    sums = ctx.temporary(a.x.shape) if a.workspace is None else a.workspace

    def step() -> None:
        neighbours.clear()
        for image, out, s in zip(a.x.array, a.y.array, sums.array, strict=True):
            np.square(image, out=neighbours.source)
            neighbours.sum(s)
            s *= neighbours.scale
            s += offset
            np.power(s, -a.beta, out=out)
            out *= image

    return step


@primitive()
def lrn_backward(ctx: Context, a: ops.LrnBackward) -> Run:
    # dx = dy s^-beta - 2 beta scale x * (sum over the neighbours of dy y / s)
    neighbours = _Neighbours(ctx, a.x, a)
    factor = -2 * a.beta * neighbours.scale
    part = ctx.temporary(a.x.shape[1:])

    def step() -> None:
        neighbours.clear()
        arrays = (a.x.array, a.y.array, a.dy.array, a.workspace.array, a.dx.array)
        for image, out, gradient, s, result in zip(*arrays, strict=True):
            np.multiply(gradient, out, out=part.array)
            np.divide(part.array, s, out=neighbours.source)
            neighbours.sum(part.array)
            part.array *= image
            part.array *= factor
            np.power(s, -a.beta, out=result)
            result *= gradient
            result += part.array

    return step


@primitive()
def softmax(ctx: Context, a: ops.Softmax) -> Run:
    axis = a.axis
    outer, classes = math.prod(a.x.shape[:axis]), a.x.shape[axis]
    inner = math.prod(a.x.shape[axis + 1 :])
    transposed = None
    if inner == 1 and outer > classes:  # NumPy is slow at short lines: let them be the columns
        inner, outer = outer, 1
        transposed = ctx.temporary((outer, classes, inner))
    line = ctx.temporary((outer, 1, inner))

    def step() -> None:
        source, out = planes(a.x, axis), planes(a.y, axis)
        work = out
        if transposed is not None:
            work, out = transposed.array, out.T
            np.copyto(work, source.T)
            source = work
        np.max(source, axis=1, keepdims=True, out=line.array)
        np.subtract(source, line.array, out=work)
        np.exp(work, out=work)
        np.sum(work, axis=1, keepdims=True, out=line.array)
        np.divide(work, line.array, out=out)

    return step


@primitive()
def softmax_backward(ctx: Context, a: ops.SoftmaxBackward) -> Run:
    axis = a.axis
    product = ctx.temporary(a.y.shape)
    line = ctx.temporary((math.prod(a.y.shape[:axis]), 1, math.prod(a.y.shape[axis + 1 :])))

    def step() -> None:
        np.multiply(a.y.array, a.dy.array, out=product.array)
        np.sum(planes(product, axis), axis=1, keepdims=True, out=line.array)
        np.subtract(planes(a.dy, axis), line.array, out=planes(a.dx, axis))
        np.multiply(a.dx.array, a.y.array, out=a.dx.array)

    return step


class _Formulas:
    """Makes steps of formulas over blobs of one shape (N, C, ..) and tensors (C,)."""

    def __init__(self, ctx: Context, x: Tensor) -> None:
        self.ctx = ctx
        self.channels = (1, x.shape[1], *[1] * (len(x.shape) - 2))
        self.axes = (0, *range(2, len(x.shape)))
        self.count = x.count // x.shape[1]
        """Of elements of each channel."""

    def spread(self, tensor: Tensor) -> Tensor:
        """The tensor with as many axes as a blob."""
        return tensor.view(self.channels) if len(tensor.shape) == 1 < len(self.channels) else tensor

    def over(self, formula: str, y: Tensor, **operands: Tensor | None) -> Run:
        """A step for y = a formula over these operands."""
        inputs, text = self._bind(formula, operands)
        return broadcast(self.ctx, Broadcast(inputs, [y], formula=text))

    def sum(self, formula: str, y: Tensor, **operands: Tensor | None) -> Run:
        """A step for y (C,) = the sum of a formula over each channel."""
        inputs, text = self._bind(formula, operands)
        return reduce(self.ctx, Reduce(inputs, y, axes=self.axes, formula=text))

    def _bind(self, formula: str, operands: dict[str, Tensor | None]) -> tuple[list[Tensor], str]:
        """The operands that there are, and the formula with the letters that stand for them."""
        given = {name: tensor for name, tensor in operands.items() if tensor is not None}
        letters = dict(zip(given, ascii_lowercase, strict=False))
        text = re.sub(r"[a-z]\w*", lambda word: letters.get(word[0], word[0]), formula)
        return [self.spread(tensor) for tensor in given.values()], f"y = {text}"


def _normalized(small: Mapping[str, Tensor | None]) -> str:
    """The formula of x before the scale."""
    centred = "x" if small["mean"] is None else "(x - mean)"
    return centred if small["inv_std"] is None else f"{centred} * inv_std"


def _output(small: Mapping[str, Tensor | None]) -> str:
    """The formula of y before the addend."""
    scaled = _normalized(small) + (" * scale" if small["scale"] is not None else "")
    return scaled + (" + bias" if small["bias"] is not None else "")


@primitive()
def batch_norm_statistics(ctx: Context, a: ops.BatchNormStatistics) -> Run:
    of = _Formulas(ctx, a.x)
    variance = ctx.temporary(a.mean.shape)
    unbiased = of.count / (of.count - 1) if of.count > 1 else 1.0
    share = repr(1 / of.count)

    def remember() -> None:
        a.running_mean.array[:] = a.momentum * a.running_mean.array + a.mean.array
        a.running_variance.array[:] = (
            a.momentum * a.running_variance.array + unbiased * variance.array
        )
        a.running_weight.array[:] = a.momentum * a.running_weight.array + 1

    return sequence([
        of.sum(f"x * {share}", a.mean, x=a.x),
        of.sum(f"(x - mean) * (x - mean) * {share}", variance, x=a.x, mean=a.mean),
        of.over(f"1 / sqrt(variance + {a.eps!r})", of.spread(a.inv_std), variance=variance),
        remember,
    ])  # fmt: skip


class _Pixels:
    """Takes the pixels of images that `every` reaches, or puts them between zeros, by steps."""

    def __init__(self, ctx: Context, subsample: Shape | None) -> None:
        self.ctx, self.subsample, self.steps = ctx, subsample, list[Run]()

    def of(self, tensor: Tensor | None, shape: Shape) -> Tensor | None:
        """Those of the tensor, or the images of this shape of which it has them."""
        if tensor is None or self.subsample is None:
            return tensor
        there = (..., *(slice(None, None, step) for step in self.subsample))
        made, puts = self.ctx.temporary(shape), math.prod(shape) > tensor.count

        def step() -> None:
            if puts:
                made.array[...] = 0
                made.array[there] = tensor.array
            else:
                made.array[...] = tensor.array[there]

        self.steps.append(step)
        return made


@primitive()
def batch_norm(ctx: Context, a: ops.BatchNorm) -> Run:
    result = _output(a.channel_params) + (" + addend" if a.addend is not None else "")
    if a.relu:
        result = f"max({result}, 0)"
    taken = _Pixels(ctx, a.subsample)
    x, addend = (taken.of(each, a.y.shape) for each in (a.x, a.addend))
    formula = _Formulas(ctx, a.x).over(result, a.y, x=x, addend=addend, **a.channel_params)
    return sequence([*taken.steps, formula])


@primitive()
def batch_norm_backward(ctx: Context, a: ops.BatchNormBackward) -> Run:
    of, small = _Formulas(ctx, a.x), a.channel_params
    dscale, dbias, put = a.dscale, a.dbias, _Pixels(ctx, a.subsample)
    relu_output, dy, *dys = (put.of(each, a.x.shape) for each in (a.relu_output, *a.dys))
    steps = put.steps
    if a.relu or dys or a.dy is not None:
        parts = {f"part{i}": part for i, part in enumerate((dy, *dys))}
        dy = a.dy or ctx.temporary(a.x.shape)
        formula = " + ".join(parts)
        if a.relu and a.relu_output is None:
            formula = f"where({_output(small)} > 0, {formula}, 0)"
            parts |= {"x": a.x, **small}
        elif a.relu:
            formula = f"where(relu_output > 0, {formula}, 0)"
            parts |= {"relu_output": relu_output}
        steps.append(of.over(formula, dy, **parts))
    normalized = _normalized(small)
    average = a.dx is not None and not a.constant
    if dbias is not None or average:
        dbias = dbias or ctx.temporary((a.x.shape[1],))
        steps.append(of.sum("dy", dbias, dy=dy))
    if dscale is not None or average:
        dscale = dscale or ctx.temporary((a.x.shape[1],))
        steps.append(
            of.sum(f"dy * {normalized}", dscale, dy=dy, x=a.x, mean=a.mean, inv_std=a.inv_std)
        )
    if a.dx is not None:
        formula, parts = "dy", {"dy": dy, "inv_std": a.inv_std, "scale": a.scale}
        if average:
            share = repr(1 / of.count)
            formula = f"(dy - {share} * dbias - {normalized} * {share} * dscale)"
            parts |= {"x": a.x, "mean": a.mean, "dbias": dbias, "dscale": dscale}
        factors = [name for name in ("inv_std", "scale") if parts[name] is not None]
        steps.append(of.over(" * ".join([*factors, formula]), a.dx, **parts))
    return sequence(steps)


@primitive()
def batch_norm_pooling(ctx: Context, a: ops.BatchNormPooling) -> Run:
    y = ctx.temporary(a.x.shape)
    normalize = batch_norm(ctx, ops.BatchNorm(a.x, a.mean, a.inv_std, a.scale, a.bias, None, y))
    pool = max_pooling(
        ctx, pooling.MaxPooling(y, a.y, a.index, kernel=a.kernel, stride=a.stride, pad=a.pad)
    )

    def finish() -> None:
        if a.relu:
            np.maximum(a.y.array, 0, out=a.y.array)
        channels = (*a.y.shape[:2], -1)
        x, index = a.x.array.reshape(channels), a.index.array.reshape(channels)
        a.max_input.array[...] = np.take_along_axis(x, index, 2).reshape(a.y.shape)

    return sequence([normalize, pool, finish])


@primitive()
def batch_norm_pooling_backward(ctx: Context, a: ops.BatchNormPoolingBackward) -> Run:
    dy = ctx.temporary(a.x.shape)
    window = pooling.MaxPoolingBackward(
        a.dy, a.index, dy, kernel=a.kernel, stride=a.stride, pad=a.pad
    )
    norm = ops.BatchNormBackward(
        a.x, [dy], a.mean, a.inv_std, a.scale, a.bias, None, None, a.dx, a.dscale, a.dbias,
        a.constant, a.relu,
    )  # fmt: skip
    return sequence([max_pooling_backward(ctx, window), batch_norm_backward(ctx, norm)])
