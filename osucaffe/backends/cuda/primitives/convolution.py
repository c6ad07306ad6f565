"""Owns convolution on the GPU: how its operands lie. What computes it is chosen by timing (see
convolution/providers.py)."""

from __future__ import annotations

from ...primitives.products import Convolution, ConvolutionBackwardData, ConvolutionBackwardFilter
from ...tensor import Step
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
def convolution(call: CudaCall, a: Convolution) -> Pending:
    choose_weight_layout(a.w)
    choose_row_major(a.b)
    call.choose_layouts(a.x, a.y)
    return call.tune(providers.forward(call, Problem.of(a.x, a.w, a.y, a)))


@primitive("own")
def convolution_backward_data(call: CudaCall, a: ConvolutionBackwardData) -> Pending:
    choose_weight_layout(a.w)
    call.choose_layouts(a.dx, a.dy, a.relu_output)
    return call.tune(providers.data_gradient(call, Problem.of(a.dx, a.w, a.dy, a)))


@primitive("own")
def convolution_backward_filter(call: CudaCall, a: ConvolutionBackwardFilter) -> Pending | Step:
    call.choose_layouts(a.x, a.dy)
    choose_row_major(a.db)
    if a.dw is None:
        return bias_gradient(call)
    choose_weight_layout(a.dw)
    return call.tune(providers.filter_gradient(call, Problem.of(a.x, a.dw, a.dy, a)))
