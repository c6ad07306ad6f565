"""Local response normalization and softmax on oneDNN, forward and backward, and Scale."""

from __future__ import annotations

from ...primitives import normalization as ops
from ...tensor import Step
from . import api
from .api import Descriptor, PrimitiveDescriptor
from .elementwise import binary
from .pooling import Workspace, workspace_in
from .preparation import Preparation

FEW_CLASSES, MANY_LINES = 8, 1000
"""oneDNN's softmax takes 14 ns for a line, however short that is."""


def _lrn_settings(a: ops.Neighbourhood) -> tuple[int, tuple[int, float, float, float]]:
    """The algorithm, and the numbers as oneDNN wants them."""
    if a.within_channel:
        return api.LRN_WITHIN_CHANNEL, (a.size, a.alpha, a.beta, 1.0)
    return api.LRN_ACROSS_CHANNELS, (a.size, a.alpha, a.beta, a.k)


def lrn(p: Preparation, a: ops.Lrn) -> Step | None:
    """The note holds oneDNN's workspace.

    What oneDNN 3.2 gets wrong with the channels last is left to NumPy: it crashes when it makes the
    backward pass of one channel's neighbourhood, and of more than five it mistakes the neighbours
    of channels beyond the last whole 16.
    """
    channels = a.x.shape[1]
    if not a.within_channel and (a.size == 1 or (a.size > 5 and channels > 16 and channels % 16)):
        return None
    region, numbers = _lrn_settings(a)
    below, above = p.operand(a.x), p.operand(a.y)
    kind = api.FORWARD_INFERENCE if a.workspace is None else api.FORWARD_TRAINING

    def describe(x: Descriptor, y: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe("lrn_forward", kind, region, x, y, *numbers)

    chosen = p.choose(describe, below.form, above.form)
    return p.step(chosen, {api.SRC: below}, {api.DST: above}, workspace_in(p, a.workspace, chosen))


def lrn_backward(p: Preparation, a: ops.LrnBackward) -> Step | None:
    """What NumPy noted is left to NumPy."""
    noted = a.workspace.layout
    if noted is None:
        return None
    assert isinstance(noted, Workspace)
    region, numbers = _lrn_settings(a)
    form = noted.below
    hint = p.library.describe(
        "lrn_forward", api.FORWARD_TRAINING, region, form, noted.above, *numbers
    )
    chosen = p.library.describe("lrn_backward", region, form, form, form, *numbers, hint)
    return p.step(
        chosen,
        {api.SRC: p.operand(a.x), api.DIFF_DST: p.operand(a.dy)},
        {api.DIFF_SRC: p.operand(a.dx)},
        {api.WORKSPACE: a.workspace} if chosen.has(api.WORKSPACE) else {},
    )


def batch_norm(p: Preparation, a: ops.BatchNorm) -> Step | None:
    """Without statistics; else it is left to NumPy."""
    if a.scale is None or a.mean is not None or a.inv_std is not None or a.subsample:
        return None
    each = p.library.plain((1, a.x.shape[1], *[1] * (len(a.x.shape) - 2)))
    operands, kinds = [p.operand(a.x), p.operand(a.scale, each)], [api.BINARY_MULTIPLY]
    if a.bias is not None:
        operands.append(p.operand(a.bias, each))
    if a.addend is not None:
        operands.append(p.operand(a.addend))
    kinds += [api.BINARY_ADD] * (len(operands) - 2)
    return binary(p, kinds, operands, p.operand(a.y), a.relu)


def _softmax(p: Preparation, form: Descriptor, axis: int) -> PrimitiveDescriptor:
    return p.library.describe(
        "softmax_forward", api.FORWARD_TRAINING, api.SOFTMAX_ACCURATE, form, form, axis
    )


def softmax(p: Preparation, a: ops.Softmax) -> Step | None:
    """What only reference code can do (classes of planes) is left to NumPy,
    which takes a hundredth of the time; so are many lines of few classes: a fifth."""
    source, classes = p.operand(a.x), a.x.shape[a.axis]
    chosen = _softmax(p, source.chosen_form, a.axis)
    if chosen.is_reference or (classes <= FEW_CLASSES and a.x.count > MANY_LINES * classes):
        return None
    return p.step(chosen, {api.SRC: source}, {api.DST: p.operand(a.y)})


def softmax_backward(p: Preparation, a: ops.SoftmaxBackward) -> Step | None:
    """Reference code's part is left to NumPy, as in `softmax`."""
    output, axis = p.operand(a.y), a.axis
    form = output.chosen_form
    hint = _softmax(p, form, axis)
    chosen = p.library.describe(
        "softmax_backward", api.SOFTMAX_ACCURATE, form, form, form, axis, hint
    )
    if chosen.is_reference:
        return None
    return p.step(
        chosen, {api.DST: output, api.DIFF_DST: p.operand(a.dy)}, {api.DIFF_SRC: p.operand(a.dx)}
    )
