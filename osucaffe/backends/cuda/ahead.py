"""Owns what is compiled ahead of its turn: kernels that large convolutions will be timed with.

A convolution that is prepared waits for its own. Asked for together, all are compiled side by side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..tensor import Call
from . import filter_gradient, large
from .convolution import FOLDED_WINDOW
from .folding import foldings, folds

if TYPE_CHECKING:
    from .backend import Cuda

Trial = tuple[str, Callable[[], Any]]
"""What the time is remembered by, and what begins to compile the kernel."""


def compile_ahead(backend: Cuda, calls: Iterable[Call]) -> None:
    """Let the kernels that these calls will be timed with be compiled from now on."""
    for call in calls:
        if call.name.startswith("convolution"):
            for what, begin in _trials(backend, call):
                if backend.timings.get(what) is None:
                    begin()


def _trials(backend: Cuda, call: Call) -> Iterator[Trial]:
    """As the call's preparation finds them."""
    given: dict[str, Any] = call.reads | call.writes
    back = call.name == "convolution_backward_data"
    images, w = (given["dx"] if back else given["x"]), given.get("w", given.get("dw"))
    maps = given["y"] if "y" in given else given["dy"]
    if w is None:  # the gradient of a bias alone
        return
    x, y, kernel = images.shape, maps.shape, w.shape[2:]
    window = tuple(call.settings[name] for name in ("stride", "pad", "dilation"))
    group = call.settings["group"]
    folding = None
    if not back and folds(images, window, group):
        folding = foldings("float32", images, w, maps, window)[0]
    if call.name == "convolution_backward_filter":
        gradient = filter_gradient.filter_gradient(backend, x, y, kernel, window, group, folding)
        if gradient is not None:
            for what, division in filter_gradient.trials(gradient, folding).items():
                yield what, functools.partial(gradient.function, "filter_products", division)
        return
    if folding is not None:
        x, y, kernel, window = folding.folded_x, folding.folded_y, folding.kernel, FOLDED_WINDOW
    found = large.large(backend, x, y, kernel, window, group)
    if found is None:
        return
    if back:
        found = found.gradient(masked=given.get("positive") is not None)
    for what, each in large.trials(found, folding, bias=given.get("b") is not None).items():
        yield what, functools.partial(found.function, "convolve", each)
