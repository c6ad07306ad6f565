"""The count of what calls of primitives have to do: floating-point operations, and bytes that
they read or write.

A multiplication and an addition count one each. Only the arithmetic that the definition asks for
is counted, whatever a backend does, and only of the primitives that carry a net's weight: the
rest moves data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ..backends import primitives as ops
from ..backends.primitives.recording import Primitive
from ..backends.tensor import Tensor


def by_layer(program: Sequence[Primitive], layers: int) -> list[list[Primitive]]:
    """The calls of each layer; those after all layers (the sum of the losses) are nobody's."""
    return [[call for call in program if call.position == layer] for layer in range(layers)]


def flops(call: Primitive) -> int:
    """The operations of one call; 0 for primitives that compute next to nothing."""
    match call:
        case ops.Convolution():
            return _convolution(call.y, call.w) + _ending(call)
        case ops.ConvolutionBackwardData():
            return _convolution(call.dy, call.w)
        case ops.ConvolutionBackwardFilter():
            return _bias(call) + (0 if call.dw is None else _convolution(call.dy, call.dw))
        case ops.InnerProduct():
            return _inner_product(call.x, call.y, call.axis) + _ending(call)
        case ops.InnerProductBackwardData():
            return _inner_product(call.dx, call.dy, call.axis)
        case ops.InnerProductBackwardFilter():
            return _bias(call) + (
                0 if call.dw is None else _inner_product(call.x, call.dy, call.axis)
            )
        case ops.MaxPooling() | ops.AveragePooling():
            return call.y.count * math.prod(call.kernel)
        case ops.Lrn():
            return _lrn(call, call.x)
        case ops.LrnBackward():
            return 2 * _lrn(call, call.x)
        case ops.BatchNormStatistics():
            return 3 * call.x.count
        case ops.BatchNorm():
            addend = call.addend is not None
            return (_given(call) + addend + call.relu) * call.y.count
        case ops.BatchNormPooling():
            return call.y.count * (math.prod(call.kernel) + _given(call) + call.relu)
        case ops.BatchNormBackward():
            return _batch_norm_backward(call, len(call.dys))
        case ops.BatchNormPoolingBackward():
            return _batch_norm_backward(call, 1)
        case ops.Sum():
            factors = sum(factor != 1 for factor in call.coefficients or ())
            return (len(call.xs) - 1 + factors) * call.y.count
        case ops.Recurrent() | ops.RecurrentBackward():  # of all steps' states, or gates' gradients
            return 0 if call.w is None else 2 * call.keep.count * call.w.count
        case ops.Relu():
            return call.x.count
        case ops.ReluBackward():
            return call.dy.count
        case ops.Softmax() | ops.SoftmaxLoss():
            return 4 * call.x.count
    return 0


def bytes_moved(calls: Iterable[Primitive], nbytes: Callable[[Tensor], int]) -> int:
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


def _touched(call: Primitive, tensor: Tensor) -> int:
    """The elements of one of its tensors that a call reads or writes."""
    match call:
        case ops.Concat(slices=list() as slices) if tensor is not call.y:
            if cut := slices[call.xs.index(tensor)]:
                return tensor.size * cut[1] // tensor.shape[call.axis]
        case ops.BatchNorm(subsample=tuple()):  # of what it reads, some pixels
            return min(tensor.size, call.y.size)
    return tensor.size


def _convolution(large: Tensor, weights: Tensor) -> int:
    """Each element on the output's side meets the weights of one output channel."""
    return 2 * large.count * (weights.count // weights.shape[0])


def _inner_product(x: Tensor, y: Tensor, axis: int) -> int:
    """2 M N K: rows of x, outputs of each, inputs of each."""
    return 2 * math.prod(x.shape[axis:]) * y.count


def _ending(call: ops.Convolution | ops.InnerProduct) -> int:
    """The bias and the ReLU that it may end with."""
    return ((call.b is not None) + (call.relu is not None)) * call.y.count


def _bias(call: ops.ConvolutionBackwardFilter | ops.InnerProductBackwardFilter) -> int:
    """The gradient of the bias: the sum of the output's."""
    return 0 if call.db is None else call.dy.count


def _lrn(call: ops.Neighbourhood, x: Tensor) -> int:
    """The window's sum of squares, then scale, power and product."""
    size = call.size ** (2 if call.within_channel else 1)
    return x.count * (2 * size + 3)


def _given(call: ops.Normalization) -> int:
    """A subtraction, product or sum for each of the operands."""
    return sum(tensor is not None for tensor in call.channel_params.values())


def _batch_norm_backward(
    call: ops.BatchNormBackward | ops.BatchNormPoolingBackward, parts: int
) -> int:
    """What each element takes: first its gradient, then the two sums over a channel that the
    gradients of bias, scale and statistics are made of, then dx."""
    through = call.dx is not None and not call.constant
    mean, inv_std, scale = (tensor is not None for tensor in (call.mean, call.inv_std, call.scale))
    steps = parts - 1 + call.relu
    if through or call.dbias is not None:
        steps += 1
    if through or call.dscale is not None:
        # x is normalized (where there are statistics), multiplied by its gradient and summed.
        steps += 2 + mean + inv_std
    if through:
        steps += 3  # less the mean gradient, and less x times that of its product
    if call.dx is not None:
        steps += inv_std + scale
    return steps * call.x.count
