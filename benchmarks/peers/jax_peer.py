"""The JAX peer: functions made from any NetParameter of the layers listed here.

It computes what Caffe computes (the tests compare). Images are N x H x W x C, as XLA's convolutions
want them. In bf16 parameters stay fp32 and are converted where they are used; what batch
normalization and losses sum is fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2

from .. import nets
from ..built import DECAY, LEARNING_RATE, MOMENTUM
from .layers import NORMALIZATION, checked_layers, input_shapes, loss_weights, pair, update_rates

_Values = dict[str, list[Array]]
_Layer = Callable[[caffe_pb2.LayerParameter, list[Array], list[Array], Array], Array]


class JaxPeer:
    """A net that is already filtered by phase, its inputs being Input layers.

    parameters: what is learned, by layer. statistics: running means and variances, by layer.
    """

    def __init__(self, net: caffe_pb2.NetParameter, precision: str, *, seed: int = 1) -> None:
        self.specs = checked_layers(net)
        self.losses = loss_weights(self.specs)
        self.dtype = jnp.bfloat16 if precision == "bf16" else jnp.float32
        self.parameters: _Values = {}
        self.statistics: _Values = {}
        self._flattened: dict[str, tuple[int, ...]] = {}
        # Shapes are found by tracing every layer, without memory.
        blobs: dict[str, Any] = {
            top: jax.ShapeDtypeStruct((shape[0], *shape[2:], shape[1]), self.dtype)
            if len(shape) == 4
            else jax.ShapeDtypeStruct(shape, jnp.int32)
            for top, shape in input_shapes(net).items()
        }
        for spec in self.specs:
            if spec.type not in _LAYERS and spec.type != NORMALIZATION:
                raise UserError(f'layer "{spec.name}": no JAX peer of type {spec.type}')
            self._create_parameters(spec, blobs[spec.bottom[0]].shape, seed)
            blobs |= jax.eval_shape(
                partial(self._apply, spec),
                self.parameters,
                self.statistics,
                blobs,
                jax.random.key(0),
            )[0]

    def batch(self, values: Mapping[str, np.ndarray]) -> dict[str, Array]:
        """Caffe's inputs as this peer wants them; those of one dimension are labels."""
        return {
            top: jnp.asarray(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x.astype(np.int32))
            for top, x in values.items()
        }

    def converted(self, spec: caffe_pb2.LayerParameter, values: Sequence[Any]) -> list[Any]:
        """A layer's parameters, or their gradients, as they lie here: from Caffe's shapes."""
        if spec.type == "Convolution":
            return [each.transpose(2, 3, 1, 0) if each.ndim == 4 else each for each in values]
        if spec.type == "InnerProduct":
            outputs, (height, width, channels) = len(values[0]), self._flattened[spec.name]
            weights = values[0].reshape(outputs, channels, height, width).transpose(2, 3, 1, 0)
            return [weights.reshape(-1, outputs), *values[1:]]
        return list(values)

    def loss(
        self, parameters: _Values, statistics: _Values, inputs: Mapping[str, Array], key: Array
    ) -> tuple[Array, tuple[_Values, dict[str, Array]]]:
        """The sum of the losses by their weights; the next statistics and all blobs by name.

        key: of what dropout draws.
        """
        blobs, following = self._converted_inputs(inputs), dict(statistics)
        for index, spec in enumerate(self.specs):
            of_layer = jax.random.fold_in(key, index)
            tops, changed = self._apply(spec, parameters, statistics, blobs, of_layer)
            blobs |= tops
            following |= changed
        total = jnp.stack([blobs[top] * weight for top, weight in self.losses]).sum()
        return total, (following, blobs)

    def train(
        self, inputs: Mapping[str, Array], state: tuple[_Values, _Values, _Values, Array]
    ) -> tuple[_Values, _Values, _Values, Array]:
        """Parameters, their history, statistics and key after an iteration of SGD with momentum."""
        parameters, history, statistics, key = state
        key, of_iteration = jax.random.split(key)
        gradients, (statistics, _) = jax.grad(self.loss, has_aux=True)(
            parameters, statistics, inputs, of_iteration
        )
        new: _Values = {}
        moved: _Values = {}
        for spec in self.specs:
            new[spec.name], moved[spec.name] = [], []
            for index, gradient in enumerate(gradients[spec.name]):
                rate, decay = update_rates(spec, index, LEARNING_RATE, DECAY)
                value = parameters[spec.name][index]
                step = MOMENTUM * history[spec.name][index] + gradient + decay * value
                moved[spec.name].append(step)
                new[spec.name].append(value - rate * step)
        return new, moved, statistics, key

    def _converted_inputs(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Images in the precision that layers compute in."""
        return {top: x.astype(self.dtype) if x.ndim == 4 else x for top, x in inputs.items()}

    def _apply(
        self,
        spec: caffe_pb2.LayerParameter,
        parameters: _Values,
        statistics: _Values,
        blobs: Mapping[str, Array],
        key: Array,
    ) -> tuple[dict[str, Array], _Values]:
        """A layer's top, and its next statistics where it has some."""
        bottoms, values = [blobs[name] for name in spec.bottom], parameters[spec.name]
        if spec.type != NORMALIZATION:
            return {spec.top[0]: _LAYERS[spec.type](spec, bottoms, values, key)}, {}
        y, following = _batch_normalization(spec, bottoms[0], values, statistics[spec.name])
        return {spec.top[0]: y}, {spec.name: following}

    def _create_parameters(
        self, spec: caffe_pb2.LayerParameter, shape: tuple[int, ...], seed: int
    ) -> None:
        """First values of what a layer learns; shape: of its bottom."""
        shapes: list[tuple[int, ...]] = []
        channels = shape[-1]
        if spec.type == "Convolution":
            conv = spec.convolution_param
            shapes = [(conv.num_output, channels // conv.group, *pair(conv, "kernel", 0))]
            shapes += [(conv.num_output,)] * conv.bias_term
        elif spec.type == "InnerProduct":
            inner = spec.inner_product_param
            self._flattened[spec.name] = (
                (*shape[1:3], channels) if len(shape) > 2 else (1, 1, channels)
            )
            shapes = [(inner.num_output, int(np.prod(shape[1:])))]
            shapes += [(inner.num_output,)] * inner.bias_term
        values = [
            nets.synthetic_weights(spec.type, index, each, seed)
            for index, each in enumerate(shapes)
        ]
        self.parameters[spec.name] = [jnp.asarray(x) for x in self.converted(spec, values)]
        if spec.type == NORMALIZATION:
            self.parameters[spec.name] = [jnp.ones(channels), jnp.zeros(channels)]
            self.statistics[spec.name] = [jnp.zeros(channels), jnp.ones(channels)]


def _convolution(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    param, (x,) = spec.convolution_param, bottoms
    dilation = list(param.dilation) or [1]
    y = lax.conv_general_dilated(
        x,
        values[0].astype(x.dtype),
        pair(param, "stride", 1),
        [(each, each) for each in pair(param, "pad", 0)],
        rhs_dilation=(dilation[0], dilation[-1]),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=param.group,
    )
    return y + values[1].astype(x.dtype) if len(values) > 1 else y


def _inner_product(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    if spec.inner_product_param.axis != 1:
        raise UserError(f'layer "{spec.name}": the JAX peer sums over all axes but the first')
    x = bottoms[0].reshape(len(bottoms[0]), -1)
    y = x @ values[0].astype(x.dtype)
    return y + values[1].astype(x.dtype) if len(values) > 1 else y


def _pooling(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    param, (x,) = spec.pooling_param, bottoms
    largest = param.pool == caffe_pb2.PoolingParameter.MAX
    if param.global_pooling:
        return x.max((1, 2), keepdims=True) if largest else x.mean((1, 2), keepdims=True)
    sizes, strides, pads = pair(param, "kernel", 0), pair(param, "stride", 1), pair(param, "pad", 0)
    around, counts = [], []
    for length, size, stride, pad in zip(x.shape[1:3], sizes, strides, pads, strict=True):
        up = stride - 1 if param.round_mode == caffe_pb2.PoolingParameter.CEIL else 0
        outputs = (length + 2 * pad - size + up) // stride + 1
        if any(pads) and (outputs - 1) * stride >= length + pad:  # a window beyond the image
            outputs -= 1
        starts = np.arange(outputs) * stride - pad
        counts.append(np.minimum(starts + size, length + pad) - starts)
        around.append((pad, max(0, int(starts[-1]) + size - length)))
    window = ((1, *sizes, 1), (1, *strides, 1), ((0, 0), *around, (0, 0)))
    if largest:
        return lax.reduce_window(x, np.asarray(-np.inf, x.dtype), lax.max, *window)
    total = lax.reduce_window(x.astype(jnp.float32), np.float32(0), lax.add, *window)
    return (total / np.outer(*counts)[None, :, :, None].astype(np.float32)).astype(x.dtype)


def _normalization(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    param, (x,) = spec.lrn_param, bottoms
    if param.norm_region == caffe_pb2.LRNParameter.WITHIN_CHANNEL:
        raise UserError(f'layer "{spec.name}": the JAX peer normalizes across channels')
    size, wide = param.local_size, x.astype(jnp.float32)
    before = (size - 1) // 2
    squares = jnp.pad(wide * wide, [(0, 0)] * 3 + [(before, size - 1 - before)])
    total = sum(squares[..., shift : shift + x.shape[3]] for shift in range(size))
    return (wide * (param.k + param.alpha / size * total) ** -param.beta).astype(x.dtype)


def _batch_normalization(
    spec: caffe_pb2.LayerParameter, x: Array, values: list[Array], statistics: list[Array]
) -> tuple[Array, list[Array]]:
    """The output, and the running mean and variance behind it."""
    param, wide = spec.batch_norm_param, x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = (wide * wide).mean((0, 1, 2)) - mean * mean
    y = (wide - mean) * (lax.rsqrt(variance + param.eps) * values[0]) + values[1]
    fraction = param.moving_average_fraction
    following = [
        fraction * before + (1 - fraction) * lax.stop_gradient(now)
        for before, now in zip(statistics, (mean, variance), strict=True)
    ]
    return y.astype(x.dtype), following


def _sum(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    factors = list(spec.eltwise_param.coeff) or [1.0] * len(bottoms)
    first, *others = (x * factor for x, factor in zip(bottoms, factors, strict=True))
    return sum(others, first)


def _dropout(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    (x,), kept = bottoms, 1 - spec.dropout_param.dropout_ratio
    return jnp.where(jax.random.bernoulli(key, kept, x.shape), x / kept, 0).astype(x.dtype)


def _pixel_shuffle(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    (x,), factor = bottoms, spec.pixel_shuffle_param.upscale_factor
    images, height, width, _ = x.shape
    parts = x.reshape(images, height, width, -1, factor, factor).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(images, height * factor, width * factor, -1)


def _concat(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    return jnp.concatenate(bottoms, (0, 3, 1, 2)[spec.concat_param.axis])


def _relu(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    return jax.nn.leaky_relu(bottoms[0], spec.relu_param.negative_slope)


def _softmax_loss(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    scores, labels = bottoms
    logarithms = jax.nn.log_softmax(scores.reshape(len(scores), -1).astype(jnp.float32))
    return -jnp.take_along_axis(logarithms, labels[:, None], 1).mean()


def _l1_loss(
    spec: caffe_pb2.LayerParameter, bottoms: list[Array], values: list[Array], key: Array
) -> Array:
    y, target = (x.astype(jnp.float32) for x in bottoms)
    return jnp.abs(y - target).mean()


_LAYERS: dict[str, _Layer] = {
    "Concat": _concat,
    "Convolution": _convolution,
    "Dropout": _dropout,
    "Eltwise": _sum,
    "InnerProduct": _inner_product,
    "L1Loss": _l1_loss,
    "LRN": _normalization,
    "PixelShuffle": _pixel_shuffle,
    "Pooling": _pooling,
    "ReLU": _relu,
    "SoftmaxWithLoss": _softmax_loss,
}
