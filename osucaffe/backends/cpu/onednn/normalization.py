"""Owns local response normalization and softmax on oneDNN, forward and backward."""

from __future__ import annotations

from ...tensor import Step, Tensor
from . import api
from .api import Descriptor, PrimitiveDescriptor
from .pooling import Note, note_in
from .preparation import Preparation


def _lrn_settings(
    size: int, alpha: float, beta: float, k: float, within_channel: bool
) -> tuple[int, tuple[int, float, float, float]]:
    """The algorithm, and the numbers as oneDNN wants them."""
    if within_channel:
        return api.LRN_WITHIN_CHANNEL, (size, alpha, beta, 1.0)
    return api.LRN_ACROSS_CHANNELS, (size, alpha, beta, k)


def lrn(
    p: Preparation,
    x: Tensor,
    y: Tensor,
    note: Tensor | None,
    *,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    within_channel: bool,
) -> Step | None:
    """See `Program.lrn`. The note holds oneDNN's workspace.

    What oneDNN 3.2 gets wrong with the channels last is left to NumPy: it crashes when it makes the
    backward pass of one channel's neighbourhood, and of more than five it mistakes the neighbours
    of channels beyond the last whole 16.
    """
    channels = x.shape[1]
    if not within_channel and (size == 1 or (size > 5 and channels > 16 and channels % 16)):
        return None
    region, numbers = _lrn_settings(size, alpha, beta, k, within_channel)
    below, above = p.operand(x), p.operand(y)
    kind = api.FORWARD_INFERENCE if note is None else api.FORWARD_TRAINING

    def describe(x: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe("lrn_forward", kind, region, x, y, *numbers)

    chosen = p.choose(describe, below.form, above.form)
    if note is None:
        return p.step(chosen, {api.SRC: below}, {api.DST: above})
    if not chosen.has(api.WORKSPACE):
        note_in(note, p.library.plain((1,)), chosen)
        return p.step(chosen, {api.SRC: below}, {api.DST: above})
    note_in(note, chosen.wants(api.WORKSPACE), chosen)
    return p.step(chosen, {api.SRC: below}, {api.DST: above}, {api.WORKSPACE: note})


def lrn_backward(
    p: Preparation,
    x: Tensor,
    y: Tensor,
    dy: Tensor,
    note: Tensor,
    dx: Tensor,
    *,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    within_channel: bool,
) -> Step | None:
    """See `Program.lrn_backward`; what NumPy noted is left to NumPy."""
    noted = note.layout
    if noted is None:
        return None
    assert isinstance(noted, Note)
    region, numbers = _lrn_settings(size, alpha, beta, k, within_channel)
    form = noted.below
    hint = p.library.describe(
        "lrn_forward", api.FORWARD_TRAINING, region, form, noted.above, *numbers
    )
    chosen = p.library.describe("lrn_backward", region, form, form, form, *numbers, hint)
    return p.step(
        chosen,
        {api.SRC: p.operand(x), api.DIFF_DST: p.operand(dy)},
        {api.DIFF_SRC: p.operand(dx)},
        {api.WORKSPACE: note} if chosen.has(api.WORKSPACE) else {},
    )


def _softmax(p: Preparation, form: Descriptor, axis: int) -> PrimitiveDescriptor:
    return p.library.describe(
        "softmax_forward", api.FORWARD_TRAINING, api.SOFTMAX_ACCURATE, form, form, axis
    )


def softmax(p: Preparation, x: Tensor, y: Tensor, *, axis: int) -> Step:
    """See `Program.softmax`."""
    source = p.operand(x)
    chosen = _softmax(p, source.chosen_form, axis % len(x.shape))
    return p.step(chosen, {api.SRC: source}, {api.DST: p.operand(y)})


def softmax_backward(p: Preparation, y: Tensor, dy: Tensor, dx: Tensor, *, axis: int) -> Step:
    """See `Program.softmax_backward`."""
    output, axis = p.operand(y), axis % len(y.shape)
    form = output.chosen_form
    hint = _softmax(p, form, axis)
    chosen = p.library.describe(
        "softmax_backward", api.SOFTMAX_ACCURATE, form, form, form, axis, hint
    )
    return p.step(
        chosen, {api.DST: output, api.DIFF_DST: p.operand(dy)}, {api.DIFF_SRC: p.operand(dx)}
    )
