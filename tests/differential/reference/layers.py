"""The reference of layers that make blobs of blobs, each from Caffe's definition (or its
fork's), in a few lines of torch; and what the layers of a run share: rounding noise and states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from osucaffe.proto import LayerParameter

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

Tensors = list[Tensor]
Masks = Callable[[str, tuple[int, ...], int], np.ndarray]
"""Which elements a Dropout keeps, by its name, their shape and the number of the forward pass."""


class _Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, generator: torch.Generator) -> Tensor:
        ctx.eps, ctx.generator = eps, generator
        return x * (1 + eps * torch.randn(x.shape, generator=generator))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        noise = torch.randn(g.shape, generator=ctx.generator)
        return g * (1 + ctx.eps * noise), None, None


class Context:
    """What the layers of one run share.

    eps: of the noise; 0: exact. state: what lives on from one forward pass to the next, by layer.
    layer: the one that is computed.
    """

    layer: LayerParameter

    def __init__(self, phase: str, masks: Masks, eps: float = 0.0, seed: int = 0) -> None:
        self.phase, self.masks, self.eps = phase, masks, eps
        self.generator = torch.Generator().manual_seed(seed)
        self.state: dict[str, Any] = {}
        self.step = 0

    def round(self, x: Tensor) -> Tensor:
        """The value as if it had been rounded, and so its gradient."""
        return _Noise.apply(x, self.eps, self.generator) if self.eps else x

    def slip(self, x: Tensor) -> Tensor:
        """0, with a gradient as wrong as rounding of a slope near 1 would make it."""
        if not self.eps:
            return torch.zeros(())
        return self.eps * torch.randn(x.shape, generator=self.generator) * (x - x.detach())

    def tanh(self, x: Tensor) -> Tensor:
        """Whose slope is computed from its value: where that is near 1 nothing is left of it."""
        return self.round(torch.tanh(x)) + self.slip(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        """As Caffe has it, by tanh."""
        return 0.5 * self.tanh(0.5 * x) + 0.5


Function = Callable[[Context, Any, Tensors, Tensors], "Tensor | Tensors"]
"""A layer's tops: of the context, the layer's settings, its bottoms and its parameters."""


def _log_of(base: float) -> float:
    return 1.0 if base == -1 else math.log(base)


LAYERS: dict[str, Function] = {
    "Input": lambda c, p, x, w: [],
    "Silence": lambda c, p, x, w: [],
    "Parameter": lambda c, p, x, w: w[0] + 0.0,
    # Element by element.
    "AbsVal": lambda c, p, x, w: x[0].abs(),
    "BNLL": lambda c, p, x, w: F.softplus(x[0], threshold=700),  # exp of more overflows
    "Sigmoid": lambda c, p, x, w: c.sigmoid(x[0]),
    "TanH": lambda c, p, x, w: c.tanh(x[0]),
    "GELU": lambda c, p, x, w: (
        0.5 * x[0] * (1 + c.round(torch.erf(x[0] * math.sqrt(0.5)))) + c.slip(x[0])
    ),
    "Swish": lambda c, p, x, w: x[0] * torch.sigmoid(p.beta * x[0]) + c.slip(x[0]),
    "Threshold": lambda c, p, x, w: (x[0] > float(np.float32(p.threshold))).double(),
    "Clip": lambda c, p, x, w: x[0].clamp(p.min, p.max),
    "ReLU": lambda c, p, x, w: torch.where(x[0] > 0, x[0], x[0] * p.negative_slope),
    "ReLU6": lambda c, p, x, w: torch.where(
        x[0] > 0, torch.minimum(x[0], torch.tensor(p.n)), x[0] * p.negative_slope
    ),
    "ELU": lambda c, p, x, w: (
        torch.where(x[0] > 0, x[0], p.alpha * torch.expm1(x[0].clamp(max=0))) + c.slip(x[0])
    ),
    "Exp": lambda c, p, x, w: torch.exp(_log_of(p.base) * (p.shift + c.round(p.scale * x[0]))),
    "Log": lambda c, p, x, w: (
        torch.log(c.round(p.shift + c.round(p.scale * x[0]))) / _log_of(p.base)
    ),
    # With numbers for each channel, or of another bottom.
    "PReLU": lambda c, p, x, w: torch.where(
        x[0] > 0, x[0], x[0] * (w[0].reshape(()) if p.channel_shared else _along(w[0], x[0], 1))
    ),
    "Bias": lambda c, p, x, w: x[0] + _along([*x[1:], *w][0], x[0], p.axis),
    "Axpy": lambda c, p, x, w: (
        c.round(x[0].reshape(*x[1].shape[:2], *[1] * (x[1].dim() - 2)) * x[1]) + x[2]
    ),
    "ChannelScale": lambda c, p, x, w: x[0] * x[1].reshape(x[0].shape[0], 1, *x[0].shape[2:]),
    "Softmax": lambda c, p, x, w: _probabilities(c, x[0], p.axis),
    "Embed": lambda c, p, x, w: (
        w[0][x[0].detach().long()] + (w[1] if p.bias_term else torch.zeros(()))
    ),
    # Shapes and arrangement.
    "Flatten": lambda c, p, x, w: x[0].flatten(p.axis, p.end_axis),
    "Permute": lambda c, p, x, w: x[0].permute(
        [*p.order, *(axis for axis in range(x[0].dim()) if axis not in p.order)]
    ),
    "Tile": lambda c, p, x, w: torch.cat([x[0]] * p.tiles, p.axis),
    "Concat": lambda c, p, x, w: torch.cat(x, p.axis),
    "Flip": lambda c, p, x, w: x[0].flip(
        [axis for axis, on in ((2, p.flip_height), (3, p.flip_width)) if on]
    ),
    "BatchReindex": lambda c, p, x, w: x[0][x[1].detach().long()],
    "Filter": lambda c, p, x, w: [each[x[-1].detach().flatten() != 0] for each in x[:-1]],
    "ShuffleChannel": lambda c, p, x, w: (
        x[0].reshape(len(x[0]), p.group, -1, math.prod(x[0].shape[2:])).transpose(1, 2)
    ).reshape(x[0].shape),
    "PixelShuffle": lambda c, p, x, w: F.pixel_shuffle(x[0], p.upscale_factor),
    "BilinearInterpolation": lambda c, p, x, w: F.interpolate(
        x[0], x[1].shape[2:], mode="bilinear", align_corners=True
    ),
}


def layer(*types: str) -> Callable[[Function], Function]:
    """Make a function the definition of these layer types: tops from bottoms and parameters."""

    def decorate(function: Function) -> Function:
        LAYERS.update(dict.fromkeys(types, function))
        return function

    return decorate


# -- layers that treat every element alike ---------------------------------------------------------


@layer("Power")
def _power(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    inner = p.shift + c.round(p.scale * x[0])
    return torch.ones_like(inner) + 0 * x[0] if p.power == 0 else inner**p.power


@layer("SeLu")
def _selu(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    alpha, scale = p.alpha, getattr(p, "lambda")
    low = x[0].clamp(max=0)
    # The slope of expm1 is value + 1 to autograd, which is 0 long before exp(low) is.
    value, slope = torch.expm1(low.detach()), torch.exp(low)
    return scale * torch.where(x[0] > 0, x[0], alpha * (value + slope - slope.detach()))


@layer("Dropout")
def _dropout(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    kept = 1 - p.dropout_ratio
    if c.phase == "TEST":
        return x[0] if p.scale_train else x[0] * kept
    mask = torch.from_numpy(c.masks(c.layer.name, tuple(x[0].shape), c.step)).double()
    return x[0] * mask / (kept if p.scale_train else 1.0)


def _along(small: Tensor, x: Tensor, axis: int) -> Tensor:
    """A tensor whose axes lie along those of x from `axis` on, for broadcasting."""
    if small.dim() == 0:
        return small
    return small.reshape(*small.shape, *[1] * (x.dim() - axis % x.dim() - small.dim()))


@layer("Scale")
def _scale(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    operands = [*x[1:], *w]
    y = x[0] * _along(operands[0], x[0], p.axis)
    return c.round(y) + _along(w[-1], x[0], p.axis) if p.bias_term else y


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
def _batch_norm(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    nvidia = p.scale_bias or p.HasField("scale_filler") or p.HasField("bias_filler")
    past = c.phase == "TEST"
    if p.HasField("use_global_stats") and not nvidia:
        past = p.use_global_stats
    eps = max(p.eps, 1e-5) if nvidia else p.eps
    shape, y = x[0].shape, _by_channel(x[0])
    if past:
        share = 1.0 if nvidia else 0.0 if w[2].item() == 0 else 1 / w[2].detach()
        mean, variance = (c.round(each.detach() * share).reshape(1, -1, 1) for each in w[:2])
        y = c.round(y - mean) * c.round((variance + eps) ** -0.5)
    else:
        count = y.shape[0] * y.shape[2]
        data = y.detach()
        unbiased = data.var((0, 2), correction=0) * (count / (count - 1) if count > 1 else 1)
        keep, share = p.moving_average_fraction, 1.0
        if nvidia:
            keep = keep if w[2].item() else 0.0
            share = 1 - keep
        with torch.no_grad():
            for blob, new in zip(w, (data.mean((0, 2)), unbiased, torch.ones(1)), strict=False):
                blob.copy_(torch.ones(1) if nvidia and blob is w[2] else blob * keep + new * share)
        y = _standardize(c, y, (0, 2), lambda v: (v + eps) ** -0.5)
    if nvidia:
        y = c.round(y * w[3].reshape(1, -1, 1)) + w[4].reshape(1, -1, 1)
    return y.reshape(shape)


@layer("BN")
def _bn(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    shape, y = x[0].shape, _by_channel(x[0])
    scale, shift = (each.reshape(1, -1, 1) for each in w[:2])
    if p.HasField("bn_mode"):  # SegNet's
        if p.bn_mode == p.LEARN:
            y = _standardize(c, y, (0, 2), lambda v: (v + 1e-9) ** -0.5)
    elif p.frozen or c.phase == "TEST":
        mean, variance = (each.detach().reshape(1, -1, 1) for each in w[2:])
        y = c.round(y - mean) * (variance + p.eps) ** -0.5
    else:
        data = y.detach()
        with torch.no_grad():
            for blob, new in ((w[2], data.mean((0, 2))), (w[3], data.var((0, 2), correction=0))):
                blob.copy_(p.momentum * blob + (1 - p.momentum) * new.reshape(blob.shape))
        y = _standardize(c, y, (0, 2), lambda v: (v + p.eps) ** -0.5)
    return (c.round(y * scale) + shift).reshape(shape)


@layer("LayerNorm")
def _layer_norm(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    axes = tuple(range(p.axis % x[0].dim(), x[0].dim()))
    y = _standardize(c, x[0], axes, lambda v: (v + p.eps) ** -0.5)
    return c.round(y * w[0]) + w[1] if w else y


@layer("MVN")
def _mvn(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    axes = tuple(range(1 if p.across_channels else 2, x[0].dim()))
    if not p.normalize_variance:
        return x[0] - c.round(x[0].mean(axes, keepdim=True)) + c.slip(x[0])
    return _standardize(c, x[0], axes, lambda v: 1 / (v.sqrt() + p.eps))


@layer("LRN")
def _lrn(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    (x0,) = x
    size, squares = p.local_size, c.round(x0 * x0)
    half = size // 2
    if p.norm_region == p.WITHIN_CHANNEL:
        total = F.avg_pool2d(F.pad(squares, [half] * 4), size, 1, divisor_override=1)
        scale = 1 + p.alpha / size**2 * total
    else:
        padded = F.pad(squares, (0, 0, 0, 0, half, half))
        total = sum(padded[:, i : i + x0.shape[1]] for i in range(size))
        scale = p.k + p.alpha / size * total
    return x0 * c.round(c.round(scale) ** -p.beta)


@layer("Normalize")
def _normalize(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    axes = (1, 2, 3) if p.across_spatial else (1,)
    norm = c.round((c.round(x[0] ** 2).sum(axes, keepdim=True) + p.eps).sqrt())
    scale = w[0].reshape(()) if p.channel_shared else _along(w[0], x[0], 1)
    return c.round(c.round(x[0]) / norm) * scale


def _probabilities(c: Context, x: Tensor, axis: int) -> Tensor:
    powers = torch.exp(c.round(x - x.detach().amax(axis, keepdim=True)))
    powers = torch.where(powers < 2.0**-126, 0, powers)  # single precision has nothing below
    return c.round(powers) / c.round(powers.sum(axis, keepdim=True))


# -- products and windows --------------------------------------------------------------------------


@layer("InnerProduct")
def _inner_product(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    flat = x[0].flatten(p.axis % x[0].dim())
    y = flat @ (w[0] if p.transpose else w[0].T)
    return c.round(y) + w[1] if p.bias_term else y


def _numbers(p: Any, name: str, axes: int, default: int) -> list[int]:
    """kernel_size, stride, pad or dilation for each axis."""
    pair = [f"{name.removesuffix('_size')}_{letter}" for letter in "hw"]
    if any(each in p.DESCRIPTOR.fields_by_name and p.HasField(each) for each in pair):
        return [getattr(p, each) for each in pair]
    value = getattr(p, name)
    values = ([value] if p.HasField(name) else []) if isinstance(value, int) else list(value)
    values = values or [default]
    return values * axes if len(values) == 1 else values


@layer("Convolution", "Deconvolution", "DepthwiseConvolution", "ConvolutionDepthwise")
def _convolution(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensors:
    tops = []
    for each in x:
        axis = p.axis % each.dim()
        folded = each.reshape(-1, *each.shape[axis:])
        axes = folded.dim() - 2
        stride, pad, dilation = (
            _numbers(p, name, axes, default)
            for name, default in (("stride", 1), ("pad", 0), ("dilation", 1))
        )
        group = folded.shape[1] if c.layer.type == "ConvolutionDepthwise" else p.group
        if c.layer.type == "Deconvolution":
            function: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
            y = function(folded, w[0], None, stride, pad, 0, group, dilation)
        else:
            function = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
            y = function(folded, w[0], None, stride, pad, dilation, group)
        y = c.round(y) + _along(w[1], y, 1) if p.bias_term else y
        tops.append(y.reshape(*each.shape[:axis], *y.shape[1:]))
    return tops


@layer("Im2col")
def _im2col(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    kernel, stride, pad, dilation = (
        _numbers(p, name, 2, default)
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
def _pooling(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensors:
    if p.global_pooling:
        kernel, stride, pad = list(x[0].shape[2:]), [1, 1], [0, 0]
    else:
        kernel, stride, pad = (
            _numbers(p, name, 2, default)
            for name, default in (("kernel_size", 0), ("stride", 1), ("pad", 0))
        )
    floor = p.round_mode == p.FLOOR or not p.ceil_mode
    best = p.pool == p.MAX
    return list(_pool(x[0], kernel, stride, pad, best=best, floor=floor))[: len(c.layer.top)]


@layer("SPP")
def _spp(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    parts = []
    for level in range(p.pyramid_height):
        kernel = [-(-extent // 2**level) for extent in x[0].shape[2:]]
        pad = [(k * 2**level - e + 1) // 2 for k, e in zip(kernel, x[0].shape[2:], strict=True)]
        best = p.pool == p.MAX
        parts.append(_pool(x[0], kernel, kernel, pad, best=best, floor=False)[0])
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], 1)


@layer("Upsample")
def _upsample(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    if len(x) == 1:
        return x[0].repeat_interleave(p.scale, 2).repeat_interleave(p.scale, 3)
    size = (p.upsample_h, p.upsample_w)
    if not p.HasField("upsample_h"):
        size = (x[0].shape[2] * p.scale, x[0].shape[3] * p.scale)
    area = math.prod(size)
    flat = torch.zeros(*x[0].shape[:2], area + 1)
    index = x[1].detach().round().long().flatten(2).clamp(max=area)
    flat = flat.scatter(2, index, x[0].flatten(2))[..., :area]
    wrong = torch.zeros_like(flat, dtype=torch.bool)  # see the primitive `unpooling`
    wrong[..., 0] = (index == area).any(2)
    return torch.where(wrong, math.nan, flat).reshape(*x[0].shape[:2], *size)


@layer("Interp")
def _interp(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    begin, end = -p.pad_beg, -p.pad_end
    height, width = x[0].shape[2:]
    part = x[0][:, :, begin : height - end, begin : width - end]
    if p.HasField("height"):
        size = [p.height, p.width]
    else:
        size = [(n - 1) // p.shrink_factor + 1 for n in part.shape[2:]]
        size = [n + (n - 1) * (p.zoom_factor - 1) for n in size]
    return F.interpolate(part, size, mode="bilinear", align_corners=True)


# -- shapes and arrangement ------------------------------------------------------------------------


@layer("Reshape")
def _reshape(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    shape = list(x[0].shape)
    start = p.axis if p.axis >= 0 else len(shape) + p.axis + 1
    stop = len(shape) if p.num_axes == -1 else start + p.num_axes
    dims = [shape[start + i] if dim == 0 else int(dim) for i, dim in enumerate(p.shape.dim)]
    return x[0].reshape([*shape[:start], *dims, *shape[stop:]])


@layer("Crop")
def _crop(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    y = x[0]
    first = p.axis % y.dim()
    for axis in range(first, y.dim()):
        offsets = list(p.offset) or [0]
        offset = offsets[0] if len(offsets) == 1 else offsets[axis - first]
        y = y.narrow(axis, offset, x[1].shape[axis])
    return y


@layer("Slice")
def _slice(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensors:
    axis, points = p.axis, list(p.slice_point)
    extent = x[0].shape[axis]
    if not points:
        return list(x[0].split(extent // len(c.layer.top), axis))
    edges = [0, *points, extent]
    return list(x[0].split([b - a for a, b in itertools.pairwise(edges)], axis))


@layer("Eltwise")
def _eltwise(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    y = x[0]
    if p.operation == p.SUM:
        factors = list(p.coeff) or [1.0] * len(x)
        y = factors[0] * x[0]
        for factor, each in zip(factors[1:], x[1:], strict=True):
            y = c.round(y) + factor * each
    for each in x[1:] if p.operation != p.SUM else ():
        y = y * each if p.operation == p.PROD else torch.where(y > each, y, each)
    return y


@layer("Reduction")
def _reduction(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    axis = p.axis % x[0].dim()
    flat = x[0].reshape(*x[0].shape[:axis], -1)
    flat = {p.ASUM: flat.abs, p.SUMSQ: lambda: flat**2}.get(p.operation, lambda: flat)()
    share = flat.shape[-1] if p.operation == p.MEAN else 1
    return p.coeff / share * c.round(flat).sum(-1)


@layer("ArgMax")
def _arg_max(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    by_axis = p.HasField("axis")
    rows = x[0].movedim(p.axis, -1) if by_axis else x[0].reshape(x[0].shape[0], -1)
    last = rows.shape[-1] - 1  # of equal ones the last comes first, as of pairs (value, index)
    order = last - rows.flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., : p.top_k]
    values, index = rows.gather(-1, order), order.double()
    if by_axis:
        return (values if p.out_max_val else index).movedim(-1, p.axis)
    y = torch.stack([index, values] if p.out_max_val else [index], 1)
    return y.reshape(*y.shape, *[1] * (x[0].dim() - 3))


@layer("CropCenter")
def _crop_center(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    cuts = zip(p.crop_size, x[0].shape, strict=True)
    return x[0][tuple(slice(cut, extent - cut) for cut, extent in cuts)]


@layer("InnerDistance")
def _inner_distance(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    gaps = x[0].flatten(p.axis).unsqueeze(-2) - w[0]
    return (gaps.abs() if p.distance_type == "L1" else gaps**2).sum(-1)


@layer("Reorg")
def _reorg(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    """darknet's reorg_cpu, element by element (reverse: from blocks to pixels)."""
    s, (n, channels, height, width) = p.stride, x[0].shape
    small = channels // (s * s)
    i, k, j, b = np.meshgrid(*map(np.arange, (width, channels, height, n)), indexing="ij")
    k2, offset = k % small, k // small
    w2, h2 = i * s + offset % s, j * s + offset // s
    there = w2 + width * s * (h2 + height * s * (k2 + small * b))
    here = i + width * (j + height * (k + channels * b))
    order = torch.from_numpy(np.empty(x[0].numel(), np.int64))
    if p.reverse:
        order[torch.from_numpy(there.ravel())] = torch.from_numpy(here.ravel())
        return x[0].flatten()[order].reshape(n, small, height * s, width * s)
    order[torch.from_numpy(here.ravel())] = torch.from_numpy(there.ravel())
    return x[0].flatten()[order].reshape(n, channels * s * s, height // s, width // s)


# -- sequences and tables --------------------------------------------------------------------------


@layer("RNN", "LSTM")
def _recurrent(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensors:
    is_rnn = c.layer.type == "RNN"
    size, states = p.num_output, 1 if is_rnn else 2
    steps, items = x[0].shape[:2]
    given = states if p.expose_hidden else 0
    has_static = len(x) == 3 + given
    state = [torch.zeros(items, size)] * states
    if given:
        state = [each[0] for each in x[-given:]]
    elif c.layer.name in c.state:
        state = c.state[c.layer.name]
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
    c.state[c.layer.name] = [each.detach() for each in state]
    return [torch.stack(tops), *(each[None] for each in state[:given])]


def _lstm_step(c: Context, gates: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    i, f, o, g = c.round(gates).chunk(4, -1)
    cell = c.round(c.sigmoid(f) * kept + c.sigmoid(i) * c.tanh(g))
    return c.round(c.sigmoid(o) * c.tanh(cell)), cell


@layer("Lstm")
def _lstm(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensor:
    items, size = p.batch_size, p.num_output
    steps = x[0].shape[0] // items
    data = x[0].reshape(steps, items, -1)
    keep = torch.ones(steps, items)
    keep[0] = 0
    if len(x) > 1:
        keep = x[1].detach().reshape(steps, items)
    h, cell = c.state.get(c.layer.name, (torch.zeros(items, size), torch.zeros(items, size)))
    tops = []
    for t in range(steps):
        each = keep[t][:, None]
        gates = c.round(data[t] @ w[0].T) + w[2] + c.round((each * h) @ w[1].T)
        h, cell = _lstm_step(c, gates, each * cell)
        tops.append(h)
    c.state[c.layer.name] = (h.detach(), cell.detach())
    return torch.cat(tops)


@layer("LSTMUnit")
def _lstm_unit(c: Context, p: Any, x: Tensors, w: Tensors) -> Tensors:
    h, cell = _lstm_step(c, x[1], x[2].detach()[..., None] * x[0])
    return [cell, h]
