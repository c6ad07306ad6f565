"""Owns what is compiled ahead of its turn: kernels of our own that convolutions will be timed with.

A convolution that is prepared waits for its own. Asked for together, all are compiled side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..tensor import Call, Shape, Tensor
from . import filter_gradient, large
from .folding import Folding
from .layout import Layout, is_nhwc, lying
from .own import (
    correlation_trials,
    gradient_trials,
    large_gradient,
    large_images,
    large_outputs,
)
from .small import Division, Small, small
from .ways import Problem

if TYPE_CHECKING:
    from .backend import Cuda

Trials = dict[str, Callable[[], Any]]
"""What begins to compile kernels, by what their time is remembered by."""


def compile_ahead(backend: Cuda, calls: Iterable[Call]) -> None:
    """Let the kernels that these calls will be timed with be compiled from now on."""
    for call in calls:
        alone = {*call.writes} == {"db"}  # no filters: the gradient of a bias
        if call.name.startswith("convolution") and not alone:
            for what, begin in _trials(backend, call).items():
                if backend.timings.get(what) is None:
                    begin()


def _trials(backend: Cuda, call: Call) -> Trials:
    """As the call's preparation finds them."""
    given: dict[str, Any] = call.reads | call.writes
    x, w, y = (given[name] if name in given else given[f"d{name}"] for name in "xwy")
    window = {name: call.settings[name] for name in ("stride", "pad", "dilation", "group")}
    problem = Problem.of(x, w, y, **window)
    tiny = small(backend, problem)
    images = _as_it_will_lie(backend, x) if x.shape[1] % 2 else _held(backend, x.shape)
    if call.name == "convolution_backward_filter":
        gradient, folding = large_gradient(backend, problem)
        found = _large_gradients(gradient, folding) if gradient else {}
        if tiny and (w.is_open or is_nhwc(w)):
            found |= _small_gradients(tiny, images)
        return found
    if call.name == "convolution":
        outputs, folding = large_outputs(backend, problem)
        found = _large(outputs, folding, bias="b" in given) if outputs else {}
        if tiny and folding is None:
            found |= _small(tiny, images, masked=False, flipped=False)
        return found
    masked = "positive" in given
    back = large_images(backend, problem, masked=masked)
    found = _large(back, None, bias=False) if back else {}
    if tiny:
        found |= _small(tiny.turned, _held(backend, y.shape), masked=masked, flipped=True)
    return found


def _large(found: large.Large, folding: Folding | None, *, bias: bool) -> Trials:
    return {
        what: partial(found.function, "convolve", division)
        for what, division in large.trials(found, folding, bias=bias).items()
    }


def _large_gradients(found: filter_gradient.FilterGradient, folding: Folding | None) -> Trials:
    return {
        what: partial(found.function, "filter_products", division)
        for what, division in filter_gradient.trials(found, folding).items()
    }


def _small(found: Small, x: Tensor, *, masked: bool, flipped: bool) -> Trials:
    positive = x if masked else None  # of tensors, it matters only which there are
    tensors = {"x": x, "w": x, "b": None, "positive": positive, "y": x}
    return {
        what: partial(make, **tensors, slope=1.0)
        for what, make in correlation_trials(found, x, masked=masked, flipped=flipped).items()
    }


def _small_gradients(found: Small, x: Tensor) -> Trials:
    macros = found.gradient_macros(x)

    def begin(division: Division) -> None:
        for name in "gradient", "finish_gradient":
            division.function(name, macros)

    return {what: partial(begin, each) for what, each in gradient_trials(found, x).items()}


def _held(backend: Cuda, shape: Shape) -> Tensor:
    """A blob in the type of the precision, with the channels last."""
    return lying(Tensor(shape), Layout(shape, backend.dtype, True))


def _as_it_will_lie(backend: Cuda, tensor: Tensor) -> Tensor:
    """What lies as this tensor does once a convolution has read it."""
    layout = backend.layout_for(tensor.root) if tensor.is_open else None
    return tensor if layout is None else lying(Tensor(tensor.shape), layout)
