"""Owns the random nets: number N of a seed is always the same NetParameter, and so are its values.

A net grows layer by layer from Input layers; every blob may be read again by any later layer. What
an Input holds stands in its name (`values_of`): a prototxt says all there is to say about a net.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import numpy as np

from osucaffe.errors import UserError
from osucaffe.layer import layer_types
from osucaffe.proto import caffe_pb2

Shape = tuple[int, ...]
LayerParameter = caffe_pb2.LayerParameter

MOST_ELEMENTS = 4000
"""Of a blob: a net takes milliseconds."""
BATCHES = (1, 1, 2, 2, 3, 4, 5, 7)
CHANNELS = (1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 11, 12, 16, 17, 24, 32)
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16)


class Top(NamedTuple):
    """A blob that later layers may read."""

    name: str
    shape: Shape
    differentiable: bool = True
    """Whether its gradient can go back (not through labels and indices)."""
    filtered: bool = False
    """Whether only the run shows how many of its rows there are."""


Maker = Callable[["Growing", LayerParameter, Shape], "bool | None"]
"""Sets a layer's parameters for a first bottom of this shape (and adds further bottoms and tops);
False: there is no such layer for this shape."""
MAKERS: dict[str, Maker] = {}
LOSSES: dict[str, Maker] = {}


def _names(text: str) -> list[str]:
    return text.split()


IN_PLACE = frozenset(
    _names(
        "ReLU PReLU ELU Sigmoid TanH AbsVal BNLL Power Exp Dropout BatchNorm Scale Bias Softmax "
        "ReLU6 Swish BN LayerNorm SeLu GELU Clip"
    )
)
FORGETS = frozenset(
    _names(
        "Convolution Deconvolution DepthwiseConvolution ConvolutionDepthwise InnerProduct Scale "
        "Bias BatchNorm BN LayerNorm MVN PReLU Dropout Eltwise Concat Slice Pooling Embed Crop "
        "Permute Tile Interp Im2col BatchReindex ShuffleChannel AbsVal BNLL GELU Swish Power ELU "
        "Parameter"
    )
)
"""What computes its gradients without its top, which the next layer may overwrite."""
SCALAR = IN_PLACE.difference(_names("BatchNorm Scale Bias BN LayerNorm PReLU Softmax")).union(
    _names("EuclideanLoss Silence Eltwise")
)
"""What takes a single number, too."""


def maker(*types: str, table: dict[str, Maker] = MAKERS) -> Callable[[Maker], Maker]:
    """Make a function the maker of these layer types."""

    def decorate(function: Maker) -> Maker:
        table.update(dict.fromkeys(types, function))
        return function

    return decorate


class Growing:
    """A net while layers are added. tops: what can be read; unread: what nobody reads yet."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.net = caffe_pb2.NetParameter(name="random")
        self.inputs: list[LayerParameter] = []
        self.tops: list[Top] = []
        self.unread: dict[str, Top] = {}
        self.count = 0
        self.shared: list[tuple[str, str, list[Shape]]] = []

    # -- choices ---------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        """True in this share of all cases."""
        return self.random.random() < share

    def choice(self, *values: Any) -> Any:
        """One of the values."""
        return self.random.choice(values)

    def number(self, low: float, high: float) -> float:
        """A short decimal number between two."""
        return round(self.random.uniform(low, high), 2)

    def divisor(self, count: int) -> int:
        """A divisor of a count."""
        return self.random.choice([n for n in range(1, count + 1) if count % n == 0])

    def axis(self, dimensions: int, least: int = 0) -> int:
        """An axis, perhaps counted from the end."""
        axis = self.random.randrange(least, dimensions)
        return axis - dimensions if self.chance(0.2) else axis

    def name(self, kind: str) -> str:
        """A name that no layer has yet."""
        self.count += 1
        return f"{kind}_{self.count}"

    # -- blobs -----------------------------------------------------------------------------------

    def input(self, shape: Shape, kind: str = "real") -> str:
        """An Input layer with what the kind says (see `values_of`); its top's name."""
        name = self.name(kind)
        layer = LayerParameter(name=name, type="Input", top=[name])
        layer.input_param.shape.add(dim=shape)
        self.inputs.append(layer)
        if kind == "real":
            self.tops.append(Top(name, shape))
        return name

    def extra(self, shape: Shape) -> str:
        """A blob of this shape: one that there is, or a new input."""
        found = [top for top in self.tops if top.shape == shape and top.differentiable]
        top = self.random.choice(found) if found and self.chance(0.7) else None
        return top.name if top and not top.filtered else self.input(shape)

    def pick(self) -> Top:
        """What the next layer reads: most often what nobody reads yet."""
        unread = [top for top in self.unread.values() if top.differentiable]
        if unread and self.chance(0.75):
            return self.random.choice(unread[-2:])
        return self.random.choice(
            [top for top in self.tops[-6:] if top.differentiable] or self.tops
        )

    # -- layers ----------------------------------------------------------------------------------

    def add(self, kind: str, bottom: Top, make: Maker) -> list[Top]:
        """A layer of this kind on a blob, where there can be one: its tops."""
        name = self.name(kind)
        layer = LayerParameter(name=name, type=kind, bottom=[bottom.name], top=[name])
        inputs = len(self.inputs)
        fits = bool(bottom.shape) or kind in SCALAR
        shapes = None
        if fits and make(self, layer, bottom.shape) is not False:
            shapes = self.shapes(layer)
        if shapes is None:
            added = {each.name for each in self.inputs[inputs:]}
            self.tops = [top for top in self.tops if top.name not in added]
            del self.inputs[inputs:]
            return []
        return self.append(layer, shapes)

    def append(self, layer: LayerParameter, shapes: list[Shape]) -> list[Top]:
        """Add a layer whose tops have these shapes."""
        made = layer_types()[layer.type]
        self.net.layer.append(layer)
        for bottom in layer.bottom:
            self.unread.pop(bottom, None)
        tops = []
        for index, (name, shape) in enumerate(zip(layer.top, shapes, strict=True)):
            whole = 0 in made.no_gradient and layer.type not in ("Embed",)
            differentiable = not whole and index not in made.gives_none
            top = Top(name, shape, differentiable, layer.type == "Filter")
            if name in layer.bottom:
                self.tops = [each for each in self.tops if each.name != name]
            tops.append(top)
            self.tops.append(top)
            self.unread[name] = top
        return tops

    def shapes(self, layer: LayerParameter) -> list[Shape] | None:
        """The shapes of the tops, if there can be such a layer and they are small enough."""
        known = {top.name: top.shape for top in self.tops}
        known |= {each.name: tuple(each.input_param.shape[0].dim) for each in self.inputs}
        kind = layer_types()[layer.type]
        copy = LayerParameter()
        copy.CopyFrom(layer)
        try:
            instance = kind.form(copy)(copy, "TRAIN")
            instance.check_counts()
            found = instance.setup([known[name] for name in layer.bottom])[: len(layer.top)]
        except UserError:
            return None
        shapes = [tuple(map(int, shape)) for shape in found]
        sizes = [math.prod(shape) for shape in shapes]
        sizes += [blob.data.count for blob in instance.parameters]
        if max(sizes, default=0) > MOST_ELEMENTS:
            return None
        self.share_parameters(layer, [blob.shape for blob in instance.parameters])
        return shapes

    def share_parameters(self, layer: LayerParameter, shapes: list[Shape]) -> None:
        """Now and then let a layer's parameters be those of an earlier layer, or not learn."""
        if not shapes or layer.type in ("BatchNorm", "BN", "CenterLoss"):
            return
        found = [each for each in self.shared if each[2] == shapes]
        if found and self.chance(0.5):
            owner = self.random.choice(found)[1]
        elif self.chance(0.3):
            owner = layer.name
            self.shared.append((layer.type, owner, shapes))
        else:
            if self.chance(0.1):
                for _ in shapes:
                    layer.param.add(lr_mult=self.random.choice((0.0, 1.0)))
            return
        for index in range(len(shapes)):
            layer.param.add(name=f"{owner}.w{index}")


# -- layers that treat every element alike ---------------------------------------------------------


@maker("Sigmoid", "TanH", "AbsVal", "BNLL", "GELU", "SeLu")
def _plain(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    pass


@maker("ReLU")
def _relu(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    if g.chance(0.3):
        layer.relu_param.negative_slope = g.choice(0.1, 0.5, -0.3)


@maker("ReLU6")
def _relu6(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.relu6_param.n = g.choice(6.0, 1.0)
    if g.chance(0.3):
        layer.relu6_param.negative_slope = 0.1


@maker("ELU")
def _elu(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.elu_param.alpha = g.choice(1.0, 0.5, 0.0)


@maker("Swish")
def _swish(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.swish_param.beta = g.choice(1.0, 1.7)


@maker("Clip")
def _clip(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.clip_param.min, layer.clip_param.max = -0.7, g.choice(0.4, 1.0)


@maker("Power")
def _power(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.power_param
    param.power = g.choice(1.0, 2.0, 3.0, 0.0)
    param.scale, param.shift = g.choice(1.0, 0.5, -0.7, 0.0), g.choice(0.0, 0.3, -1.0)


@maker("Exp")
def _exp(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.exp_param
    param.base, param.scale, param.shift = (
        g.choice(-1.0, 2.0),
        g.choice(0.3, -0.2),
        g.choice(0, 0.5),
    )


@maker("Log")
def _log(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    _positive(g, layer, shape)
    param = layer.log_param
    param.base, param.scale, param.shift = g.choice(-1.0, 2.0, 10.0), g.choice(1.0, 0.5), 0.5


@maker("Threshold")
def _threshold(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.threshold_param.threshold = g.choice(0.0, 0.31)


@maker("Dropout")
def _dropout(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.dropout_param.dropout_ratio = g.choice(0.5, 0.2, 0.7)
    if g.chance(0.2):
        layer.dropout_param.scale_train = False


def _positive(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    """Put a Sigmoid between a layer and its first bottom."""
    name = g.name("Sigmoid")
    between = LayerParameter(name=name, type="Sigmoid", bottom=[layer.bottom[0]], top=[name])
    g.append(between, [shape])
    layer.bottom[0] = name


# -- layers with a number for each channel ---------------------------------------------------------


@maker("PReLU")
def _prelu(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.prelu_param.channel_shared = g.chance(0.3)


@maker("Scale", "Bias")
def _scale(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param: Any = layer.scale_param if layer.type == "Scale" else layer.bias_param
    if len(shape) < 2 or g.chance(0.3):
        param.axis = g.axis(len(shape))
        axis = param.axis % len(shape)
        if g.chance(0.5):
            stop = g.random.randrange(axis, len(shape)) + 1
            layer.bottom.append(g.extra(shape[axis:stop]))
        else:
            param.num_axes = g.choice(-1, 1, 0)
    if layer.type == "Scale":
        param.bias_term = g.chance(0.5)


@maker("Axpy")
def _axpy(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) != 4:
        return False
    scale = g.extra((*shape[:2], 1, 1))
    layer.bottom[:] = [scale, *g.random.sample([layer.bottom[0], g.extra(shape)], 2)]
    return None


@maker("ChannelScale")
def _channel_scale(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) != 4:
        return False
    layer.bottom.append(g.extra((shape[0], 1, *shape[2:])))
    return None


# -- layers that normalize -------------------------------------------------------------------------


@maker("BatchNorm")
def _batch_norm(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if _of_channel(shape) < 4 and g.chance(0.97):
        return False
    param = layer.batch_norm_param
    param.eps = g.choice(1e-5, 1e-3)
    if g.chance(0.3):
        param.use_global_stats = g.chance(0.7)
    param.moving_average_fraction = g.choice(0.999, 0.9, 0.5)
    param.scale_bias = g.chance(0.2)
    return None


def _of_channel(shape: Shape) -> int:
    """How many elements of a batch belong to one channel."""
    return math.prod(shape) // (shape[1] if len(shape) > 1 else 1)


@maker("BN")
def _bn(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) < 2 or _of_channel(shape) < 3:
        return False
    if g.chance(0.5):
        modes = layer.bn_param.LEARN, layer.bn_param.INFERENCE
        layer.bn_param.bn_mode = g.random.choice(modes)
    else:
        layer.bn_param.momentum = 0.8
        layer.bn_param.frozen = g.chance(0.2)
    return None


@maker("LayerNorm")
def _layer_norm(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    axis = g.axis(len(shape))
    if math.prod(shape[axis % len(shape) :]) < 3:
        return False
    layer.layer_norm_param.axis = axis
    return None


@maker("MVN")
def _mvn(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    param = layer.mvn_param
    param.across_channels, param.normalize_variance = g.chance(0.4), g.chance(0.7)
    return math.prod(shape[1 if param.across_channels else 2 :]) >= 4


@maker("LRN")
def _lrn(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.lrn_param
    param.local_size = g.choice(1, 3, 3, 5, 7)
    param.alpha, param.beta, param.k = g.choice(1.0, 0.1, 1e-4), g.choice(0.75, 0.5, 1.0), 1.0
    if g.chance(0.4):
        param.norm_region = param.WITHIN_CHANNEL
    elif g.chance(0.3):
        param.k = 2.0


@maker("Normalize")
def _normalize(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) != 4 or shape[1] < 2:
        return False
    param = layer.norm_param
    param.across_spatial, param.channel_shared = g.chance(0.5), g.chance(0.5)
    return None


@maker("Softmax")
def _softmax(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.softmax_param.axis = g.axis(len(shape))


# -- products and windows --------------------------------------------------------------------------


@maker("InnerProduct")
def _inner_product(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.inner_product_param
    param.num_output = g.choice(1, 2, 3, 5, 8, 10, 16, 17)
    param.bias_term, param.transpose = g.chance(0.7), g.chance(0.2)
    if len(shape) > 1 and g.chance(0.3):
        param.axis = g.axis(len(shape))


def _window(g: Growing, param: Any, extents: Shape, *, dilated: bool, largest: int = 5) -> None:
    """Kernel, stride, pad and perhaps dilation for these extents."""
    plane = len(extents) == 2
    kernel = [g.random.randint(1, min(largest, extent + 2)) for extent in extents]
    stride = [g.choice(1, 1, 1, 2, 2, 3) for _ in extents]
    pad = [g.random.randint(0, min(2, max(0, size - (not dilated)))) for size in kernel]
    for name, values in (("kernel_size", kernel), ("stride", stride), ("pad", pad)):
        if plane and g.chance(0.4):
            for letter, value in zip("hw", values, strict=True):
                setattr(param, f"{name.removesuffix('_size')}_{letter}", value)
        elif isinstance(getattr(param, name), int):
            setattr(param, name, values[0])
        else:
            getattr(param, name).extend(values[:1] if g.chance(0.6) else values)
    if dilated and g.chance(0.2):
        param.dilation.append(g.choice(2, 3))


@maker("Convolution", "Deconvolution", "DepthwiseConvolution", "ConvolutionDepthwise")
def _convolution(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    param = layer.convolution_param
    axis = 1
    if len(shape) > 3 and g.chance(0.1):
        axis = param.axis = 2
    if not 1 <= len(shape) - axis - 1 <= 3:  # PyTorch knows no more
        return False
    channels = shape[axis]
    _window(g, param, shape[axis + 1 :], dilated=True)
    param.bias_term = g.chance(0.6)
    if layer.type == "ConvolutionDepthwise":
        param.num_output = channels
        return None
    param.num_output = g.choice(1, 2, 3, 4, 5, 6, 8, 8, 16, 17, 32)
    if layer.type == "DepthwiseConvolution" or g.chance(0.3):
        param.group = g.divisor(channels)
        if g.chance(0.3):
            param.group = channels
        param.num_output = param.group * g.choice(1, 1, 2, 3)
    if len(layer.top) == 1 and g.chance(0.05):
        layer.bottom.append(g.extra(shape))
        layer.top.append(f"{layer.name}_b")
    return None


@maker("Im2col")
def _im2col(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) != 4:
        return False
    _window(g, layer.convolution_param, shape[2:], dilated=True, largest=3)
    return None


@maker("Pooling")
def _pooling(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) != 4:
        return False
    param = layer.pooling_param
    param.pool = g.choice(param.MAX, param.AVE)
    if g.chance(0.15):
        param.global_pooling = True
    else:
        _window(g, param, shape[2:], dilated=False)
        if g.chance(0.15):
            param.round_mode = param.FLOOR
    if param.pool == param.MAX and g.chance(0.1):
        layer.top.append(f"{layer.name}_mask")
    return None


@maker("SPP")
def _spp(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.spp_param.pyramid_height = g.choice(1, 2, 2, 3)
    layer.spp_param.pool = g.choice(layer.spp_param.MAX, layer.spp_param.AVE)


@maker("Upsample")
def _upsample(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    """On top of a pooling that tells where its maxima stood."""
    if len(shape) != 4 or min(shape[2:]) < 2:
        return False
    name = g.name("Pooling")
    pool = LayerParameter(
        name=name, type="Pooling", bottom=layer.bottom, top=[name, f"{name}_mask"]
    )
    pool.pooling_param.kernel_size = pool.pooling_param.stride = 2
    shapes = g.shapes(pool)
    if shapes is None:
        return False
    g.append(pool, shapes)
    layer.bottom[:] = [g.extra(shapes[0]) if g.chance(0.2) else name, pool.top[1]]
    layer.upsample_param.upsample_h, layer.upsample_param.upsample_w = shape[2:]
    return None


@maker("Interp")
def _interp(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.interp_param
    way = g.choice("size", "zoom", "shrink")
    if way == "size":
        param.height, param.width = g.choice(1, 2, 5, 7, 9), g.choice(1, 3, 4, 8)
    elif way == "zoom":
        param.zoom_factor = g.choice(2, 3)
    else:
        param.shrink_factor = g.choice(2, 3)
    if g.chance(0.2):
        param.pad_beg, param.pad_end = g.choice(0, -1), g.choice(0, -1)


@maker("BilinearInterpolation")
def _bilinear(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) != 4:
        return False
    layer.bottom.append(g.input((1, 1, g.choice(2, 3, 5), g.choice(1, 4)), "shape"))
    return None


# -- shapes ----------------------------------------------------------------------------------------


@maker("Flatten")
def _flatten(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    if g.chance(0.4):
        layer.flatten_param.axis = g.axis(len(shape))
        layer.flatten_param.end_axis = g.axis(len(shape))


@maker("Reshape")
def _reshape(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    dims = layer.reshape_param.shape.dim
    way = g.choice("matrix", "swap", "group", "four")
    if way == "matrix":
        dims.extend((0, -1))
    elif way == "four":
        rest = math.prod(shape[1:])
        first = g.divisor(rest)
        dims.extend((0, first, g.divisor(rest // first), -1))
    elif way == "group" and len(shape) > 1:
        layer.reshape_param.axis = 1
        layer.reshape_param.num_axes = 1
        part = g.divisor(shape[1])
        dims.extend((part, shape[1] // part))
    else:
        dims.extend((-1, g.divisor(math.prod(shape))))


@maker("Permute")
def _permute(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.permute_param.order.extend(g.random.sample(range(len(shape)), len(shape)))


@maker("Tile")
def _tile(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.tile_param.tiles, layer.tile_param.axis = g.choice(1, 2, 3), g.axis(len(shape))


@maker("Crop")
def _crop(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.crop_param
    param.axis = g.axis(len(shape))
    axis = param.axis % len(shape)
    small = [g.random.randint(1, extent) for extent in shape[axis:]]
    layer.bottom.append(g.input((*shape[:axis], *small), "shape"))
    rooms = [extent - less for extent, less in zip(shape[axis:], small, strict=True)]
    if g.chance(0.3):
        param.offset.append(min(rooms))
    elif g.chance(0.8):
        param.offset.extend(g.random.randint(0, room) for room in rooms)


@maker("Concat")
def _concat(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    axis = layer.concat_param.axis = g.axis(len(shape), min(1, len(shape) - 1))
    axis %= len(shape)
    others = [
        top.name
        for top in g.tops
        if top.differentiable and len(top.shape) == len(shape)
        and (*top.shape[:axis], *top.shape[axis + 1 :]) == (*shape[:axis], *shape[axis + 1 :])
    ]  # fmt: skip
    for _ in range(g.choice(0, 1, 1, 2)):
        layer.bottom.append(g.random.choice(others) if g.chance(0.8) else g.input(shape))
    if g.chance(0.3):
        g.random.shuffle(layer.bottom)


@maker("Slice")
def _slice(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    axis = layer.slice_param.axis = g.axis(len(shape))
    extent = shape[axis % len(shape)]
    if extent < 2:
        return False
    parts = g.random.randint(2, min(3, extent))
    if extent % parts or g.chance(0.6):
        points = sorted(g.random.sample(range(1, extent), parts - 1))
        layer.slice_param.slice_point.extend(points)
    layer.top[:] = [f"{layer.name}_{i}" for i in range(parts)]
    return None


@maker("Eltwise")
def _eltwise(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.eltwise_param
    param.operation = g.choice(param.SUM, param.SUM, param.SUM, param.PROD, param.MAX)
    layer.bottom.extend(g.extra(shape) for _ in range(g.choice(1, 1, 1, 2)))
    if param.operation == param.SUM and g.chance(0.4):
        param.coeff.extend(g.choice(1.0, -1.0, 0.5, 2.0) for _ in layer.bottom)
    if param.operation == param.MAX:  # no ties: each blob once
        layer.bottom[:] = dict.fromkeys(layer.bottom)
        if len(layer.bottom) == 1:
            layer.bottom.append(g.input(shape))
    if g.chance(0.5):
        g.random.shuffle(layer.bottom)


@maker("Reduction")
def _reduction(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.reduction_param
    param.operation = g.choice(param.SUM, param.ASUM, param.SUMSQ, param.MEAN)
    param.axis, param.coeff = g.axis(len(shape)), g.choice(1.0, 0.5, -2.0)


@maker("ArgMax")
def _arg_max(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.argmax_param
    param.out_max_val = g.chance(0.4)
    extent = math.prod(shape[1:])
    if g.chance(0.5):
        param.axis = g.axis(len(shape))
        extent = shape[param.axis]
    param.top_k = g.random.randint(1, min(extent, 4))


@maker("BatchReindex")
def _batch_reindex(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.bottom.append(g.input((g.choice(1, 2, 3, 5),), f"label{shape[0]}"))


@maker("ShuffleChannel")
def _shuffle(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) < 2:
        return False
    layer.shuffle_channel_param.group = g.divisor(shape[1])
    return None


@maker("PixelShuffle")
def _pixel_shuffle(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.pixel_shuffle_param.upscale_factor = 2


@maker("Reorg")
def _reorg(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.reorg_param.stride, layer.reorg_param.reverse = 2, g.chance(0.4)


@maker("Flip")
def _flip(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.flip_param.flip_width, layer.flip_param.flip_height = g.chance(0.6), g.chance(0.5)


# -- sequences and tables --------------------------------------------------------------------------


@maker("RNN", "LSTM")
def _recurrent(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) < 3:
        return False
    param = layer.recurrent_param
    size = param.num_output = g.choice(1, 2, 3, 5, 8)
    layer.bottom.append(g.input(shape[:2], "keep"))
    if g.chance(0.3):
        layer.bottom.append(g.extra((shape[1], g.choice(1, 3))))
    if g.chance(0.3):
        param.expose_hidden = True
        for index in range(1 if layer.type == "RNN" else 2):
            layer.bottom.append(g.extra((1, shape[1], size)))
            layer.top.append(f"{layer.name}_{index}")
    return None


@maker("Lstm")
def _lstm(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.lstm_param.num_output = g.choice(1, 3, 4)
    layer.lstm_param.batch_size = g.divisor(shape[0])
    if g.chance(0.5):
        layer.bottom.append(g.input(shape[:1], "keep"))


@maker("LSTMUnit")
def _lstm_unit(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    if len(shape) != 3 or shape[0] != 1:
        return False
    gates = g.extra((*shape[:2], 4 * shape[2]))
    layer.bottom.extend((gates, g.input(shape[:2], "keep")))
    layer.top.append(f"{layer.name}_h")
    return None


@maker("Embed")
def _embed(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.embed_param
    param.input_dim, param.num_output = g.choice(1, 3, 7), g.choice(1, 2, 5, 8)
    param.bias_term = g.chance(0.5)
    layer.bottom[0] = g.input(g.choice((3,), (2, 3), (1,)), f"label{param.input_dim}")


@maker("Parameter")
def _parameter(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    del layer.bottom[:]
    layer.parameter_param.shape.dim.extend(shape)


# -- losses ----------------------------------------------------------------------------------------


def _normalization(g: Growing, layer: LayerParameter) -> None:
    param = layer.loss_param
    if g.chance(0.5):
        param.normalization = g.choice(param.FULL, param.VALID, param.BATCH_SIZE, param.NONE)
    elif g.chance(0.3):
        param.normalize = g.chance(0.5)


def _labels(g: Growing, layer: LayerParameter, shape: Shape, axis: int, *, ignores: bool) -> None:
    """A bottom with a label for each position outside the axis."""
    kind = f"label{shape[axis]}"
    if ignores and g.chance(0.4):
        ignored = g.choice(255, -1, 0)
        kind = f"label{shape[axis]}x{ignored}".replace("-", "m")
        for field in ("loss_param", "accuracy_param"):
            if (field == "accuracy_param") == (layer.type == "Accuracy"):
                getattr(layer, field).ignore_label = ignored
    places = (*shape[:axis], *shape[axis + 1 :])
    if g.chance(0.2):
        places = (*shape[:axis], 1, *shape[axis + 1 :])
    layer.bottom.append(g.input(places or (1,), kind))


def _class_axis(g: Growing, shape: Shape) -> int:
    return g.axis(len(shape)) if len(shape) == 1 or g.chance(0.3) else 1


@maker("SoftmaxWithLoss", "FocalLoss", table=LOSSES)
def _softmax_loss(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    axis = layer.softmax_param.axis = _class_axis(g, shape)
    _normalization(g, layer)
    _labels(g, layer, shape, axis % len(shape), ignores=True)
    if g.chance(0.15):
        layer.top.append(f"{layer.name}_p")


@maker("InfogainLoss", table=LOSSES)
def _infogain(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    axis = layer.infogain_loss_param.axis = _class_axis(g, shape)
    _normalization(g, layer)
    _labels(g, layer, shape, axis % len(shape), ignores=True)
    layer.bottom.append(g.input((1, 1, shape[axis], shape[axis]), "unit"))


@maker("Accuracy", table=LOSSES)
def _accuracy(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    axis = layer.accuracy_param.axis = _class_axis(g, shape)
    layer.accuracy_param.top_k = g.random.randint(1, min(3, shape[axis]))
    _labels(g, layer, shape, axis % len(shape), ignores=True)
    if layer.accuracy_param.top_k == 1 and g.chance(0.3):
        layer.top.append(f"{layer.name}_each")


@maker("HingeLoss", "MultinomialLogisticLoss", table=LOSSES)
def _classification(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    classes = math.prod(shape[1:])
    if layer.type == "HingeLoss":
        norms = layer.hinge_loss_param.L1, layer.hinge_loss_param.L2
        layer.hinge_loss_param.norm = g.random.choice(norms)
    else:
        _positive(g, layer, shape)
    layer.bottom.append(g.input((shape[0],), f"label{classes}"))
    return None


@maker("SigmoidCrossEntropyLoss", table=LOSSES)
def _sigmoid_loss(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    _normalization(g, layer)
    kind = "unit"
    if g.chance(0.3):
        kind, layer.loss_param.ignore_label = "label2x255", 255
    layer.bottom.append(g.input(shape, kind))


@maker("EuclideanLoss", "L1Loss", "DiceCoefLoss", table=LOSSES)
def _differences(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.bottom.append(g.extra(shape))
    if layer.bottom[1] == layer.bottom[0]:
        layer.bottom[1] = g.input(shape)
    if layer.type == "L1Loss":
        _normalization(g, layer)


@maker("SmoothL1Loss", table=LOSSES)
def _smooth(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.smooth_l1_loss_param.sigma = g.choice(1.0, 2.0, 0.5)
    layer.bottom.extend(g.input(shape) for _ in range(g.choice(1, 1, 2, 3)))


@maker("ContrastiveLoss", table=LOSSES)
def _contrastive(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.contrastive_loss_param.margin = g.choice(1.0, 3.0)
    layer.contrastive_loss_param.legacy_version = g.chance(0.3)
    layer.bottom.extend((g.input(shape), g.input((shape[0],), "label2")))


@maker("CenterLoss", table=LOSSES)
def _center(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.center_loss_param.num_output = classes = g.choice(1, 2, 5)
    layer.bottom.append(g.input((shape[0],), f"label{classes}"))


@maker("Reduction", table=LOSSES)
def _reduced(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    _reduction(g, layer, shape)
    layer.loss_weight.append(g.choice(1.0, 0.3))


@maker("Power", table=LOSSES)
def _summed(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    """A loss weight on a blob of any shape weighs the sum of its elements."""
    layer.power_param.scale = 0.5
    layer.loss_weight.append(g.choice(1.0, 0.1))


@maker("Filter", table=LOSSES)
def _filter(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.bottom.extend((g.input((shape[0], 3)), g.input((shape[0],), "some")))
    layer.top.append(f"{layer.name}_b")
    layer.loss_weight.extend((0.5, 0.0))


@maker("Silence", table=LOSSES)
def _silence(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    del layer.top[:]


# -- the whole -------------------------------------------------------------------------------------

COMMON = _names(
    "Convolution Convolution Convolution Convolution InnerProduct InnerProduct Pooling "
    "Pooling ReLU ReLU BatchNorm BatchNorm Scale Scale Eltwise Eltwise Eltwise Concat Concat "
    "Slice LRN Dropout"
)
FINAL = _names(
    "SoftmaxWithLoss SoftmaxWithLoss SoftmaxWithLoss EuclideanLoss EuclideanLoss "
    "EuclideanLoss Accuracy SigmoidCrossEntropyLoss"
)


def _first_shape(g: Growing) -> Shape:
    way = g.random.random()
    batch = g.random.choice(BATCHES)
    if way < 0.75:
        shape = (batch, g.random.choice(CHANNELS), g.choice(*EXTENTS), g.choice(*EXTENTS))
    elif way < 0.83:
        shape = (batch, g.choice(*CHANNELS))
    elif way < 0.91:
        shape = (g.choice(1, 2, 3, 4), batch, g.choice(1, 2, 3, 5))
    elif way < 0.96:
        shape = (batch, g.choice(1, 2, 3, 4), *(g.choice(1, 2, 3, 4) for _ in range(3)))
    else:
        shape = (g.choice(1, 5, 12),)
    return shape if math.prod(shape) <= MOST_ELEMENTS else _first_shape(g)


def generate(seed: int, number: int) -> caffe_pb2.NetParameter:
    """Net `number` of a seed."""
    g = Growing(Random(f"{seed}/{number}"))
    kinds = sorted(MAKERS)
    shape = _first_shape(g)
    for _ in range(g.choice(1, 1, 1, 2)):
        g.input(shape)
    length = g.choice(1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
    for _ in range(6 * length):
        made = sum(layer.type != "Input" for layer in g.net.layer)
        if made >= length:
            break
        kind = g.random.choice(COMMON if g.chance(0.55) else kinds)
        bottom = g.pick()
        before = len(g.tops)
        tops = g.add(kind, bottom, MAKERS[kind])
        _in_place(g, bottom, tops, len(g.tops) - before)
    for top in list(g.unread.values()):
        if (not top.differentiable and g.chance(0.7)) or g.chance(0.25):
            continue  # an output of the net
        _end(g, top)
    if not any(_is_loss(layer) for layer in g.net.layer):
        for top in [each for each in g.tops[::-1] if each.differentiable]:
            if _end(g, top, "Reduction"):
                break
    net = g.net
    layers = list(net.layer)
    del net.layer[:]
    net.layer.extend([*g.inputs, *layers])
    net.force_backward = g.chance(0.6)
    return net


def _in_place(g: Growing, bottom: Top, tops: list[Top], added: int) -> None:
    """Now and then let the layer just added work in place, where that overwrites nothing that
    anybody reads, or that gradients need."""
    if len(tops) != 1 or added != 1 or not g.chance(0.6):
        return
    layer = g.net.layer[-1]
    if layer.type not in IN_PLACE:
        return
    first = layer.bottom[0]
    if layer.relu_param.negative_slope < 0:  # the sign of what it makes is not that of its input
        return
    if first in layer.bottom[1:] or not _may_overwrite(g, first):
        return
    layer.top[0] = first
    g.unread.pop(tops[0].name)
    gone = {first, tops[0].name, *_memory(g, first)}
    g.tops = [each for each in g.tops if each.name not in gone]
    top = Top(first, tops[0].shape, tops[0].differentiable)
    g.tops.append(top)
    g.unread[first] = top


def _may_overwrite(g: Growing, name: str) -> bool:
    """Whether the last layer, which reads this blob, may overwrite it."""
    *earlier, last = g.net.layer
    writers = [index for index, each in enumerate(earlier) if name in each.top]
    if not writers or len(_readers(g, name)) > 1:  # each reader gets a blob of its own by a Split
        return False
    readers = [each for each in earlier[writers[-1] + 1 :] if name in each.bottom]
    maker = earlier[writers[-1]]
    if [each for each in readers if each.type not in ("Reshape", "Flatten")]:
        return False
    if maker.type in ("Reshape", "Flatten"):  # which shares the memory of its bottom
        return _may_overwrite(g, maker.bottom[0])
    makers = [earlier[index] for index in writers]
    while (
        len(makers) > 1 and makers[-1].type == "Dropout"
    ):  # in place: what made it needs the signs
        makers.pop()
    kept = last.type == "Dropout" and makers[-1].type == "ReLU"
    return kept or makers[-1].type in FORGETS


def _memory(g: Growing, name: str) -> list[str]:
    """The blobs whose memory a blob shares."""
    for layer in g.net.layer:
        if layer.type in ("Reshape", "Flatten") and name in layer.top and name not in layer.bottom:
            return [layer.bottom[0], *_memory(g, layer.bottom[0])]
    return []


def _readers(g: Growing, name: str) -> list[LayerParameter]:
    return [each for each in g.net.layer if name in each.bottom and name not in each.top]


def _end(g: Growing, top: Top, kind: str = "") -> bool:
    """End a branch with a loss or the like."""
    kind = kind or g.random.choice(FINAL if g.chance(0.6) else sorted(LOSSES))
    if not top.differentiable:
        kind = "Silence"
    tops = g.add(kind, top, LOSSES[kind])
    layer = g.net.layer[-1]
    if tops and _is_loss(layer) and not layer.loss_weight and g.chance(0.4):
        weights = [0.0] * len(layer.top)
        weights[0] = g.choice(0.5, 2.0, 0.1)
        layer.loss_weight.extend(weights)
    if kind == "Accuracy" and tops and g.chance(0.5):
        layer.include.add(phase=caffe_pb2.TEST)
        return False
    return bool(tops) and kind not in ("Accuracy",)


def _is_loss(layer: LayerParameter) -> bool:
    return layer_types()[layer.type].loss or bool(layer.loss_weight)


# -- values ----------------------------------------------------------------------------------------


def values_of(name: str, shape: Shape, draw: int) -> np.ndarray:
    """float32 values of an input, which depend on these alone.

    The name's beginning says which: label5 (0 .. 4), label5x255 (255, too), unit (0 to 1), keep
    (0 or 1), some (0 or 1, not all 0), anything else: normally distributed.
    """
    random = np.random.default_rng([zlib.crc32(name.encode()), draw])
    kind = name.partition("_")[0]
    if kind.startswith("label"):
        classes, _, ignored = kind.removeprefix("label").replace("m", "-").partition("x")
        labels = random.integers(0, int(classes), shape)
        if ignored:
            labels = np.where(random.random(shape) < 0.3, int(ignored), labels)
        return labels.astype(np.float32)
    if kind == "unit":
        return random.random(shape).astype(np.float32)
    if kind in ("keep", "some"):
        flags = (random.random(shape) < 0.7).astype(np.float32)
        if kind == "some":
            flags.flat[0] = 1
        return flags
    return random.standard_normal(shape).astype(np.float32)


def weights_of(kind: str, name: str, index: int, shape: Shape, draw: int) -> np.ndarray:
    """float32 values of a parameter, of a size that keeps a net's blobs near 1."""
    random = np.random.default_rng([zlib.crc32(f"{name}.{index}".encode()), 1 << 20, draw])
    values = random.standard_normal(shape)
    if kind in ("BatchNorm", "BN") and index in (0, 1, 2, 3):
        positive = {"BatchNorm": (1, 2), "BN": (3,)}[kind]
        if index in positive:
            values = 0.5 + random.random(shape)
    elif len(shape) > 1:
        inputs = math.prod(shape[1:])
        if kind == "InnerProduct":
            inputs = max(4, math.prod(shape) // 8)
        values = values / math.sqrt(max(1, inputs))
    return values.astype(np.float32)
