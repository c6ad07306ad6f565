"""Owns ReLU, sum, copy, concat, split and softmax on oneDNN."""

from __future__ import annotations

from collections.abc import Sequence

from ...tensor import Step, Tensor
from . import api
from .api import Descriptor, Unsupported
from .memory import Preparation, in_sequence, is_open


def _format(p: Preparation, tensor: Tensor) -> Descriptor:
    """The format in which a tensor was written."""
    if is_open(tensor):
        raise Unsupported("nothing has been written yet")
    return p.held(tensor)


def relu(p: Preparation, x: Tensor, y: Tensor, *, slope: float) -> Step:
    """See `Program.relu`."""
    form = _format(p, x)
    chosen = p.library.describe(
        "eltwise_forward", api.FORWARD_TRAINING, api.RELU, form, form, slope, 0.0
    )
    return p.execute(chosen, {api.SRC: p.source(x, form), api.DST: p.target(y, form)})


def relu_backward(p: Preparation, x: Tensor, dy: Tensor, dx: Tensor, *, slope: float) -> Step:
    """See `Program.relu_backward`."""
    form = _format(p, x)
    hint = p.library.describe(
        "eltwise_forward", api.FORWARD_TRAINING, api.RELU, form, form, slope, 0.0
    )
    chosen = p.library.describe("eltwise_backward", api.RELU, form, form, form, slope, 0.0, hint)
    return p.execute(
        chosen,
        {
            api.SRC: p.source(x, form),
            api.DIFF_DST: p.source(dy, form),
            api.DIFF_SRC: p.target(dx, form),
        },
    )


def sum(
    p: Preparation, xs: Sequence[Tensor], y: Tensor, *, coefficients: Sequence[float] | None
) -> Step:
    """See `Program.sum`."""
    # What y itself contributes must come first: oneDNN overwrites y with that and adds the others.
    factors = coefficients or [1.0] * len(xs)
    order = sorted(range(len(xs)), key=lambda i: xs[i] is not y)
    form = _format(p, xs[order[0]])
    chosen = p.library.describe("sum", form, len(xs), [factors[i] for i in order], [form] * len(xs))
    return p.execute(
        chosen,
        {
            **{api.MULTIPLE_SRC + place: p.source(xs[i], form) for place, i in enumerate(order)},
            api.DST: p.target(y, form),
        },
    )


def copy(p: Preparation, x: Tensor, y: Tensor) -> Step:
    """See `Program.copy`."""
    layout = x.layout or y.layout
    plain = p.plain(x) if layout is None else layout.plain
    form = p.held(x, plain)
    final = form if is_open(y) else p.held(y, plain)
    chosen = p.library.describe("reorder", form, final)
    return p.execute(
        chosen, {api.SRC: p.source(x, form, plain), api.DST: p.target(y, final, plain)}
    )


def concat(p: Preparation, xs: Sequence[Tensor], y: Tensor, *, axis: int) -> Step:
    """See `Program.concat`."""
    forms = [_format(p, x) for x in xs]
    form = None if is_open(y) else p.held(y)
    chosen = p.library.describe("concat", form, len(xs), axis % len(y.shape), forms)
    sources = {api.MULTIPLE_SRC + i: p.source(x, forms[i]) for i, x in enumerate(xs)}
    return p.execute(chosen, {**sources, api.DST: p.target(y, chosen.wants(api.DST))})


def split(p: Preparation, x: Tensor, ys: Sequence[Tensor | None], *, axis: int) -> Step:
    """See `Program.split`. Each part is a reorder out of a window of x."""
    axis %= len(x.shape)
    form = _format(p, x)
    steps: list[Step] = []
    start = [0] * len(x.shape)
    for y in ys:
        if y is None or is_open(y):
            raise Unsupported("a part of unknown extent or format")
        window = p.library.window(form, y.shape, start)
        steps.append(p.reorder((x, window), (y, p.held(y))))
        start[axis] += y.shape[axis]
    return in_sequence(steps)


def softmax(p: Preparation, x: Tensor, y: Tensor, *, axis: int) -> Step:
    """See `Program.softmax`."""
    form = _format(p, x)
    chosen = p.library.describe(
        "softmax_forward", api.FORWARD_TRAINING, api.SOFTMAX_ACCURATE, form, form, axis
    )
    return p.execute(chosen, {api.SRC: p.source(x, form), api.DST: p.target(y, form)})


def softmax_backward(p: Preparation, y: Tensor, dy: Tensor, dx: Tensor, *, axis: int) -> Step:
    """See `Program.softmax_backward`."""
    form = _format(p, y)
    hint = p.library.describe(
        "softmax_forward", api.FORWARD_TRAINING, api.SOFTMAX_ACCURATE, form, form, axis
    )
    chosen = p.library.describe(
        "softmax_backward", api.SOFTMAX_ACCURATE, form, form, form, axis, hint
    )
    return p.execute(
        chosen,
        {
            api.DST: p.source(y, form),
            api.DIFF_DST: p.source(dy, form),
            api.DIFF_SRC: p.target(dx, form),
        },
    )
