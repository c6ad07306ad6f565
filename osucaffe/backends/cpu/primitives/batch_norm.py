"""Owns batch normalization by NumPy: formulas over a blob and one number for each channel."""

from __future__ import annotations

import re
from string import ascii_lowercase

from ...tensor import Step, Tensor, sequence
from ..registry import CpuCall, primitive
from .broadcast import broadcast, reduce


class _Formulas:
    """Makes steps of formulas over blobs of one shape (N, C, ..) and tensors (C,)."""

    def __init__(self, call: CpuCall, x: Tensor) -> None:
        self.call = call
        self.channels = (1, x.shape[1], *[1] * (len(x.shape) - 2))
        self.axes = (0, *range(2, len(x.shape)))
        self.count = x.count // x.shape[1]
        """Of elements of each channel."""

    def spread(self, tensor: Tensor) -> Tensor:
        """The tensor with as many axes as a blob."""
        return tensor.view(self.channels) if len(tensor.shape) == 1 < len(self.channels) else tensor

    def over(self, formula: str, y: Tensor, **operands: Tensor | None) -> Step:
        """A step for y = a formula over these operands."""
        inputs, text = self._bind(formula, operands)
        return broadcast(self.call, inputs, [y], formula=text)

    def sum(self, formula: str, y: Tensor, **operands: Tensor | None) -> Step:
        """A step for y (C,) = the sum of a formula over each channel."""
        inputs, text = self._bind(formula, operands)
        return reduce(self.call, inputs, y, formula=text, axes=self.axes)

    def _bind(self, formula: str, operands: dict[str, Tensor | None]) -> tuple[list[Tensor], str]:
        """The operands that there are, and the formula with the letters that stand for them."""
        given = {name: tensor for name, tensor in operands.items() if tensor is not None}
        letters = dict(zip(given, ascii_lowercase, strict=False))
        text = re.sub(r"[a-z]\w*", lambda word: letters.get(word[0], word[0]), formula)
        return [self.spread(tensor) for tensor in given.values()], f"y = {text}"


def _normalized(mean: Tensor | None, rate: Tensor | None) -> str:
    """The formula of x before the scale."""
    centred = "x" if mean is None else "(x - mean)"
    return centred if rate is None else f"{centred} * rate"


def _output(
    mean: Tensor | None, rate: Tensor | None, scale: Tensor | None, bias: Tensor | None
) -> str:
    """The formula of y before the addend."""
    scaled = _normalized(mean, rate) + (" * scale" if scale is not None else "")
    return scaled + (" + bias" if bias is not None else "")


@primitive()
def batch_norm_statistics(
    call: CpuCall,
    x: Tensor,
    mean: Tensor,
    rate: Tensor,
    past_means: Tensor,
    past_variances: Tensor,
    past_weight: Tensor,
    *,
    eps: float,
    fraction: float,
) -> Step:
    of = _Formulas(call, x)
    variance = call.temporary(mean.shape)
    unbiased = of.count / (of.count - 1) if of.count > 1 else 1.0
    share = repr(1 / of.count)

    def remember() -> None:
        past_means.array[:] = fraction * past_means.array + mean.array
        past_variances.array[:] = fraction * past_variances.array + unbiased * variance.array
        past_weight.array[:] = fraction * past_weight.array + 1

    return sequence([
        of.sum(f"x * {share}", mean, x=x),
        of.sum(f"(x - mean) * (x - mean) * {share}", variance, x=x, mean=mean),
        of.over(f"1 / sqrt(variance + {eps!r})", of.spread(rate), variance=variance),
        remember,
    ])  # fmt: skip


@primitive()
def batch_norm(
    call: CpuCall,
    x: Tensor,
    mean: Tensor | None,
    rate: Tensor | None,
    scale: Tensor | None,
    bias: Tensor | None,
    addend: Tensor | None,
    y: Tensor,
    *,
    relu: bool = False,
) -> Step:
    result = _output(mean, rate, scale, bias) + (" + addend" if addend is not None else "")
    if relu:
        result = f"max({result}, 0)"
    given = {"x": x, "mean": mean, "rate": rate, "scale": scale, "bias": bias, "addend": addend}
    return _Formulas(call, x).over(result, y, **given)


@primitive()
def batch_norm_backward(
    call: CpuCall,
    x: Tensor,
    dys: list[Tensor],
    mean: Tensor | None,
    rate: Tensor | None,
    scale: Tensor | None,
    bias: Tensor | None,
    relu_output: Tensor | None,
    dy: Tensor | None,
    dx: Tensor | None,
    dscale: Tensor | None,
    dbias: Tensor | None,
    *,
    constant: bool,
    relu: bool = False,
) -> Step:
    of = _Formulas(call, x)
    steps: list[Step] = []
    small: dict[str, Tensor | None] = {"mean": mean, "rate": rate, "scale": scale, "bias": bias}
    if relu or len(dys) > 1 or dy is not None:
        dy = dy or call.temporary(x.shape)
        parts: dict[str, Tensor | None] = {f"part{i}": part for i, part in enumerate(dys)}
        formula = " + ".join(parts)
        if relu and relu_output is None:
            formula = f"where({_output(mean, rate, scale, bias)} > 0, {formula}, 0)"
            parts |= {"x": x, **small}
        elif relu:
            formula = f"where(relu_output > 0, {formula}, 0)"
            parts |= {"relu_output": relu_output}
        steps.append(of.over(formula, dy, **parts))
    else:
        dy = dys[0]
    normalized = _normalized(mean, rate)
    average = dx is not None and not constant
    if dbias is not None or average:
        dbias = dbias or call.temporary((x.shape[1],))
        steps.append(of.sum("dy", dbias, dy=dy))
    if dscale is not None or average:
        dscale = dscale or call.temporary((x.shape[1],))
        steps.append(of.sum(f"dy * {normalized}", dscale, dy=dy, x=x, mean=mean, rate=rate))
    if dx is not None:
        formula, parts = "dy", {"dy": dy, "rate": rate, "scale": scale}
        if average:
            share = repr(1 / of.count)
            formula = f"(dy - {share} * dbias - {normalized} * {share} * dscale)"
            parts |= {"x": x, "mean": mean, "dbias": dbias, "dscale": dscale}
        factors = [name for name in ("rate", "scale") if parts[name] is not None]
        steps.append(of.over(" * ".join([*factors, formula]), dx, **parts))
    return sequence(steps)
