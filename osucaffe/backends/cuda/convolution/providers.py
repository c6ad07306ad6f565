"""Owns which providers are asked for a convolution, and in what order: libraries first, unless our
own kernels are so much faster that libraries need not be searched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...tensor import Step, sequence
from ..call import CudaCall, Kernels, Provider, only_unless, spares
from ..libraries.cublaslt import Product
from ..libraries.cudnn import Plan
from . import space_to_depth
from .cudnn import MOST_GROUPS, Cudnn, PackedGroups, plan_step
from .cudnn_graph import ALIGNMENT, Convolution
from .cudnn_search import HEAVY
from .few_channels import few_channels
from .gemm import Bound, Gemm
from .implicit_gemm import implicit_gemm
from .operands import Operands, bias_gradients, bind, channels_last_blob, operation
from .problem import Problem
from .small_mma import small_mma, small_mma_wgrad
from .wgrad_16bit import wgrad_16bit
from .wgrad_tf32 import wgrad_tf32

LIGHT = 4e9
"""Multiplications below which a matrix product is taken as it comes: a faster plan of cuDNN would
be a few us faster, and takes longer to build."""
WORTH_FUSING = 20 << 20
"""Bytes of an image's gradient from which on a search for plans that mask it is worth its time,
where no kernel of our own does."""
TF32_A_CYCLE, GOOD_SHARE = 2048, 0.225
"""Additions and multiplications of a multiprocessor's tensor cores in a cycle; a share of them."""


def forward(call: CudaCall, problem: Problem) -> list[Provider]:
    """For the outputs of a convolution, with its bias and its ReLU."""
    few = few_channels(call, problem)
    if space_to_depth.pays(problem):
        return [*few, *_by_space_to_depth(call, problem)]
    own = small_mma(call, problem)
    others = _by_libraries(call, problem)
    return [*few, *_own_alone_if_odd(call, own, others)]


def data_gradient(call: CudaCall, problem: Problem) -> list[Provider]:
    """For the gradient of the images, another that is added to it, and the backward pass of the
    ReLU that made them."""
    small = [] if call["addend"] is not None else small_mma(call, problem)
    return [*_by_libraries(call, problem), *small]


def filter_gradient(call: CudaCall, problem: Problem) -> list[Provider]:
    """For the gradients of the filters and of the biases."""
    bias_gradients(call.copy())  # of all candidates: its kernel begins to be compiled
    if space_to_depth.pays(problem):
        return _by_space_to_depth(call, problem)
    others = _unless_good_enough(call, problem, _wgrad(call, problem), _cudnn(call, problem))
    return _own_alone_if_odd(call, small_mma_wgrad(call, problem), others)


def _own_alone_if_odd(
    call: CudaCall, own: Sequence[Provider], others: list[Provider]
) -> list[Provider]:
    """Kernels for small convolutions behind others; where images have an odd number of channels,
    alone: they take these as they lie, and no library does better."""
    possible = any(True for provider in own for _ in provider.candidates())
    if call.needed("x").shape[1] % 2 and possible:
        return [*own, *spares(others)]
    return [*others, *own]


def _by_space_to_depth(call: CudaCall, problem: Problem) -> list[Provider]:
    """Where images have few channels."""
    forms = space_to_depth.forms(call.backend.dtype, problem)
    kernels = implicit_gemm if "y" in call.writes else _wgrad
    own = [forms[0].around(each) for each in kernels(call, forms[0].folded)]
    plans = [
        form.around(plans)
        for form in forms
        for plans in _by_cudnn(call, _convolution(call, form.folded))
    ]
    others = _unless_good_enough(call, problem, own, plans)
    return [*others, *spares(_cudnn(call, problem))]


def _by_libraries(call: CudaCall, problem: Problem) -> list[Provider]:
    """Libraries, and the kernel for large convolutions: where there are groups, libraries are slow,
    and asked only if it is, too."""
    large = implicit_gemm(call, problem)
    if problem.group > 1:
        return _unless_good_enough(call, problem, large, _cudnn(call, problem))
    return [*_cudnn(call, problem, own=bool(large)), *large]


def _wgrad(call: CudaCall, problem: Problem) -> list[Kernels]:
    """The kernel for large gradients of filters, in the precision."""
    return [*wgrad_tf32(call, problem), *wgrad_16bit(call, problem)]


def _unless_good_enough(
    call: CudaCall, problem: Problem, own: Sequence[Provider], others: list[Provider]
) -> list[Provider]:
    """A kernel of ours, if there is one, and others where it is not good enough: for groups, few
    channels or gradients of filters in tf32 libraries' plans hardly reach a quarter of what tensor
    cores can do, and take long to search. In 16 bits they are better."""
    if call.backend.precision != "tf32":
        return [*own, *others]
    device = call.backend.properties
    rate = device.sm_count * device.clock * TF32_A_CYCLE * GOOD_SHARE
    return [*own, *(only_unless(2e3 * problem.work / rate, others) if own else others)]


def _convolution(call: CudaCall, problem: Problem) -> Convolution:
    """What cuDNN is asked for, without anything fused into it."""
    gpu = call.backend
    return Convolution.of(problem, operation(call), gpu.precision, gpu.dtype)


def _plans(call: CudaCall, name: str, convolution: Convolution, *, fused: bool = False) -> Cudnn:
    """cuDNN's plans for a convolution of a call's tensors. fused: with what is fused into it."""

    def make(plan: Plan, call: CudaCall) -> Step:
        tensors, behind = bind(call, fused=fused)
        return sequence([plan_step(call, plan, tensors), *behind])

    return Cudnn(call.backend, name, convolution, make)


def _cudnn(call: CudaCall, problem: Problem, *, own: bool = False) -> list[Provider]:
    """cuDNN in its variants, and cuBLASLt where it is a product. own: a kernel of ours does it,
    too."""
    providers: list[Provider] = [*_by_cudnn(call, _convolution(call, problem), own=own)]
    if problem.is_product:
        light = operation(call) == "forward" or problem.work < LIGHT
        return [_gemm(call, problem), *(spares(providers) if light else providers)]
    if 1 < problem.group <= MOST_GROUPS:
        part = _convolution(call, problem.of_one_group)
        if part.w.nbytes % ALIGNMENT == 0:  # each group's filters begin where cuDNN wants operands
            providers.append(PackedGroups(call, part, problem.group))
    return providers


def _by_cudnn(call: CudaCall, plain: Convolution, *, own: bool = False) -> list[Cudnn]:
    """cuDNN's plans for a convolution, and those for it with what is fused into it: first."""
    alone = _plans(call, "cudnn alone", plain)
    fused = _fused(call, plain, own=own)
    if not fused:
        return [alone]
    # All that fuses in 16 bits has to be compiled; where that takes longest, it is the fastest.
    if call.backend.dtype != "float32" and plain.work > HEAVY:
        spares([alone])
    return [_plans(call, "cudnn fused", fused, fused=True), alone]


def _fused(call: CudaCall, plain: Convolution, *, own: bool) -> Convolution | None:
    """The convolution with what is fused into it, if there is anything and it may pay."""
    if plain.operation == "forward":
        relu = call.settings.get("relu")
        if relu or (relu is None and call["b"] is None):  # nothing fuses a slope
            return None
        return replace(plain, bias=None if call["b"] is None else "float32", relu=relu)
    masks = call["relu_output"] is not None and call["addend"] is None
    if plain.operation == "data" and masks and not own and plain.x.nbytes >= WORTH_FUSING:
        return replace(plain, relu=0.0)
    return None


def _gemm(call: CudaCall, problem: Problem) -> Provider:
    """cuBLASLt on a convolution that is a product."""
    gpu, kind, epilogue = call.backend, operation(call), ""
    inputs, outputs = problem.x[1], problem.y[1]
    pixels = problem.x[0] * math.prod(problem.x[2:])
    if kind == "forward" and not call.settings.get("relu"):  # nothing fuses a slope
        words = {"bias": call["b"], "relu": call.settings.get("relu")}
        epilogue = " ".join(word for word, given in words.items() if given is not None)
    size, transposed, result = {
        "forward": ((pixels, outputs, inputs), (False, True), gpu.dtype),
        "data": ((pixels, inputs, outputs), (False, False), gpu.dtype),
        # It widens and adds: a 1 x 1 filter has the channels last in any case.
        "filter": ((outputs, inputs, pixels), (True, False), "float32"),
    }[kind]
    accumulate = "dw" in call.accumulates
    product = Product(
        gpu.precision, *size, *transposed, gpu.dtype, result, epilogue, accumulate=accumulate
    )
    return Gemm(gpu, product, _bind_product)


def _bind_product(call: CudaCall) -> Bound:
    """The operands of a convolution that is a product."""
    if operation(call) == "filter":
        x, dy = (channels_last_blob(call, call.needed(name)) for name in ("x", "dy"))
        return Bound(dy, x, call.needed("dw"), None, bias_gradients(call))
    given = Operands.of(call)
    if operation(call) == "data" or call.settings.get("relu"):  # what is not fused
        return Bound(given.x, given.w, given.y, None, given.epilogue())
    return Bound(given.x, given.w, given.y, given.b, [])
