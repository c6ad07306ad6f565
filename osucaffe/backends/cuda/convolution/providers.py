"""Owns which providers are asked for a convolution, and in what order: libraries first, unless our
own kernels are so much faster that libraries need not be searched."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from ...tensor import Step, sequence
from ..call import CudaCall, Provider, only_unless, spares
from ..libraries.cublaslt import Product
from ..libraries.cudnn import Plan
from . import space_to_depth
from .cudnn import Cudnn, plan_step
from .cudnn_graph import Convolution
from .cudnn_search import HEAVY
from .few_channels import few_channels
from .gemm import Bound, Gemm
from .implicit_gemm_tf32 import implicit_gemm_tf32
from .operands import bias_gradient, bind, channels_last_blob
from .packed_groups import MOST_GROUPS, PackedGroups, can_pack
from .problem import Problem
from .small_mma import small_mma, small_mma_wgrad
from .space_to_depth import SpaceToDepthCudnn
from .wgmma import good_enough
from .wgrad_tf32 import wgrad_tf32

LIGHT = 4e9
"""Multiplications below which a matrix product is taken as it comes: a faster plan of cuDNN would
be a few us faster, and takes longer to build."""
WORTH_FUSING = 20 << 20
"""Bytes of an image's gradient from which on a search for plans that mask it is worth its time,
where no kernel of our own does."""


def forward(call: CudaCall, problem: Problem) -> list[Provider]:
    """For the outputs of a convolution, with its bias and its ReLU."""
    few = few_channels(call, problem)
    if space_to_depth.pays(problem):
        return [*few, *_by_space_to_depth(call, problem, "forward")]
    own = small_mma(call, problem)
    others = _by_libraries(call, problem, "forward")
    return [*few, *_own_alone_if_odd(call, own, others)]


def data_gradient(call: CudaCall, problem: Problem) -> list[Provider]:
    """For the gradient of the images, with the backward pass of the ReLU that made them."""
    return [*_by_libraries(call, problem, "data"), *small_mma(call, problem)]


def filter_gradient(call: CudaCall, problem: Problem) -> list[Provider]:
    """For the gradients of the filters and of the biases."""
    if call["db"] is not None:
        bias_gradient(call.copy())  # of all candidates: its kernel begins to be compiled
    if space_to_depth.pays(problem):
        return _by_space_to_depth(call, problem, "filter")
    others = _unless_good_enough(
        call, problem, wgrad_tf32(call, problem), _cudnn(call, problem, "filter")
    )
    return _own_alone_if_odd(call, small_mma_wgrad(call, problem), others)


def _own_alone_if_odd(
    call: CudaCall, own: list[Provider], others: list[Provider]
) -> list[Provider]:
    """Kernels for small convolutions behind others; where images have an odd number of channels,
    alone: they take these as they lie, and no library does better."""
    possible = any(True for provider in own for _ in provider.candidates())
    if call.needed("x").shape[1] % 2 and possible:
        return [*own, *spares(others)]
    return [*others, *own]


def _by_space_to_depth(call: CudaCall, problem: Problem, operation: str) -> list[Provider]:
    """Where images have few channels and the window moves by several pixels."""
    forms = space_to_depth.forms(call.backend.dtype, problem)
    kernels = implicit_gemm_tf32 if operation == "forward" else wgrad_tf32
    own = kernels(call, forms[0].folded, forms[0])
    plans: list[Provider] = [SpaceToDepthCudnn(call, form, operation) for form in forms]
    others = _unless_good_enough(call, problem, own, plans)
    return [*others, *spares(_cudnn(call, problem, operation))]


def _by_libraries(call: CudaCall, problem: Problem, operation: str) -> list[Provider]:
    """Libraries, and the kernel for large convolutions: where there are groups, libraries are slow,
    and asked only if it is, too."""
    large = implicit_gemm_tf32(call, problem)
    if problem.group > 1:
        return _unless_good_enough(call, problem, large, _cudnn(call, problem, operation))
    return [*_cudnn(call, problem, operation, own=bool(large)), *large]


def _unless_good_enough(
    call: CudaCall, problem: Problem, own: list[Provider], others: list[Provider]
) -> list[Provider]:
    """A kernel of ours, if there is one, and others where it is not good enough."""
    if own:
        only_unless(good_enough(call.backend.properties, problem), others)
    return [*own, *others]


def _cudnn(
    call: CudaCall, problem: Problem, operation: str, *, own: bool = False
) -> list[Provider]:
    """cuDNN in its variants, and cuBLASLt where it is a product. own: a kernel of ours does it,
    too."""
    backend = call.backend
    plain = Convolution.of(problem, operation, backend.precision, backend.dtype)
    fused = _fused(call, plain, own=own)
    asked = [each for each in (fused, plain) if each]
    # All that fuses in 16 bits has to be compiled; where that takes longest, it is the fastest.
    if fused and backend.dtype != "float32" and plain.work > HEAVY:
        asked = [fused]
    providers: list[Provider] = []
    for each in asked:
        kind = "fused" if each is fused else "alone"
        step = functools.partial(_step, operation, each is fused)
        providers.append(Cudnn(backend, f"cudnn {kind}", each, step))
    if asked == [fused]:
        step = functools.partial(_step, operation, False)
        providers += spares([Cudnn(backend, "cudnn alone", plain, step)])
    if problem.is_product:
        light = operation == "forward" or problem.work < LIGHT
        return [_gemm(call, problem, operation), *(spares(providers) if light else providers)]
    if 1 < problem.group <= MOST_GROUPS and can_pack(plain, problem.group):
        providers.append(PackedGroups(call, plain, problem.group))
    return providers


def _fused(call: CudaCall, plain: Convolution, *, own: bool) -> Convolution | None:
    """The convolution with what is fused into it, if there is anything and it may pay."""
    if plain.operation == "forward":
        relu = call.settings.get("relu")
        if relu or (relu is None and call["b"] is None):  # nothing fuses a slope
            return None
        return replace(plain, bias=None if call["b"] is None else "float32", relu=relu)
    masks = plain.operation == "data" and call["relu_output"] is not None
    if masks and not own and plain.x.nbytes >= WORTH_FUSING:
        return replace(plain, relu=0.0)
    return None


def _step(operation: str, fused: bool, call: CudaCall, plan: Plan) -> Step:
    """A step that runs a plan on whole tensors."""
    tensors, behind = bind(call, operation, fused=fused)
    return sequence([plan_step(call, plan, tensors), *behind])


def _gemm(call: CudaCall, problem: Problem, operation: str) -> Provider:
    """cuBLASLt on a convolution that is a product."""
    backend = call.backend
    inputs, outputs = problem.x[1], problem.y[1]
    pixels = problem.x[0] * math.prod(problem.x[2:])
    fuses = operation == "forward" and not call.settings.get("relu")  # nothing fuses a slope
    product = functools.partial(Product, backend.precision)
    if operation == "forward":
        words = ["bias"] * (call["b"] is not None)
        words += ["relu"] * (call.settings.get("relu") is not None)
        epilogue = " ".join(words) if fuses else ""
        size, kinds = (pixels, outputs, inputs), (backend.dtype, backend.dtype)
        found = product(*size, False, True, *kinds, epilogue)
    elif operation == "data":
        found = product(pixels, inputs, outputs, False, False, backend.dtype, backend.dtype)
    else:  # it widens and adds: a 1 x 1 filter has the channels last in any case
        added = "dw" in call.accumulates
        size, kinds = (outputs, inputs, pixels), (backend.dtype, "float32")
        found = product(*size, True, False, *kinds, accumulate=added)
    return Gemm(backend, found, functools.partial(_bind_product, operation, fuses))


def _bind_product(operation: str, fuses: bool, call: CudaCall) -> Bound:
    """The operands of a convolution that is a product."""
    if operation == "filter":
        x, dy = (channels_last_blob(call, call.needed(name)) for name in ("x", "dy"))
        behind = [bias_gradient(call)] if call["db"] is not None else []
        return Bound(dy, x, call.needed("dw"), None, behind)
    tensors, behind = bind(call, operation, fused=fuses)
    x, w, y = (tensors[name] for name in "xwy")
    if operation == "data":
        return Bound(y, w, x, None, behind)
    return Bound(x, w, y, tensors.get("b"), behind)
