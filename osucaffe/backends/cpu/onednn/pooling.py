"""Owns pooling on oneDNN, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tensor import Step, Tensor
from . import api
from .api import Descriptor, PrimitiveDescriptor, Unsupported
from .memory import Layout, is_open, settle
from .preparation import Preparation


def note_in(tensor: Tensor, form: Descriptor) -> None:
    """Let an open tensor of four-byte elements hold what oneDNN notes for its backward."""
    if not is_open(tensor):
        raise Unsupported("the note must be row-major")
    settle(tensor, Layout(form, form, -(-form.bytes // 4)))


def _windows(
    x: Tensor, y: Tensor, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]
) -> list[Sequence[int]]:
    """Strides, kernel, dilations less one, and padding before and after, as oneDNN wants them."""
    after = [
        max(0, (out - 1) * step + size - extent - before)
        for out, step, size, extent, before in zip(
            y.shape[2:], stride, kernel, x.shape[2:], pad, strict=True
        )
    ]
    return [stride, kernel, [0] * len(kernel), pad, after]


def _average(windows: list[Sequence[int]]) -> int:
    """The algorithm with Caffe's divisor: the window's area within the padded image."""
    *_, before, after = windows
    if not any(before):
        return api.AVERAGE_EXCLUDE_PADDING
    if all(right <= left for left, right in zip(before, after, strict=True)):
        return api.AVERAGE_INCLUDE_PADDING
    raise Unsupported("windows that reach beyond the padding")


def _forward(
    p: Preparation, algorithm: int, x: Tensor, y: Tensor, index: Tensor | None, windows: Any
) -> Step:
    below, above = p.operand(x), p.operand(y)
    kind = api.FORWARD_INFERENCE if index is None else api.FORWARD_TRAINING

    def describe(x: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe("pooling_forward", kind, algorithm, x, y, *windows)

    chosen = p.choose(describe, below.form, above.form)
    notes = {}
    if index is not None:
        note_in(index, chosen.wants(api.WORKSPACE))
        notes[api.WORKSPACE] = index
    return p.step(chosen, {api.SRC: below}, {api.DST: above}, notes)


def _backward(
    p: Preparation, algorithm: int, dy: Tensor, index: Tensor | None, dx: Tensor, windows: Any
) -> Step:
    above, below = p.operand(dy), p.operand(dx)

    def describe(dx: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        hint = p.library.describe(
            "pooling_forward", api.FORWARD_TRAINING, algorithm, dx, dy, *windows
        )
        return p.library.describe("pooling_backward", algorithm, dx, dy, *windows, hint)

    chosen = p.choose(describe, below.form, above.form)
    notes = {} if index is None else {api.WORKSPACE: index}
    return p.step(chosen, {api.DIFF_DST: above}, {api.DIFF_SRC: below}, notes)


def max_pooling(
    p: Preparation,
    x: Tensor,
    y: Tensor,
    index: Tensor | None,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step:
    """See `Program.max_pooling`. The index holds oneDNN's workspace."""
    return _forward(p, api.MAX, x, y, index, _windows(x, y, kernel, stride, pad))


def max_pooling_backward(
    p: Preparation,
    dy: Tensor,
    index: Tensor,
    dx: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step | None:
    """See `Program.max_pooling_backward`; what NumPy noted is left to NumPy."""
    if index.layout is None:
        return None
    return _backward(p, api.MAX, dy, index, dx, _windows(dx, dy, kernel, stride, pad))


def average_pooling(
    p: Preparation,
    x: Tensor,
    y: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step:
    """See `Program.average_pooling`."""
    windows = _windows(x, y, kernel, stride, pad)
    return _forward(p, _average(windows), x, y, None, windows)


def average_pooling_backward(
    p: Preparation,
    dy: Tensor,
    dx: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step:
    """See `Program.average_pooling_backward`."""
    windows = _windows(dx, dy, kernel, stride, pad)
    return _backward(p, _average(windows), dy, None, dx, windows)
