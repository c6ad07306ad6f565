"""Owns which providers are asked for a convolution, and in what order: libraries first, unless our
own kernels are so much faster that libraries need not be searched."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ...tensor import Step, sequence
from ..autotune.candidate import Provider, Spare
from ..layout import is_nhwc
from ..libraries.cublaslt import Product
from ..libraries.cudnn_plans import Plan
from . import space_to_depth
from .cudnn import HEAVY, Cudnn, plan_step
from .cudnn_graph import Convolution
from .few_channels import FewChannels, few_channels
from .gemm import Bound, Gemm
from .implicit_gemm_tf32 import ImplicitGemmTf32, implicit_gemm
from .operands import bias_gradient, bind, channels_last_blob
from .packed_groups import MOST_GROUPS, PackedGroups, can_pack
from .problem import Problem
from .small_mma import SmallMma, SmallMmaWgrad, small
from .space_to_depth import SpaceToDepthCudnn
from .wgmma import good_enough
from .wgrad_tf32 import WgradTf32, weight_gradient

if TYPE_CHECKING:
    from ..registry import CudaCall

LIGHT = 4e9
"""Multiplications below which a matrix product is taken as it comes: a faster plan of cuDNN would
be a few us faster, and takes longer to build."""
WORTH_FUSING = 20 << 20
"""Bytes of an image's gradient from which on a search for plans that mask it is worth its time,
where no kernel of our own does."""


def forward(call: CudaCall, problem: Problem) -> list[Provider]:
    """For the outputs of a convolution, with its bias and its ReLU."""
    backend, gpu = call.backend, call.backend.properties
    precision, dtype = backend.precision, backend.dtype
    x = call.needed("x")
    few: list[Provider] = []
    if few_channels(gpu, precision, dtype, problem):
        few = [FewChannels(problem, dtype)]
    if space_to_depth.pays(problem):
        return [*few, *_by_space_to_depth(call, problem, "forward")]
    tiny = small(gpu, precision, dtype, problem)
    own: list[Provider] = [SmallMma(gpu, tiny, x, flipped=False)] if tiny else []
    found = implicit_gemm(gpu, precision, problem)
    large: list[Provider] = [ImplicitGemmTf32(gpu, found)] if found else []
    others = _by_libraries(call, problem, "forward", large)
    if x.shape[1] % 2 and _has_candidates(own):  # they take x as it lies: no library does better
        return [*few, *own, *map(Spare, others)]
    return [*few, *others, *own]


def data_gradient(call: CudaCall, problem: Problem) -> list[Provider]:
    """For the gradient of the images, with the backward pass of the ReLU that made them."""
    backend, gpu = call.backend, call.backend.properties
    found = implicit_gemm(gpu, backend.precision, problem)
    masked = call["relu_output"] is not None
    large: list[Provider] = []
    if found:
        large = [ImplicitGemmTf32(gpu, found.gradient(masked=masked))]
    others = _by_libraries(call, problem, "data", large)
    if tiny := small(gpu, backend.precision, backend.dtype, problem):
        others.append(SmallMma(gpu, tiny.transposed, call.needed("dy"), flipped=True))
    return others


def filter_gradient(call: CudaCall, problem: Problem) -> list[Provider]:
    """For the gradients of the filters and of the biases."""
    backend, gpu = call.backend, call.backend.properties
    precision, dtype = backend.precision, backend.dtype
    if call["db"] is not None:
        bias_gradient(call.copy())  # of all candidates: its kernel begins to be compiled
    if space_to_depth.pays(problem):
        return _by_space_to_depth(call, problem, "filter")
    x, dw = call.needed("x"), call.needed("dw")
    own: list[Provider] = []
    if is_nhwc(dw) and (tiny := small(gpu, precision, dtype, problem)):
        own = [SmallMmaWgrad(gpu, tiny)]
    found = weight_gradient(gpu, precision, problem) if is_nhwc(dw) else None
    first: list[Provider] = [WgradTf32(gpu, found)] if found else []
    unless = good_enough(gpu, problem) if found else 0.0
    others = [*first, *_cudnn(call, problem, "filter", unless=unless, eager=not first)]
    if x.shape[1] % 2 and _has_candidates(own):  # they take x as it lies: no library does better
        return [*own, *map(Spare, others)]
    return [*others, *own]


def _has_candidates(providers: list[Provider]) -> bool:
    return any(True for provider in providers for _ in provider.candidates())


def _by_space_to_depth(call: CudaCall, problem: Problem, operation: str) -> list[Provider]:
    """Where images have few channels and the window moves by several pixels."""
    backend, gpu = call.backend, call.backend.properties
    forms = space_to_depth.forms(backend.dtype, problem)
    folded = forms[0].folded
    own: list[Provider] = []
    if operation == "forward":
        if found := implicit_gemm(gpu, backend.precision, folded):
            own = [ImplicitGemmTf32(gpu, found, forms[0])]
    elif is_nhwc(call.needed("dw")) and (
        gradient := weight_gradient(gpu, backend.precision, folded)
    ):
        own = [WgradTf32(gpu, gradient, forms[0])]
    unless = good_enough(gpu, problem) if own else 0.0
    others = [
        SpaceToDepthCudnn(call, each, operation, unless=unless, eager=not own) for each in forms
    ]
    plain = _cudnn(call, problem, operation)
    return [*own, *others, *map(Spare, plain)]


def _by_libraries(
    call: CudaCall, problem: Problem, operation: str, large: list[Provider]
) -> list[Provider]:
    """Libraries, and the kernel for large convolutions: where there are groups, libraries are slow,
    and asked only if it is, too."""
    if problem.group > 1 and large:
        unless = good_enough(call.backend.properties, problem)
        return [*large, *_cudnn(call, problem, operation, unless=unless, eager=False)]
    return [*_cudnn(call, problem, operation, own=bool(large)), *large]


def _cudnn(
    call: CudaCall,
    problem: Problem,
    operation: str,
    *,
    own: bool = False,
    unless: float = 0.0,
    eager: bool = True,
) -> list[Provider]:
    """cuDNN in its variants, and cuBLASLt where it is a product. own: a kernel of ours does it,
    too. unless, eager: see `Cudnn`."""
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
        providers.append(Cudnn(backend, f"cudnn {kind}", each, step, unless=unless, eager=eager))
    if asked == [fused]:
        step = functools.partial(_step, operation, False)
        providers.append(Spare(Cudnn(backend, "cudnn alone", plain, step)))
    if problem.is_product:
        light = operation == "forward" or problem.work < LIGHT
        return [_gemm(call, problem, operation), *(map(Spare, providers) if light else providers)]
    if 1 < problem.group <= MOST_GROUPS and can_pack(plain, problem.group):
        providers.append(PackedGroups(call, plain, problem.group, unless=unless, eager=eager))
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
