"""The products of the recurrence over time on oneDNN: one primitive, run for every step.

NumPy's products have threads of their own, which spin for a while when they have finished: taking
turns with oneDNN's they would keep these from the cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ...primitives import recurrence as ops
from ...tensor import Step, Tensor
from ..primitives.recurrence import Product, backward_step, forward_step
from . import api
from .api import Descriptor, PrimitiveDescriptor, Unsupported
from .memory import Part, choose_layout, in_sequence
from .preparation import Preparation


def _keep_row_major(p: Preparation, w: Tensor) -> None:
    """Settle all tensors of the call but the weights. Raises Unsupported where one lies else."""
    for tensor in [*p.call.read_tensors(), *p.call.written_tensors()]:
        if tensor is w:
            continue
        if tensor.layout_undecided:
            choose_layout(tensor, None)
        if tensor.layout is not None:
            raise Unsupported(f"{tensor} is not row-major")


def recurrent(p: Preparation, a: ops.Recurrent) -> Step | None:
    """Without products it is left to NumPy."""
    if a.w is None or a.h_in is None:
        return None
    _keep_row_major(p, a.w)
    inputs, outputs = (p.library.plain(tensor.shape[1:]) for tensor in (a.h_in, a.gates))

    def describe(v: Descriptor) -> PrimitiveDescriptor:
        return p.library.describe(
            "inner_product_forward", api.FORWARD_TRAINING, inputs, v, None, outputs, sum_scale=1.0
        )

    begin, product = _product(p, a.w, describe, {api.SRC: a.h_in, api.DST: a.gates})
    run = Step(forward_step(a, product, "float32"))
    return in_sequence([begin, run])


def recurrent_backward(p: Preparation, a: ops.RecurrentBackward) -> Step | None:
    """Without products it is left to NumPy."""
    if a.w is None:
        return None
    _keep_row_major(p, a.w)
    outputs, inputs = (p.library.plain(tensor.shape[1:]) for tensor in (a.dgates, a.dh))

    def describe(v: Descriptor) -> PrimitiveDescriptor:
        free = (p.library.any(form.dimensions) for form in (inputs, v))
        hint = p.library.describe(
            "inner_product_forward", api.FORWARD_TRAINING, *free, None, outputs
        )
        return p.library.describe("inner_product_backward_data", inputs, v, outputs, hint)

    flow = p.call.temporary(a.dh.shape[1:])
    begin, product = _product(p, a.w, describe, {api.DIFF_DST: a.dgates}, {api.DIFF_SRC: flow})
    run = Step(backward_step(a, product, flow, "float32"))
    return in_sequence([begin, run])


def _product(
    p: Preparation,
    w: Tensor,
    describe: Callable[[Descriptor], PrimitiveDescriptor],
    over_time: Mapping[int, Tensor],
    others: Mapping[int, Tensor] | None = None,
) -> tuple[Step, Product]:
    """What brings the weights into the format wanted, and the product of each step with them.

    describe: given that format. over_time: the row-major arguments that are one step's part of a
    tensor; others: those that are a whole one.
    """
    weights = p.operand(w)
    chosen = p.choose(describe, weights.form)
    steps = {
        argument: Part(tensor, size=math.prod(tensor.shape[1:]))
        for argument, tensor in over_time.items()
    }
    execute = p.execution(chosen, {api.WEIGHTS: weights}, {}, {**steps, **(others or {})}, {})

    def product(t: int) -> None:
        for part in steps.values():
            part.index = t
        execute()

    return in_sequence(p.before), product
