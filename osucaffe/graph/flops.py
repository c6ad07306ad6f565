"""Owns the count of floating-point operations: what a call of a primitive has to compute.

A multiplication and an addition count one each. Only the arithmetic that the definition asks for
is counted, whatever a backend does, and only of the primitives that carry a net's weight: the
rest moves data.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..backends.tensor import Call


def flops(call: Call) -> int:
    """The operations of one call; 0 for primitives that compute next to nothing."""
    count = _COUNTS.get(call.name)
    return count(call) if count else 0


def _convolution(call: Call, large: str, weights: str) -> int:
    """Each element on the output's side meets the weights of one output channel."""
    tensors = call.reads | call.writes
    w = tensors[weights]
    return int(2 * tensors[large].count * (w.count // w.shape[0]))


def _filter_gradient(call: Call) -> int:
    bias = call.writes.get("db")
    weights = _convolution(call, "dy", "dw") if "dw" in call.writes else 0
    return weights + (call.reads["dy"].count if bias else 0)


def _inner_product(call: Call, x: str, y: str) -> int:
    """2 M N K: rows of x, outputs of each, inputs of each."""
    tensors = call.reads | call.writes
    axis = call.settings["axis"]
    inputs = math.prod(tensors[x].shape[axis:])
    return int(2 * inputs * tensors[y].count)


def _inner_product_filter(call: Call) -> int:
    dy = call.reads["dy"].count
    weights = _inner_product(call, "x", "dy") if "dw" in call.writes else 0
    return weights + (dy if call.writes.get("db") else 0)


def _pooling(call: Call, y: str) -> int:
    return int((call.reads | call.writes)[y].count * math.prod(call.settings["kernel"]))


def _with_bias(count: int, call: Call) -> int:
    return count + (call.writes["y"].count if call.reads.get("b") else 0)


def _lrn(call: Call) -> int:
    """The window's sum of squares, then scale, power and product."""
    size = call.settings["size"] ** (2 if call.settings["within_channel"] else 1)
    return int(call.reads["x"].count * (2 * size + 3))


_COUNTS: dict[str, Callable[[Call], int]] = {
    "convolution": lambda call: _with_bias(_convolution(call, "y", "w"), call),
    "convolution_backward_data": lambda call: _convolution(call, "dy", "w"),
    "convolution_backward_filter": _filter_gradient,
    "inner_product": lambda call: _with_bias(_inner_product(call, "x", "y"), call),
    "inner_product_backward_data": lambda call: _inner_product(call, "dx", "dy"),
    "inner_product_backward_filter": _inner_product_filter,
    "max_pooling": lambda call: _pooling(call, "y"),
    "average_pooling": lambda call: _pooling(call, "y"),
    "lrn": _lrn,
    "lrn_backward": lambda call: 2 * _lrn(call),
    "relu": lambda call: call.reads["x"].count,
    "relu_backward": lambda call: call.reads["dy"].count,
    "softmax": lambda call: 4 * call.reads["x"].count,
    "softmax_loss": lambda call: 4 * call.reads["x"].count,
}
