"""Owns what is compiled ahead of its turn: kernels that large convolutions will be timed with.

A convolution that is prepared waits for its own. Asked for together, all are compiled side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..tensor import Call
from . import filter_gradient, large
from .folding import Folding
from .own import large_gradient, large_images, large_outputs
from .ways import Problem

if TYPE_CHECKING:
    from .backend import Cuda

Trials = dict[str, partial[Any]]
"""What begins to compile a kernel, by what its time is remembered by."""


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
    folding: Folding | None = None
    if call.name == "convolution_backward_filter":
        gradient, folding = large_gradient(backend, problem)
        if gradient is None:
            return {}
        return {
            what: partial(gradient.function, "filter_products", division)
            for what, division in filter_gradient.trials(gradient, folding).items()
        }
    if call.name == "convolution":
        found, folding = large_outputs(backend, problem)
    else:
        found = large_images(backend, problem, masked="positive" in given)
    if found is None:
        return {}
    return {
        what: partial(found.function, "convolve", division)
        for what, division in large.trials(found, folding, bias="b" in given).items()
    }
