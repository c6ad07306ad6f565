"""Owns convolution on the GPU: how its operands lie. What computes it is chosen by timing (see
convolution/providers.py)."""

from __future__ import annotations

from typing import Any

from ...tensor import Step, Tensor
from ..call import Pending
from ..convolution import providers
from ..convolution.operands import (
    bias_gradient,
    choose_row_major,
    choose_weight_layout,
)
from ..convolution.problem import Problem
from ..registry import CudaCall, primitive


@primitive("own")
def convolution(
    call: CudaCall,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    *,
    relu: float | None = None,
    **window: Any,
) -> Pending:
    choose_weight_layout(w)
    choose_row_major(b)
    call.backend.choose_layout(x)
    call.backend.choose_layout(y)
    return call.tune(providers.forward(call, Problem.of(x, w, y, **window)))


@primitive("own")
def convolution_backward_data(
    call: CudaCall,
    dy: Tensor,
    w: Tensor,
    dx: Tensor,
    *,
    relu_output: Tensor | None = None,
    **window: Any,
) -> Pending:
    """relu_output: the output of a ReLU whose backward pass is fused (by the fusion pass)."""
    choose_weight_layout(w)
    for tensor in dx, dy, relu_output:
        if tensor is not None:
            call.backend.choose_layout(tensor)
    return call.tune(providers.data_gradient(call, Problem.of(dx, w, dy, **window)))


@primitive("own")
def convolution_backward_filter(
    call: CudaCall,
    x: Tensor,
    dy: Tensor,
    dw: Tensor | None,
    db: Tensor | None,
    **window: Any,
) -> Pending | Step:
    call.backend.choose_layout(x)
    call.backend.choose_layout(dy)
    choose_row_major(db)
    if dw is None:
        return bias_gradient(call)
    choose_weight_layout(dw)
    return call.tune(providers.filter_gradient(call, Problem.of(x, dw, dy, **window)))
