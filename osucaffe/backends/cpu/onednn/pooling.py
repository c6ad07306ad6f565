"""Pooling on oneDNN, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...primitives import pooling as ops
from ...tensor import Step, Tensor
from . import api
from .api import Descriptor, PrimitiveDescriptor, Unsupported
from .memory import Layout, choose_layout
from .preparation import Preparation, padding_behind


@dataclass
class Workspace(Layout):
    """The layout of what oneDNN notes in a tensor of four-byte elements for its backward.

    below, above: the formats of input and output. Backward has to work in them: no other note
    fits, although a layer that works in place may have let the gradients lie otherwise.
    """

    below: Descriptor
    above: Descriptor


def workspace_in(
    p: Preparation, tensor: Tensor | None, forward: PrimitiveDescriptor
) -> dict[int, Tensor]:
    """Let an open tensor hold what the chosen forward notes; the argument for it, if it does."""
    if tensor is None:
        return {}
    if not tensor.layout_undecided:
        raise Unsupported("the note must be row-major")
    notes = forward.has(api.WORKSPACE)
    form = forward.wants(api.WORKSPACE) if notes else p.library.plain((1,))
    choose_layout(tensor, Workspace(form, form, forward.wants(api.SRC), forward.wants(api.DST)))
    return {api.WORKSPACE: tensor} if notes else {}


def _windows(x: Tensor, y: Tensor, a: ops.PoolingWindow) -> list[Sequence[int]]:
    """Strides, kernel, dilations less one, and padding before and after, as oneDNN wants them."""
    behind = padding_behind(x, y, a.kernel, a.stride, a.pad, [1] * len(a.kernel))
    return [a.stride, a.kernel, [0] * len(a.kernel), a.pad, [max(0, each) for each in behind]]


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

    chosen = p.choose(describe, below.form, above.form, try_nhwc=index is None)
    if index is None and chosen.is_reference:
        raise Unsupported(chosen.implementation)
    return p.step(chosen, {api.SRC: below}, {api.DST: above}, workspace_in(p, index, chosen))


def _backward(
    p: Preparation, algorithm: int, dy: Tensor, index: Tensor | None, dx: Tensor, windows: Any
) -> Step:
    above, below = p.operand(dy), p.operand(dx)

    def describe(dx: Descriptor, dy: Descriptor) -> PrimitiveDescriptor:
        hint = p.library.describe(
            "pooling_forward", api.FORWARD_TRAINING, algorithm, dx, dy, *windows
        )
        return p.library.describe("pooling_backward", algorithm, dx, dy, *windows, hint)

    if index is None:
        chosen = p.choose(describe, below.form, above.form)
        return p.step(chosen, {api.DIFF_DST: above}, {api.DIFF_SRC: below})
    noted = index.layout
    assert isinstance(noted, Workspace)
    chosen = describe(noted.below, noted.above)
    return p.step(chosen, {api.DIFF_DST: above}, {api.DIFF_SRC: below}, {api.WORKSPACE: index})


def max_pooling(p: Preparation, a: ops.MaxPooling) -> Step:
    """The index holds oneDNN's workspace, if there is a backward pass that reads it."""
    index = None if p.only_forward and a.index is not None and a.index.layout_undecided else a.index
    return _forward(p, api.MAX, a.x, a.y, index, _windows(a.x, a.y, a))


def max_pooling_backward(p: Preparation, a: ops.MaxPoolingBackward) -> Step | None:
    """What NumPy noted is left to NumPy."""
    if a.index.layout is None:
        return None
    return _backward(p, api.MAX, a.dy, a.index, a.dx, _windows(a.dx, a.dy, a))


def average_pooling(p: Preparation, a: ops.AveragePooling) -> Step:
    windows = _windows(a.x, a.y, a)
    return _forward(p, _average(windows), a.x, a.y, None, windows)


def average_pooling_backward(p: Preparation, a: ops.AveragePoolingBackward) -> Step:
    windows = _windows(a.dx, a.dy, a)
    return _backward(p, _average(windows), a.dy, None, a.dx, windows)
