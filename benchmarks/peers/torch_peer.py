"""The PyTorch peer: a torch.nn.Module made from any NetParameter of the layers listed here.

It computes what Caffe computes (the tests compare), with PyTorch's own modules wherever it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2

from .layers import NORMALIZATION, checked_layers, input_shapes, loss_weights, pair, update_rates

_Builder = Callable[[caffe_pb2.LayerParameter, list[Tensor]], nn.Module]


class TorchPeer(nn.Module):
    """A net that is already filtered by phase, its inputs being Input layers."""

    def __init__(self, net: caffe_pb2.NetParameter, *, seed: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        self.specs = checked_layers(net)
        # Shapes are found by running every module on tensors without memory.
        blobs = {
            top: torch.empty(shape, dtype=_dtype(len(shape)), device="meta")
            for top, shape in input_shapes(net).items()
        }
        with torch.device("meta"), torch.no_grad():
            for spec in self.specs:
                bottoms = [blobs[name] for name in spec.bottom]
                if spec.type not in _BUILDERS:
                    raise UserError(f'layer "{spec.name}": no PyTorch peer of type {spec.type}')
                module = _BUILDERS[spec.type](spec, bottoms)
                self.layers[spec.name] = module
                blobs[spec.top[0]] = module(*bottoms)
        # Plain values: torch.compile traces them in one piece, messages it would stop at.
        self.steps = [(each.name, tuple(each.bottom), each.top[0]) for each in self.specs]
        self.losses = loss_weights(self.specs)
        self.to_empty(device="cpu")
        torch.manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
                module.reset_parameters()

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All blobs by name; a blob that a layer changes in place has its last value."""
        blobs = dict(inputs)
        for layer, bottoms, top in self.steps:
            blobs[top] = self.layers[layer](*[blobs[name] for name in bottoms])
        return blobs

    def loss(self, blobs: Mapping[str, Tensor]) -> Tensor:
        """The sum of the losses by their weights."""
        return torch.stack([blobs[top] * weight for top, weight in self.losses]).sum()

    def parameter_groups(self, lr: float, decay: float) -> list[dict[str, Any]]:
        """Groups for a torch optimizer: parameters of equal learning rate and weight decay."""
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for spec in self.specs:
            for index, parameter in enumerate(self.layers[spec.name].parameters()):
                rates = update_rates(spec, index, lr, decay)
                groups.setdefault(rates, []).append(parameter)
        return [
            {"params": parameters, "lr": rate, "weight_decay": weight_decay}
            for (rate, weight_decay), parameters in groups.items()
        ]

    @torch.no_grad()
    def load(self, parameters: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Take the values of parameters by layer name, in Caffe's order and shapes.

        Those of layers that have no peer of their own (BatchNorm: its statistics) stay behind.
        """
        for name, values in parameters.items():
            if name not in self.layers:
                continue
            for parameter, value in zip(self.layers[name].parameters(), values, strict=True):
                parameter.copy_(torch.from_numpy(value).reshape(parameter.shape))


def torch_batch(batch: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """A batch of arrays as tensors."""
    return {name: torch.from_numpy(x).to(_dtype(x.ndim)) for name, x in batch.items()}


def _dtype(dimensions: int) -> torch.dtype:
    """Inputs of one dimension are labels, which PyTorch wants as whole numbers."""
    return torch.int64 if dimensions == 1 else torch.float32


def _convolution(spec: caffe_pb2.LayerParameter, bottoms: list[Tensor]) -> nn.Module:
    param = spec.convolution_param
    dilation = list(param.dilation) or [1]
    return nn.Conv2d(
        bottoms[0].shape[1],
        param.num_output,
        pair(param, "kernel", 0),
        stride=pair(param, "stride", 1),
        padding=pair(param, "pad", 0),
        dilation=(dilation[0], dilation[-1]),
        groups=param.group,
        bias=param.bias_term,
    )


def _inner_product(spec: caffe_pb2.LayerParameter, bottoms: list[Tensor]) -> nn.Module:
    param = spec.inner_product_param
    flat = bottoms[0].flatten(param.axis)
    return nn.Sequential(
        nn.Flatten(param.axis), nn.Linear(flat.shape[-1], param.num_output, bias=param.bias_term)
    )


def _pooling(spec: caffe_pb2.LayerParameter, bottoms: list[Tensor]) -> nn.Module:
    param = spec.pooling_param
    kernel = pair(param, "kernel", 0)
    stride = pair(param, "stride", 1)
    pad = pair(param, "pad", 0)
    if param.global_pooling:
        kernel = tuple(bottoms[0].shape[2:])
    ceil = param.round_mode == caffe_pb2.PoolingParameter.CEIL
    if param.pool == caffe_pb2.PoolingParameter.MAX:
        return nn.MaxPool2d(kernel, stride, pad, ceil_mode=ceil)
    return nn.AvgPool2d(kernel, stride, pad, ceil_mode=ceil, count_include_pad=True)


class _NormalizationWithinChannel(nn.Module):
    """x * (1 + alpha * mean of x^2 over a size x size window)^-beta."""

    def __init__(self, size: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.mean = nn.AvgPool2d(size, stride=1, padding=(size - 1) // 2)
        self.alpha, self.beta = alpha, beta

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + self.alpha * self.mean(x * x)).pow(-self.beta)


class _NormalizationAcrossChannels(nn.Module):
    """x * (k + alpha * mean of x^2 over `size` channels)^-beta.

    A sum of shifted squares: torch.compile makes one kernel of it, and without it too it takes less
    time than nn.LocalResponseNorm, which pools in three dimensions.
    """

    def __init__(self, size: int, alpha: float, beta: float, k: float) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha / size, beta, k

    def forward(self, x: Tensor) -> Tensor:
        channels, before = x.shape[1], (self.size - 1) // 2
        squares = nn.functional.pad(x * x, (0, 0, 0, 0, before, self.size - 1 - before))
        total = squares[:, :channels]
        for shift in range(1, self.size):
            total = total + squares[:, shift : shift + channels]
        return x * (self.k + self.alpha * total).pow(-self.beta)


def _normalization(spec: caffe_pb2.LayerParameter, bottoms: list[Tensor]) -> nn.Module:
    param = spec.lrn_param
    if param.norm_region == caffe_pb2.LRNParameter.WITHIN_CHANNEL:
        return _NormalizationWithinChannel(param.local_size, param.alpha, param.beta)
    return _NormalizationAcrossChannels(param.local_size, param.alpha, param.beta, param.k)


def _batch_normalization(spec: caffe_pb2.LayerParameter, bottoms: list[Tensor]) -> nn.Module:
    param = spec.batch_norm_param
    fraction = param.moving_average_fraction
    return nn.BatchNorm2d(bottoms[0].shape[1], eps=param.eps, momentum=1 - fraction)


class _Sum(nn.Module):
    def __init__(self, coefficients: Sequence[float]) -> None:
        super().__init__()
        self.coefficients = list(coefficients)

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        factors = self.coefficients or [1.0] * (1 + len(others))
        total = first if factors[0] == 1 else first * factors[0]
        for other, factor in zip(others, factors[1:], strict=True):
            total = torch.add(total, other, alpha=factor)
        return total


class _Concat(nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, *bottoms: Tensor) -> Tensor:
        return torch.cat(bottoms, self.axis)


def _relu(spec: caffe_pb2.LayerParameter, bottoms: list[Tensor]) -> nn.Module:
    in_place = spec.bottom[0] == spec.top[0]
    slope = spec.relu_param.negative_slope
    return nn.LeakyReLU(slope, inplace=in_place) if slope else nn.ReLU(inplace=in_place)


_BUILDERS: dict[str, _Builder] = {
    NORMALIZATION: _batch_normalization,
    "Concat": lambda spec, bottoms: _Concat(spec.concat_param.axis),
    "Convolution": _convolution,
    # Not in place: the ReLU before it needs its own result for the gradient.
    "Dropout": lambda spec, bottoms: nn.Dropout(spec.dropout_param.dropout_ratio),
    "Eltwise": lambda spec, bottoms: _Sum(spec.eltwise_param.coeff),
    "InnerProduct": _inner_product,
    "L1Loss": lambda spec, bottoms: nn.L1Loss(),
    "LRN": _normalization,
    "PixelShuffle": lambda spec, bottoms: nn.PixelShuffle(spec.pixel_shuffle_param.upscale_factor),
    "Pooling": _pooling,
    "ReLU": _relu,
    "Softmax": lambda spec, bottoms: nn.Softmax(spec.softmax_param.axis),
    "SoftmaxWithLoss": lambda spec, bottoms: nn.CrossEntropyLoss(),
}
