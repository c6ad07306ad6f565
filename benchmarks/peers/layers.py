"""What PyTorch's and JAX's peers read alike of a net: its layers, checked, and their settings.

A setting that the peers don't have is refused, so that all sides compute the same net.
"""

from __future__ import annotations

from typing import Any

from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2

NORMALIZATION = "BatchNorm, Scale"
"""The type of a BatchNorm and the Scale behind it."""
LOSSES = ("L1Loss", "SoftmaxWithLoss")
_IGNORED = ("Input", "Accuracy", "Silence")


def input_shapes(net: caffe_pb2.NetParameter) -> dict[str, tuple[int, ...]]:
    """The shapes of what the Input layers bring, by top. Those of one dimension are labels."""
    return {
        top: tuple(shape.dim)
        for layer in net.layer
        for top, shape in zip(layer.top, layer.input_param.shape, strict=False)
    }


def checked_layers(net: caffe_pb2.NetParameter) -> list[caffe_pb2.LayerParameter]:
    """The layers that compute, with each BatchNorm and the Scale behind it as one of the Scale's
    name. Raises UserError for a setting that the peers lack."""
    joined: list[caffe_pb2.LayerParameter] = []
    for spec in net.layer:
        before = joined[-1] if joined else spec
        if spec.type == "Scale" and before.type == "BatchNorm" and spec.bottom[:] == before.top[:]:
            both = caffe_pb2.LayerParameter()
            both.CopyFrom(spec)
            both.type = NORMALIZATION
            both.bottom[:] = before.bottom
            both.batch_norm_param.CopyFrom(before.batch_norm_param)
            joined[-1] = both
        elif spec.type not in _IGNORED:
            joined.append(spec)
    for spec in joined:
        if (lacking := _lacking(spec)) is not None:
            raise UserError(f'layer "{spec.name}": the peers have no {lacking}')
    return joined


def _lacking(spec: caffe_pb2.LayerParameter) -> str | None:
    """What the layer asks for that the peers do not have."""
    pooling, scale = spec.pooling_param, spec.scale_param
    if spec.type == "InnerProduct" and spec.inner_product_param.transpose:
        return "transposed weights"
    if spec.type == "Pooling":
        if pooling.pool == caffe_pb2.PoolingParameter.STOCHASTIC:
            return "stochastic pooling"
        sides = zip(pair(pooling, "stride", 1), pair(pooling, "kernel", 0), strict=True)
        far = any(stride > kernel for stride, kernel in sides) and not pooling.global_pooling
        # Caffe keeps a last window that begins past the image here, PyTorch drops it.
        if far and pair(pooling, "pad", 0) == (0, 0):
            return "stride beyond the kernel"
    if spec.type == NORMALIZATION and not (
        scale.bias_term and (scale.axis, scale.num_axes) == (1, 1)
    ):
        return "normalization but with a scale and a shift of each channel"
    if spec.type == "Eltwise" and spec.eltwise_param.operation != caffe_pb2.EltwiseParameter.SUM:
        return "Eltwise but sums"
    if spec.type == "L1Loss" and spec.loss_param.normalization != caffe_pb2.LossParameter.FULL:
        return "mean of an L1Loss but over all values"
    return None


def pair(param: Any, prefix: str, default: int) -> tuple[int, int]:
    """Height and width of a setting that may be given once, twice, or as PREFIX_h and PREFIX_w."""
    if param.HasField(f"{prefix}_h") or param.HasField(f"{prefix}_w"):
        return getattr(param, f"{prefix}_h"), getattr(param, f"{prefix}_w")
    value = getattr(param, "kernel_size" if prefix == "kernel" else prefix)
    values = [value] if isinstance(value, int) else list(value) or [default]
    return values[0], values[-1]


def loss_weights(specs: list[caffe_pb2.LayerParameter]) -> list[tuple[str, float]]:
    """The tops of losses, each with its weight."""
    return [
        (spec.top[0], spec.loss_weight[0] if spec.loss_weight else 1.0)
        for spec in specs
        if spec.type in LOSSES
    ]


def update_rates(
    spec: caffe_pb2.LayerParameter, index: int, lr: float, decay: float
) -> tuple[float, float]:
    """The learning rate and the weight decay of a layer's parameter of this index."""
    given = spec.param[index] if index < len(spec.param) else caffe_pb2.ParamSpec()
    return lr * given.lr_mult, decay * given.decay_mult
