"""The providers that are asked for a convolution, in order: libraries first, unless our
own kernels are so much faster that libraries need not be searched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...tensor import Run, sequence
from .. import tuned
from ..call import Context, Provider, fallbacks, skip_if_faster_than
from ..libraries.cublaslt import Product
from ..libraries.cudnn import Plan
from . import space_to_depth
from .cudnn import Cudnn, plan_step
from .cudnn_graph import Convolution
from .few_channels import few_channels
from .gemm import Bound, Gemm
from .implicit_gemm import implicit_gemm
from .operands import Operands, bias_gradients, bind, channels_last_blob, operation
from .problem import Problem
from .small_mma import small_mma, small_mma_wgrad
from .wgrad import wgrad


def forward(ctx: Context, problem: Problem) -> list[Provider]:
    """For the outputs of a convolution, with its bias and its ReLU."""
    few = few_channels(ctx, problem)
    if space_to_depth.pays(problem):
        return [*few, *_by_space_to_depth(ctx, problem)]
    own = small_mma(ctx, problem)
    others = _by_libraries(ctx, problem)
    return [*few, *_own_alone_if_odd(ctx, own, others)]


def data_gradient(ctx: Context, problem: Problem) -> list[Provider]:
    """For the gradient of the images, another that is added to it, and the backward pass of the
    ReLU that made them."""
    small = [] if ctx.call.addend is not None else small_mma(ctx, problem)
    return [*_by_libraries(ctx, problem), *small]


def filter_gradient(ctx: Context, problem: Problem) -> list[Provider]:
    """For the gradients of the filters and of the biases."""
    bias_gradients(ctx.copy())  # of all candidates: its kernel begins to be compiled
    if space_to_depth.pays(problem):
        return _by_space_to_depth(ctx, problem)
    others = _unless_good_enough(ctx, problem, wgrad(ctx, problem), _cudnn(ctx, problem))
    return _own_alone_if_odd(ctx, small_mma_wgrad(ctx, problem), others)


def _own_alone_if_odd(
    ctx: Context, own: Sequence[Provider], others: list[Provider]
) -> list[Provider]:
    """Kernels for small convolutions after others; where images have an odd number of channels,
    alone: they take these as they lie, and no library does better."""
    possible = any(True for provider in own for _ in provider.candidates())
    if ctx.call.x.shape[1] % 2 and possible:
        return [*own, *fallbacks(others)]
    return [*others, *own]


def _by_space_to_depth(ctx: Context, problem: Problem) -> list[Provider]:
    """Where images have few channels."""
    form = space_to_depth.SpaceToDepth(problem, ctx.backend.dtype)
    kernels = implicit_gemm if operation(ctx) == "forward" else wgrad
    own = [form.around(each) for each in kernels(ctx, form.folded)]
    plans = [form.around(each) for each in _by_cudnn(ctx, _convolution(ctx, form.folded))]
    others = _unless_good_enough(ctx, problem, own, plans)
    return [*others, *fallbacks(_cudnn(ctx, problem))]


def _by_libraries(ctx: Context, problem: Problem) -> list[Provider]:
    """Libraries, and the kernel for large convolutions: where there are groups, libraries are slow,
    and asked only if it is, too."""
    large = implicit_gemm(ctx, problem)
    if problem.group > 1:
        return _unless_good_enough(ctx, problem, large, _cudnn(ctx, problem))
    return [*_cudnn(ctx, problem), *large]


def _unless_good_enough(
    ctx: Context, problem: Problem, own: Sequence[Provider], others: list[Provider]
) -> list[Provider]:
    """A kernel of ours, if there is one, and others where it is not good enough: for groups, few
    channels or gradients of filters in tf32 libraries' plans hardly reach a quarter of what tensor
    cores can do, and take long to search. In 16 bits they are better."""
    if ctx.backend.precision != "tf32":
        return [*own, *others]
    device = ctx.backend.properties
    rate = device.sm_count * device.clock * tuned.TF32_MULTIPLICATIONS * tuned.TF32_GOOD_SHARE
    return [*own, *(skip_if_faster_than(1e3 * problem.work / rate, others) if own else others)]


def _convolution(ctx: Context, problem: Problem) -> Convolution:
    """What cuDNN is asked for, without anything fused into it."""
    gpu = ctx.backend
    return Convolution.of(problem, operation(ctx), gpu.precision, gpu.dtype)


def _plans(ctx: Context, name: str, convolution: Convolution, *, fused: bool = False) -> Cudnn:
    """cuDNN's plans for a convolution of a call's tensors. fused: with what is fused into it."""

    def make(plan: Plan, ctx: Context) -> Run:
        tensors, behind = bind(ctx, fused=fused)
        return sequence([plan_step(ctx, plan, tensors), *behind])

    return Cudnn(ctx.backend, name, convolution, make)


def _cudnn(ctx: Context, problem: Problem) -> list[Provider]:
    """cuDNN in its variants, and cuBLASLt where it is a product."""
    providers: list[Provider] = [*_by_cudnn(ctx, _convolution(ctx, problem))]
    if problem.is_product:
        light = operation(ctx) == "forward" or problem.work < tuned.CUBLASLT_ALONE_MAX_WORK
        return [*_gemms(ctx, problem), *(fallbacks(providers) if light else providers)]
    return providers


def _by_cudnn(ctx: Context, plain: Convolution) -> list[Cudnn]:
    """cuDNN's plans for a convolution, and those for it with what is fused into it: first."""
    alone = _plans(ctx, "cudnn alone", plain)
    fused = _fused(ctx, plain)
    if not fused:
        return [alone]
    # All that fuses in 16 bits has to be compiled; where that takes longest, it is the fastest.
    if ctx.backend.dtype != "float32" and plain.work > tuned.CUDNN_HEAVY_WORK:
        fallbacks([alone])
    return [_plans(ctx, "cudnn fused", fused, fused=True), alone]


def _fused(ctx: Context, plain: Convolution) -> Convolution | None:
    """The convolution of outputs with the bias and the ReLU, if there are any."""
    if plain.operation != "forward":
        return None
    relu, biased = ctx.call.relu, ctx.call.b is not None
    if relu or (relu is None and not biased):  # nothing fuses a slope
        return None
    return replace(plain, bias="float32" if biased else None, relu=relu is not None)


def _gemms(ctx: Context, problem: Problem) -> list[Gemm]:
    """cuBLASLt on a convolution that is a product, with the bias and the ReLU. Where its ReLU makes
    0 of NaN, as in fp16 (cuBLAS 13.1, H200), the tuner leaves it out, and the ReLU is a pass."""
    if operation(ctx) != "forward":
        return [_gemm(ctx, problem, "")]
    bias = "bias" if ctx.call.b is not None else ""
    if ctx.call.relu is None:
        return [_gemm(ctx, problem, bias)]
    alone = _gemm(ctx, problem, "", "cublaslt alone")
    if ctx.call.relu:  # nothing fuses a slope
        return [alone]
    fallbacks([alone])
    return [_gemm(ctx, problem, f"{bias} relu".strip()), alone]


def _gemm(ctx: Context, problem: Problem, epilogue: str, name: str = "cublaslt") -> Gemm:
    """cuBLASLt on a convolution that is a product, with what of it is fused."""
    gpu, kind = ctx.backend, operation(ctx)
    inputs, outputs = problem.x[1], problem.y[1]
    pixels = problem.x[0] * math.prod(problem.x[2:])
    size, transposed, result = {
        "forward": ((pixels, outputs, inputs), (False, True), gpu.dtype),
        "data": ((pixels, inputs, outputs), (False, False), gpu.dtype),
        # It widens and adds: a 1 x 1 filter has the channels last in any case.
        "filter": ((outputs, inputs, pixels), (True, False), "float32"),
    }[kind]
    accumulate = "dw" in ctx.call.accumulates
    product = Product(
        gpu.precision, *size, *transposed, gpu.dtype, result, epilogue, accumulate=accumulate
    )

    def bind(ctx: Context) -> Bound:
        if kind == "filter":
            x, dy = channels_last_blob(ctx, ctx.call.x), channels_last_blob(ctx, ctx.call.dy)
            return Bound(dy, x, ctx.call.dw, None, bias_gradients(ctx))
        given = Operands.of(ctx)
        bias = given.b if product.has_bias else None
        return Bound(given.x, given.w, given.y, bias, [] if epilogue else given.epilogue())

    return Gemm(gpu, product, bind, name)
