"""Owns the reference of layers that make blobs of blobs, each from Caffe's definition (or its
fork's), in a few lines of torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .context import LAYERS, Context, LayerParameter, layer


def _plain(kind: str, function: Callable[[Tensor], Tensor]) -> None:
    LAYERS[kind] = lambda c, p, x, w: function(x[0])


_plain("AbsVal", torch.abs)
_plain("BNLL", lambda x: F.softplus(x, threshold=1e9))
LAYERS["GELU"] = lambda c, p, x, w: (
    0.5 * x[0] * (1 + c.round(torch.erf(x[0] * math.sqrt(0.5)))) + c.slip(x[0])
)
LAYERS["Sigmoid"] = lambda c, p, x, w: c.sigmoid(x[0])
LAYERS["TanH"] = lambda c, p, x, w: c.tanh(x[0])
LAYERS["Input"] = LAYERS["Silence"] = lambda c, p, x, w: []
LAYERS["Threshold"] = lambda c, p, x, w: (x[0] > _f32(p.threshold_param.threshold)).double()
LAYERS["ReLU"] = lambda c, p, x, w: torch.where(x[0] > 0, x[0], x[0] * p.relu_param.negative_slope)
LAYERS["Swish"] = lambda c, p, x, w: x[0] * torch.sigmoid(p.swish_param.beta * x[0]) + c.slip(x[0])
LAYERS["Clip"] = lambda c, p, x, w: x[0].clamp(p.clip_param.min, p.clip_param.max)
LAYERS["Parameter"] = lambda c, p, x, w: w[0] + 0.0
LAYERS["Axpy"] = lambda c, p, x, w: (
    c.round(x[0].reshape(*x[1].shape[:2], *[1] * (x[1].dim() - 2)) * x[1]) + x[2]
)
LAYERS["ChannelScale"] = lambda c, p, x, w: x[0] * x[1].reshape(x[0].shape[0], 1, *x[0].shape[2:])


def _f32(value: float) -> float:
    return float(np.float32(value))


@layer("ReLU6")
def _relu6(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.relu6_param
    high = torch.minimum(x[0], torch.tensor(param.n))
    return torch.where(x[0] > 0, high, x[0] * param.negative_slope)


@layer("ELU")
def _elu(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    low = p.elu_param.alpha * torch.expm1(x[0].clamp(max=0))
    return torch.where(x[0] > 0, x[0], low) + c.slip(x[0])


@layer("SeLu")
def _selu(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    alpha, scale = p.selu_param.alpha, getattr(p.selu_param, "lambda")
    low = x[0].clamp(max=0)
    # The slope of expm1 is value + 1 to autograd, which is 0 long before exp(low) is.
    value, slope = torch.expm1(low.detach()), torch.exp(low)
    return scale * torch.where(x[0] > 0, x[0], alpha * (value + slope - slope.detach()))


@layer("Power")
def _power(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.power_param
    inner = param.shift + c.round(param.scale * x[0])
    return torch.ones_like(inner) + 0 * x[0] if param.power == 0 else inner**param.power


@layer("Exp")
def _exp(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.exp_param
    log = 1.0 if param.base == -1 else math.log(param.base)
    return torch.exp(log * (param.shift + c.round(param.scale * x[0])))


@layer("Log")
def _logarithm(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.log_param
    log = 1.0 if param.base == -1 else math.log(param.base)
    return torch.log(c.round(param.shift + c.round(param.scale * x[0]))) / log


@layer("Dropout")
def _dropout(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.dropout_param
    kept = 1 - param.dropout_ratio
    if c.phase == "TEST":
        return x[0] if param.scale_train else x[0] * kept
    mask = torch.from_numpy(c.masks(p.name, tuple(x[0].shape), c.step)).double()
    return x[0] * mask / (kept if param.scale_train else 1.0)


def _along(small: Tensor, x: Tensor, axis: int) -> Tensor:
    """A tensor whose axes lie along those of x from `axis` on, for broadcasting."""
    if small.dim() == 0:
        return small
    return small.reshape(*small.shape, *[1] * (x.dim() - axis % x.dim() - small.dim()))


@layer("PReLU")
def _prelu(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    slope = w[0].reshape(()) if p.prelu_param.channel_shared else _along(w[0], x[0], 1)
    return torch.where(x[0] > 0, x[0], x[0] * slope)


@layer("Scale")
def _scale(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    operands = [*x[1:], *w]
    y = x[0] * _along(operands[0], x[0], p.scale_param.axis)
    return c.round(y) + _along(w[-1], x[0], p.scale_param.axis) if p.scale_param.bias_term else y


@layer("Bias")
def _bias(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    return x[0] + _along([*x[1:], *w][0], x[0], p.bias_param.axis)


# -- normalization ---------------------------------------------------------------------------------


def _standardize(
    c: Context, x: Tensor, axes: Sequence[int], rate: Callable[[Tensor], Tensor]
) -> Tensor:
    """(x - mean) * rate(variance)."""
    if c.eps:
        with torch.no_grad():
            mean = c.round(x.mean(axes, keepdim=True))
            spread = c.round(rate(c.round(((x - mean) ** 2).mean(axes, keepdim=True))))
        return _Standardized.apply(x, mean, spread, axes, c)
    centred = x - x.mean(axes, keepdim=True)
    return centred * rate((centred**2).mean(axes, keepdim=True))


class _Standardized(torch.autograd.Function):
    """Rounded as programs do that keep the mean and the rate, and use Caffe's formula."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, rate: Tensor, axes: Sequence[int], c: Context
    ) -> Tensor:
        ctx.y = y = c.round(x - mean) * rate
        ctx.rest = rate, axes, c
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        y, (rate, axes, c) = ctx.y, ctx.rest
        share = c.round(y * c.round((g * y).mean(axes, keepdim=True)))
        dx = c.round(c.round(g - c.round(g.mean(axes, keepdim=True))) - share) * rate
        return dx, None, None, None, None


def _by_channel(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1, math.prod(x.shape[2:])) if x.dim() > 1 else x.reshape(-1, 1, 1)


@layer("BatchNorm")
def _batch_norm(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.batch_norm_param
    past = param.use_global_stats if param.HasField("use_global_stats") else c.phase == "TEST"
    shape, y = x[0].shape, _by_channel(x[0])
    if past:
        share = 0.0 if w[2].item() == 0 else 1 / w[2].detach()
        mean, variance = (c.round(each.detach() * share).reshape(1, -1, 1) for each in w[:2])
        y = c.round(y - mean) * c.round((variance + param.eps) ** -0.5)
    else:
        count = y.shape[0] * y.shape[2]
        data = y.detach()
        unbiased = data.var((0, 2), correction=0) * (count / (count - 1) if count > 1 else 1)
        keep = param.moving_average_fraction
        with torch.no_grad():
            for blob, new in zip(w, (data.mean((0, 2)), unbiased, torch.ones(1)), strict=False):
                blob.copy_(blob * keep + new)
        y = _standardize(c, y, (0, 2), lambda v: (v + param.eps) ** -0.5)
    if param.scale_bias:
        y = c.round(y * w[3].reshape(1, -1, 1)) + w[4].reshape(1, -1, 1)
    return y.reshape(shape)


@layer("BN")
def _bn(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.bn_param
    shape, y = x[0].shape, _by_channel(x[0])
    scale, shift = (each.reshape(1, -1, 1) for each in w[:2])
    if param.HasField("bn_mode"):  # SegNet's
        if param.bn_mode == param.LEARN:
            y = _standardize(c, y, (0, 2), lambda v: (v + 1e-9) ** -0.5)
    elif param.frozen or c.phase == "TEST":
        mean, variance = (each.detach().reshape(1, -1, 1) for each in w[2:])
        y = c.round(y - mean) * (variance + param.eps) ** -0.5
    else:
        data = y.detach()
        with torch.no_grad():
            for blob, new in ((w[2], data.mean((0, 2))), (w[3], data.var((0, 2), correction=0))):
                blob.copy_(param.momentum * blob + (1 - param.momentum) * new.reshape(blob.shape))
        y = _standardize(c, y, (0, 2), lambda v: (v + param.eps) ** -0.5)
    return (c.round(y * scale) + shift).reshape(shape)


@layer("LayerNorm")
def _layer_norm(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.layer_norm_param
    axes = tuple(range(param.axis % x[0].dim(), x[0].dim()))
    y = _standardize(c, x[0], axes, lambda v: (v + param.eps) ** -0.5)
    return c.round(y * w[0]) + w[1] if w else y


@layer("MVN")
def _mvn(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.mvn_param
    axes = tuple(range(1 if param.across_channels else 2, x[0].dim()))
    if not param.normalize_variance:
        return x[0] - c.round(x[0].mean(axes, keepdim=True)) + c.slip(x[0])
    return _standardize(c, x[0], axes, lambda v: 1 / (v.sqrt() + param.eps))


@layer("LRN")
def _lrn(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param, [x0] = p.lrn_param, x
    size, squares = param.local_size, c.round(x0 * x0)
    half = size // 2
    if param.norm_region == param.WITHIN_CHANNEL:
        total = F.avg_pool2d(F.pad(squares, [half] * 4), size, 1, divisor_override=1)
        scale = 1 + param.alpha / size**2 * total
    else:
        padded = F.pad(squares, (0, 0, 0, 0, half, half))
        total = sum(padded[:, i : i + x0.shape[1]] for i in range(size))
        scale = param.k + param.alpha / size * total
    return x0 * c.round(c.round(scale) ** -param.beta)


@layer("Normalize")
def _normalize(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.norm_param
    axes = (1, 2, 3) if param.across_spatial else (1,)
    norm = c.round((c.round(x[0] ** 2).sum(axes, keepdim=True) + param.eps).sqrt())
    scale = w[0].reshape(()) if param.channel_shared else _along(w[0], x[0], 1)
    return c.round(c.round(x[0]) / norm) * scale


@layer("Softmax")
def _softmax(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    return _probabilities(c, x[0], p.softmax_param.axis)


def _probabilities(c: Context, x: Tensor, axis: int) -> Tensor:
    powers = torch.exp(c.round(x - x.detach().amax(axis, keepdim=True)))
    return c.round(powers) / c.round(powers.sum(axis, keepdim=True))


# -- products and windows --------------------------------------------------------------------------


@layer("InnerProduct")
def _inner_product(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.inner_product_param
    flat = x[0].flatten(param.axis % x[0].dim())
    y = flat @ (w[0] if param.transpose else w[0].T)
    return c.round(y) + w[1] if param.bias_term else y


def _numbers(param: Any, name: str, axes: int, default: int) -> list[int]:
    """kernel_size, stride, pad or dilation for each axis."""
    pair = [f"{name.removesuffix('_size')}_{letter}" for letter in "hw"]
    if any(each in param.DESCRIPTOR.fields_by_name and param.HasField(each) for each in pair):
        return [getattr(param, each) for each in pair]
    value = getattr(param, name)
    values = ([value] if param.HasField(name) else []) if isinstance(value, int) else list(value)
    values = values or [default]
    return values * axes if len(values) == 1 else values


@layer("Convolution", "Deconvolution", "DepthwiseConvolution", "ConvolutionDepthwise")
def _convolution(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> list[Tensor]:
    param = p.convolution_param
    tops = []
    for each in x:
        axis = param.axis % each.dim()
        folded = each.reshape(-1, *each.shape[axis:])
        axes = folded.dim() - 2
        stride, pad, dilation = (
            _numbers(param, name, axes, default)
            for name, default in (("stride", 1), ("pad", 0), ("dilation", 1))
        )
        group = folded.shape[1] if p.type == "ConvolutionDepthwise" else param.group
        if p.type == "Deconvolution":
            function: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
            y = function(folded, w[0], None, stride, pad, 0, group, dilation)
        else:
            function = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
            y = function(folded, w[0], None, stride, pad, dilation, group)
        y = c.round(y) + _along(w[1], y, 1) if param.bias_term else y
        tops.append(y.reshape(*each.shape[:axis], *y.shape[1:]))
    return tops


@layer("Im2col")
def _im2col(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.convolution_param
    kernel, stride, pad, dilation = (
        _numbers(param, name, 2, default)
        for name, default in (("kernel_size", 0), ("stride", 1), ("pad", 0), ("dilation", 1))
    )
    y = F.unfold(x[0], kernel, dilation, pad, stride)
    out = [
        (extent + 2 * pad[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i, extent in enumerate(x[0].shape[2:])
    ]
    return y.reshape(y.shape[0], y.shape[1], *out)


def _pool(
    x: Tensor, kernel: list[int], stride: list[int], pad: list[int], *, best: bool, floor: bool
) -> tuple[Tensor, Tensor]:
    """Caffe's pooling, and where the maxima stood."""
    extents, before, after, out = x.shape[2:], [], [], []
    for i, extent in enumerate(extents):
        room = extent + 2 * pad[i] - kernel[i]
        count = (room // stride[i] if floor else -(-room // stride[i])) + 1
        if any(pad) and (count - 1) * stride[i] >= extent + pad[i]:
            count -= 1
        out.append(count)
        before.append(pad[i])
        after.append(max(0, (count - 1) * stride[i] + kernel[i] - extent - pad[i]))
    margins = (before[1], after[1], before[0], after[0])
    if best:
        padded = F.pad(x, margins, value=-math.inf)
        y, index = F.max_pool2d(padded, kernel, stride, return_indices=True)
        width = padded.shape[3]
        index = (index // width - pad[0]) * extents[1] + index % width - pad[1]
    else:
        padded = F.pad(x, margins)
        y, index = F.avg_pool2d(padded, kernel, stride, divisor_override=1), torch.zeros(())
        sizes = []
        for i, extent in enumerate(extents):
            start = torch.arange(y.shape[2 + i]) * stride[i] - pad[i]
            sizes.append((start + kernel[i]).clamp(max=extent + pad[i]) - start)
    y, index = y[:, :, : out[0], : out[1]], index[..., : out[0], : out[1]] if best else index
    if not best:
        y = y / (sizes[0][: out[0], None] * sizes[1][: out[1]])
    return y, index.double()


@layer("Pooling")
def _pooling(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> list[Tensor]:
    param = p.pooling_param
    if param.global_pooling:
        kernel, stride, pad = list(x[0].shape[2:]), [1, 1], [0, 0]
    else:
        kernel, stride, pad = (
            _numbers(param, name, 2, default)
            for name, default in (("kernel_size", 0), ("stride", 1), ("pad", 0))
        )
    floor = param.round_mode == param.FLOOR or not param.ceil_mode
    best = param.pool == param.MAX
    return list(_pool(x[0], kernel, stride, pad, best=best, floor=floor))[: len(p.top)]


@layer("SPP")
def _spp(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param, parts = p.spp_param, []
    for level in range(param.pyramid_height):
        kernel = [-(-extent // 2**level) for extent in x[0].shape[2:]]
        pad = [(k * 2**level - e + 1) // 2 for k, e in zip(kernel, x[0].shape[2:], strict=True)]
        best = param.pool == param.MAX
        parts.append(_pool(x[0], kernel, kernel, pad, best=best, floor=False)[0])
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], 1)


@layer("Upsample")
def _upsample(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.upsample_param
    if len(x) == 1:
        return x[0].repeat_interleave(param.scale, 2).repeat_interleave(param.scale, 3)
    size = (param.upsample_h, param.upsample_w)
    if not param.HasField("upsample_h"):
        size = (x[0].shape[2] * param.scale, x[0].shape[3] * param.scale)
    area = math.prod(size)
    flat = torch.zeros(*x[0].shape[:2], area + 1)
    index = x[1].detach().round().long().flatten(2).clamp(max=area)
    flat = flat.scatter(2, index, x[0].flatten(2))[..., :area]
    wrong = torch.zeros_like(flat, dtype=torch.bool)  # see the primitive `unpooling`
    wrong[..., 0] = (index == area).any(2)
    return torch.where(wrong, math.nan, flat).reshape(*x[0].shape[:2], *size)


@layer("Interp")
def _interp(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.interp_param
    begin, end = -param.pad_beg, -param.pad_end
    height, width = x[0].shape[2:]
    part = x[0][:, :, begin : height - end, begin : width - end]
    if param.HasField("height"):
        size = [param.height, param.width]
    else:
        size = [(n - 1) // param.shrink_factor + 1 for n in part.shape[2:]]
        size = [n + (n - 1) * (param.zoom_factor - 1) for n in size]
    return F.interpolate(part, size, mode="bilinear", align_corners=True)


@layer("BilinearInterpolation")
def _bilinear(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    return F.interpolate(x[0], x[1].shape[2:], mode="bilinear", align_corners=True)


# -- shapes and arrangement ------------------------------------------------------------------------


@layer("Flatten")
def _flatten(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    return x[0].flatten(p.flatten_param.axis, p.flatten_param.end_axis)


@layer("Reshape")
def _reshape(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param, shape = p.reshape_param, list(x[0].shape)
    start = param.axis if param.axis >= 0 else len(shape) + param.axis + 1
    stop = len(shape) if param.num_axes == -1 else start + param.num_axes
    dims = [shape[start + i] if dim == 0 else int(dim) for i, dim in enumerate(param.shape.dim)]
    return x[0].reshape([*shape[:start], *dims, *shape[stop:]])


@layer("Permute")
def _permute(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    order = list(p.permute_param.order)
    return x[0].permute(order + [axis for axis in range(x[0].dim()) if axis not in order])


@layer("Tile")
def _tile(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    return torch.cat([x[0]] * p.tile_param.tiles, p.tile_param.axis)


@layer("Crop")
def _crop(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param, y = p.crop_param, x[0]
    first = param.axis % y.dim()
    for axis in range(first, y.dim()):
        offsets = list(param.offset) or [0]
        offset = offsets[0] if len(offsets) == 1 else offsets[axis - first]
        y = y.narrow(axis, offset, x[1].shape[axis])
    return y


@layer("Concat")
def _concat(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    return torch.cat(x, p.concat_param.axis)


@layer("Slice")
def _slice(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> list[Tensor]:
    axis, points = p.slice_param.axis, list(p.slice_param.slice_point)
    extent = x[0].shape[axis]
    if not points:
        return list(x[0].split(extent // len(p.top), axis))
    edges = [0, *points, extent]
    return list(x[0].split([b - a for a, b in itertools.pairwise(edges)], axis))


@layer("Eltwise")
def _eltwise(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.eltwise_param
    y = x[0]
    if param.operation == param.SUM:
        factors = list(param.coeff) or [1.0] * len(x)
        y = factors[0] * x[0]
        for factor, each in zip(factors[1:], x[1:], strict=True):
            y = c.round(y) + factor * each
    for each in x[1:] if param.operation != param.SUM else ():
        y = y * each if param.operation == param.PROD else torch.where(y > each, y, each)
    return y


@layer("Reduction")
def _reduction(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.reduction_param
    axis = param.axis % x[0].dim()
    flat = x[0].reshape(*x[0].shape[:axis], -1)
    flat = {param.ASUM: flat.abs, param.SUMSQ: lambda: flat**2}.get(param.operation, lambda: flat)()
    share = flat.shape[-1] if param.operation == param.MEAN else 1
    return param.coeff / share * c.round(flat).sum(-1)


@layer("ArgMax")
def _arg_max(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param, by_axis = p.argmax_param, p.argmax_param.HasField("axis")
    rows = x[0].movedim(param.axis, -1) if by_axis else x[0].reshape(x[0].shape[0], -1)
    last = rows.shape[-1] - 1  # of equal ones the last comes first, as of pairs (value, index)
    order = (
        last - rows.flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., : param.top_k]
    )
    values, index = rows.gather(-1, order), order.double()
    if by_axis:
        return (values if param.out_max_val else index).movedim(-1, param.axis)
    y = torch.stack([index, values] if param.out_max_val else [index], 1)
    return y.reshape(*y.shape, *[1] * (x[0].dim() - 3))


@layer("BatchReindex")
def _batch_reindex(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    return x[0][x[1].detach().long()]


@layer("Filter")
def _filter(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> list[Tensor]:
    chosen = x[-1].detach().flatten() != 0
    return [each[chosen] for each in x[:-1]]


@layer("CropCenter")
def _crop_center(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    cuts = zip(p.crop_center_param.crop_size, x[0].shape, strict=True)
    return x[0][tuple(slice(cut, extent - cut) for cut, extent in cuts)]


@layer("InnerDistance")
def _inner_distance(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    gaps = x[0].flatten(p.inner_distance_param.axis).unsqueeze(-2) - w[0]
    return (gaps.abs() if p.inner_distance_param.distance_type == "L1" else gaps**2).sum(-1)


@layer("ShuffleChannel")
def _shuffle(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    group = p.shuffle_channel_param.group
    n, channels = x[0].shape[:2]
    return x[0].reshape(n, group, channels // group, -1).transpose(1, 2).reshape(x[0].shape)


@layer("PixelShuffle")
def _pixel_shuffle(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    return F.pixel_shuffle(x[0], p.pixel_shuffle_param.upscale_factor)


@layer("Reorg")
def _reorg(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    """darknet's reorg_cpu, element by element (reverse: from blocks to pixels)."""
    s, (n, channels, height, width) = p.reorg_param.stride, x[0].shape
    small = channels // (s * s)
    i, k, j, b = np.meshgrid(*map(np.arange, (width, channels, height, n)), indexing="ij")
    k2, offset = k % small, k // small
    w2, h2 = i * s + offset % s, j * s + offset // s
    there = w2 + width * s * (h2 + height * s * (k2 + small * b))
    here = i + width * (j + height * (k + channels * b))
    order = torch.from_numpy(np.empty(x[0].numel(), np.int64))
    if p.reorg_param.reverse:
        order[torch.from_numpy(there.ravel())] = torch.from_numpy(here.ravel())
        return x[0].flatten()[order].reshape(n, small, height * s, width * s)
    order[torch.from_numpy(here.ravel())] = torch.from_numpy(there.ravel())
    return x[0].flatten()[order].reshape(n, channels * s * s, height // s, width // s)


@layer("Flip")
def _flip(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    param = p.flip_param
    return x[0].flip([axis for axis, on in ((2, param.flip_height), (3, param.flip_width)) if on])


# -- sequences and tables --------------------------------------------------------------------------


@layer("RNN", "LSTM")
def _recurrent(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> list[Tensor]:
    param, is_rnn = p.recurrent_param, p.type == "RNN"
    size, states = param.num_output, 1 if is_rnn else 2
    steps, items = x[0].shape[:2]
    given = states if param.expose_hidden else 0
    has_static = len(x) == 3 + given
    state = [torch.zeros(items, size)] * states
    if given:
        state = [each[0] for each in x[-given:]]
    elif p.name in c.state:
        state = c.state[p.name]
    static = x[2].flatten(1) @ w[2].T if has_static else torch.zeros(())
    within = w[3 if has_static else 2]
    tops = []
    for t in range(steps):
        keep = x[1][t].detach()[:, None]
        gates = c.round(x[0][t].flatten(1) @ w[0].T) + w[1] + c.round(static)
        gates = gates + c.round((keep * state[0]) @ within.T)
        if is_rnn:
            h = c.tanh(c.round(gates))
            state = [h]
            tops.append(c.tanh(c.round(h @ w[-2].T) + w[-1]))
        else:
            state = [*_lstm_step(c, gates, keep * state[1])]
            tops.append(state[0])
    c.state[p.name] = [each.detach() for each in state]
    return [torch.stack(tops), *(each[None] for each in state[:given])]


def _lstm_step(c: Context, gates: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    i, f, o, g = c.round(gates).chunk(4, -1)
    cell = c.round(c.sigmoid(f) * kept + c.sigmoid(i) * c.tanh(g))
    return c.round(c.sigmoid(o) * c.tanh(cell)), cell


@layer("Lstm")
def _lstm(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    items, size = p.lstm_param.batch_size, p.lstm_param.num_output
    steps = x[0].shape[0] // items
    data = x[0].reshape(steps, items, -1)
    keep = torch.ones(steps, items)
    keep[0] = 0
    if len(x) > 1:
        keep = x[1].detach().reshape(steps, items)
    h, cell = c.state.get(p.name, (torch.zeros(items, size), torch.zeros(items, size)))
    tops = []
    for t in range(steps):
        each = keep[t][:, None]
        gates = c.round(data[t] @ w[0].T) + w[2] + c.round((each * h) @ w[1].T)
        h, cell = _lstm_step(c, gates, each * cell)
        tops.append(h)
    c.state[p.name] = (h.detach(), cell.detach())
    return torch.cat(tops)


@layer("LSTMUnit")
def _lstm_unit(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> list[Tensor]:
    h, cell = _lstm_step(c, x[1], x[2].detach()[..., None] * x[0])
    return [cell, h]


@layer("Embed")
def _embed(c: Context, p: LayerParameter, x: list[Tensor], w: list[Tensor]) -> Tensor:
    y = w[0][x[0].detach().long()]
    return y + w[1] if p.embed_param.bias_term else y
