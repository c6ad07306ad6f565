"""Owns the count of what calls of primitives have to do: floating-point operations, and bytes that
they read or write.

A multiplication and an addition count one each. Only the arithmetic that the definition asks for
is counted, whatever a backend does, and only of the primitives that carry a net's weight: the
rest moves data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ..backends.tensor import Call, Tensor


def by_layer(program: Sequence[Call], layers: int) -> list[list[Call]]:
    """The calls of each layer; those behind all layers (the sum of the losses) are nobody's."""
    return [[call for call in program if call.position == layer] for layer in range(layers)]


def flops(call: Call) -> int:
    """The operations of one call; 0 for primitives that compute next to nothing."""
    count = _COUNTS.get(call.name)
    return count(call) if count else 0


def bytes_moved(calls: Iterable[Call], nbytes: Callable[[Tensor], int]) -> int:
    """The bytes that the calls together read or write, each once. nbytes: what a tensor takes."""
    parts: dict[tuple[Tensor, int], int] = {}
    for call in calls:
        for tensor in (*call.read_tensors(), *call.written_tensors()):
            part = tensor.owner, tensor.start
            parts[part] = max(parts.get(part, 0), _touched(call, tensor))
    found: Counter[Tensor] = Counter()
    for (owner, _), count in parts.items():
        found[owner] = min(found[owner] + count, owner.size)
    return sum(nbytes(owner) * count // owner.size for owner, count in found.items() if count)


def _touched(call: Call, tensor: Tensor) -> int:
    """The elements of one of its tensors that a call reads or writes."""
    if call.settings.get("cuts") and tensor is not call.writes["y"]:
        cuts = dict(zip(call.reads["xs"], call.settings["cuts"], strict=True))
        if cut := cuts[tensor]:
            return tensor.size * cut[1] // tensor.shape[call.settings["axis"]]
    if call.name == "batch_norm" and call.settings.get("every"):  # of what it reads, some pixels
        return min(tensor.size, call.writes["y"].size)
    return tensor.size


def _convolution(call: Call, large: str, weights: str) -> int:
    """Each element on the output's side meets the weights of one output channel."""
    tensors = call.reads | call.writes
    w = tensors[weights]
    return int(2 * tensors[large].count * (w.count // w.shape[0]))


def _filter_gradient(weights: Callable[[Call], int]) -> Callable[[Call], int]:
    """The gradients of weights, and of the bias: the sum of the output's."""

    def count(call: Call) -> int:
        bias = call.reads["dy"].count if call.writes.get("db") else 0
        return bias + (weights(call) if "dw" in call.writes else 0)

    return count


def _inner_product(call: Call, x: str, y: str) -> int:
    """2 M N K: rows of x, outputs of each, inputs of each."""
    tensors = call.reads | call.writes
    axis = call.settings["axis"]
    inputs = math.prod(tensors[x].shape[axis:])
    return int(2 * inputs * tensors[y].count)


def _pooling(call: Call, y: str) -> int:
    return int((call.reads | call.writes)[y].count * math.prod(call.settings["kernel"]))


def _finished(count: int, call: Call) -> int:
    """With the bias and the ReLU that a convolution or inner product may end with."""
    steps = (call.reads.get("b") is not None) + (call.settings.get("relu") is not None)
    return count + steps * call.writes["y"].count


def _lrn(call: Call) -> int:
    """The window's sum of squares, then scale, power and product."""
    size = call.settings["size"] ** (2 if call.settings["within_channel"] else 1)
    return int(call.reads["x"].count * (2 * size + 3))


def _batch_norm(call: Call) -> int:
    """A subtraction, product or sum for each of the operands, and the ReLU."""
    operands = ("mean", "rate", "scale", "bias", "addend")
    given = sum(call.reads.get(name) is not None for name in operands)
    return (given + call.settings["relu"]) * int(call.writes["y"].count)


def _batch_norm_backward(call: Call) -> int:
    """What each element takes: first its gradient, then the two sums over a channel that the
    gradients of bias, scale and statistics are made of, then dx."""
    reads, writes = call.reads, call.writes
    through = "dx" in writes and not call.settings["constant"]
    parts = reads.get("dys") or [reads["dy"]]
    steps = len(parts) - 1 + call.settings["relu"]
    if through or "dbias" in writes:
        steps += 1
    if through or "dscale" in writes:
        # x is normalized (where there are statistics), multiplied by its gradient and summed.
        steps += 2 + (reads.get("mean") is not None) + (reads.get("rate") is not None)
    if through:
        steps += 3  # less the mean gradient, and less x times that of its product
    if "dx" in writes:
        steps += (reads.get("rate") is not None) + (reads.get("scale") is not None)
    return steps * int(reads["x"].count)


def _sum(call: Call) -> int:
    xs = call.reads["xs"]
    factors = call.settings.get("coefficients") or []
    return (len(xs) - 1 + sum(factor != 1 for factor in factors)) * int(call.writes["y"].count)


def _recurrent(call: Call) -> int:
    """The product of all steps' states (or, backwards, gates' gradients) and the weights."""
    w = call.reads.get("w")
    return int(2 * call.reads["keep"].count * w.count) if w is not None else 0


_COUNTS: dict[str, Callable[[Call], int]] = {
    "convolution": lambda call: _finished(_convolution(call, "y", "w"), call),
    "convolution_backward_data": lambda call: _convolution(call, "dy", "w"),
    "convolution_backward_filter": _filter_gradient(lambda call: _convolution(call, "dy", "dw")),
    "inner_product": lambda call: _finished(_inner_product(call, "x", "y"), call),
    "inner_product_backward_data": lambda call: _inner_product(call, "dx", "dy"),
    "inner_product_backward_filter": _filter_gradient(lambda call: _inner_product(call, "x", "dy")),
    "max_pooling": lambda call: _pooling(call, "y"),
    "average_pooling": lambda call: _pooling(call, "y"),
    "lrn": _lrn,
    "lrn_backward": lambda call: 2 * _lrn(call),
    "batch_norm_statistics": lambda call: 3 * call.reads["x"].count,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "batch_norm_pooling": lambda call: _pooling(call, "y") + _batch_norm(call),
    "batch_norm_pooling_backward": _batch_norm_backward,
    "sum": _sum,
    "recurrent": _recurrent,
    "recurrent_backward": _recurrent,
    "relu": lambda call: call.reads["x"].count,
    "relu_backward": lambda call: call.reads["dy"].count,
    "softmax": lambda call: 4 * call.reads["x"].count,
    "softmax_loss": lambda call: 4 * call.reads["x"].count,
}
