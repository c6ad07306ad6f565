"""Owns ways to compute a convolution or a product: of what, in what time, and which is fastest.

What libraries offer is in library.py, packing.py and folding.py; what kernels of our own do, in
own.py, large.py and filter_gradient.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..tensor import Shape, Step, Tensor, sequence
from .layout import Layout, lying
from .plans import time_of, trial_memory
from .registry import CudaCall

if TYPE_CHECKING:
    from .backend import Cuda

BYTES_A_MILLISECOND = 3e9
"""What an element-wise pass reads and writes."""
LAUNCH = 0.002
"""Milliseconds that a kernel takes at least."""
ENOUGH = 1.2e11
"""Additions and multiplications a millisecond at which a kernel of our own has it: plans of
libraries for groups, few channels or gradients of filters in tf32 hardly reach that, and are
compiled for seconds."""

Window = tuple[Shape, Shape, Shape]
"""stride, pad, dilation"""
Maker = Callable[[CudaCall, Mapping[str, Any]], Step]
"""Makes a step for a call with these tensors."""


@dataclass(frozen=True)
class Problem:
    """A convolution of images x (N, C, *in) by filters w (O, C / group, *kernel) to maps y
    (N, O, *out); or a gradient of it, where some of these are gradients, of the same shapes."""

    x: Shape
    w: Shape
    y: Shape
    window: Window
    group: int

    @classmethod
    def of(
        cls,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        *,
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
        group: int,
    ) -> Problem:
        """The convolution of these, or of what they are gradients of."""
        window = tuple(map(int, stride)), tuple(map(int, pad)), tuple(map(int, dilation))
        return cls(x.shape, w.shape, y.shape, window, group)

    @property
    def kernel(self) -> Shape:
        """Extents of the filters."""
        return self.w[2:]

    @property
    def work(self) -> int:
        """Multiplications."""
        return math.prod(self.y) * math.prod(self.w[1:])


@dataclass(frozen=True)
class Way:
    """milliseconds: as measured; make: makes the step."""

    milliseconds: float
    make: Callable[[], Step]

    def then(self, step: Callable[[], Step], nbytes: int) -> Way:
        """This, followed by an element-wise step that reads and writes so many bytes in all."""
        taken = self.milliseconds + nbytes / BYTES_A_MILLISECOND + LAUNCH
        return Way(taken, lambda: sequence([self.make(), step()]))


def least_time(ways: Sequence[Way]) -> float:
    """Milliseconds of the fastest; infinite where there is none."""
    return min((way.milliseconds for way in ways), default=math.inf)


def fastest(call: CudaCall, ways: Sequence[Way]) -> Step:
    """The step of the fastest way."""
    if not ways:
        raise NotImplementedError(
            f'layer "{call.layer}": cuDNN has no plan for a {call.name} of '
            f"{[tensor.shape for tensor in call.read_tensors()]} with {call.settings}"
        )
    return min(ways, key=lambda way: way.milliseconds).make()


def suffice(ways: Sequence[Way], problem: Problem) -> bool:
    """Whether libraries need not be asked for plans, with these ways."""
    return any(2 * problem.work >= ENOUGH * way.milliseconds for way in ways)


def measured(
    call: CudaCall, tensors: Mapping[str, Tensor | None], makers: Mapping[str, Maker]
) -> list[Way]:
    """Ways by kernels of our own, timed on stand-ins for their tensors.

    makers: what makes each step for a call, by a text that says all that its time depends on.
    """
    backend = call.backend
    wanted = [what for what in makers if backend.timings.get(what) is None]
    trials: dict[str, tuple[CudaCall, Step]] = {}
    if wanted:
        stand_ins = {name: each and _stand_in(backend, each) for name, each in tensors.items()}
        for what in wanted:  # all of them before the first runs: they compile at the same time
            trial = replace(call, scratch=[], before=[], after=[], _substitutes={})
            trials[what] = trial, makers[what](trial, stand_ins)
    for what, (trial, step) in trials.items():
        for scratch in trial.scratch:
            backend.place(scratch, backend.allocate(backend.nbytes(scratch)), 0)
        step()
        backend.timings.put(what, "", time_of(backend, step))

    def way(what: str, make: Maker) -> Way:
        found = backend.timings.get(what)
        assert found is not None
        return Way(found[1], lambda: make(call, tensors))

    return [way(what, make) for what, make in makers.items()]


def _stand_in(backend: Cuda, tensor: Tensor) -> Tensor:
    """A tensor that lies as this one does, in memory of its own with numbers in it."""
    result = Tensor(tensor.shape, tensor.dtype, flexible=True)
    if tensor.layout is not None:
        result.layout = tensor.layout
    backend.place(result, trial_memory(backend, backend.nbytes(tensor)), 0)
    return result


def temporary(call: CudaCall, shape: Shape) -> Tensor:
    """Scratch memory in the type of the precision, with the channels last."""
    return lying(call.temporary(shape), Layout(shape, call.backend.dtype, True))
