"""The random layers, those that make blobs of blobs and those that end a branch: their
settings, bottoms and tops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from osucaffe.proto import caffe_pb2

from .growing import FITS, LOSSES, Growing, LayerParameter, Shape, _names, images, maker

# -- layers that are a choice of settings ----------------------------------------------------------


def _axis(g: Growing, shape: Shape) -> int:
    return g.axis(len(shape))


def _in(share: float) -> Callable[[Growing, Shape], bool]:
    """True in this share of all cases."""
    return lambda g, shape: g.chance(share)


class Maybe(NamedTuple):
    """A setting that a layer has in this share of all cases."""

    share: float
    value: Any


SETTINGS: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in _names("Sigmoid TanH AbsVal BNLL GELU SeLu")},
    "ReLU": {"relu_param.negative_slope": Maybe(0.3, (0.1, 0.5, -0.3))},
    "ReLU6": {"relu6_param.n": (6.0, 1.0), "relu6_param.negative_slope": Maybe(0.3, 0.1)},
    "Dropout": {
        "dropout_param.dropout_ratio": (0.5, 0.2, 0.7),
        "dropout_param.scale_train": Maybe(0.2, False),
    },
    "Normalize": {"norm_param.across_spatial": _in(0.5), "norm_param.channel_shared": _in(0.5)},
    "ShuffleChannel": {"shuffle_channel_param.group": lambda g, shape: g.divisor(shape[1])},
    "ELU": {"elu_param.alpha": (1.0, 0.5, 0.0)},
    "Swish": {"swish_param.beta": (1.0, 1.7)},
    "Clip": {"clip_param.min": -0.7, "clip_param.max": (0.4, 1.0)},
    "Power": {
        "power_param.power": (1.0, 2.0, 3.0, 0.0),
        "power_param.scale": (1.0, 0.5, -0.7, 0.0),
        "power_param.shift": (0.0, 0.3, -1.0),
    },
    "Exp": {
        "exp_param.base": (-1.0, 2.0),
        "exp_param.scale": (0.3, -0.2),
        "exp_param.shift": (0, 0.5),
    },
    "Threshold": {"threshold_param.threshold": (0.0, 0.31)},
    "PReLU": {"prelu_param.channel_shared": _in(0.3)},
    "Softmax": {"softmax_param.axis": _axis},
    "SPP": {
        "spp_param.pyramid_height": (1, 2, 2, 3),
        "spp_param.pool": (caffe_pb2.SPPParameter.MAX, caffe_pb2.SPPParameter.AVE),
    },
    "Tile": {"tile_param.tiles": (1, 2, 3), "tile_param.axis": _axis},
    "Reduction": {
        "reduction_param.operation": (1, 2, 3, 4),  # sums of values, magnitudes, squares; the mean
        "reduction_param.axis": _axis,
        "reduction_param.coeff": (1.0, 0.5, -2.0),
    },
    "PixelShuffle": {"pixel_shuffle_param.upscale_factor": 2},
    "Reorg": {"reorg_param.stride": 2, "reorg_param.reverse": _in(0.4)},
    "Flip": {"flip_param.flip_width": _in(0.6), "flip_param.flip_height": _in(0.5)},
}
"""By field a value, those to choose from, or what chooses."""
FITS["Normalize"] = lambda shape: len(shape) == 4 and shape[1] > 1
FITS["ShuffleChannel"] = lambda shape: len(shape) > 1


@maker(*SETTINGS)
def _choose_settings(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    for path, value in SETTINGS[layer.type].items():
        if isinstance(value, Maybe):
            if not g.chance(value.share):
                continue
            value = value.value
        elif callable(value):
            value = value(g, shape)
        message, _, field = path.partition(".")
        chosen = g.choice(*value) if isinstance(value, tuple) else value
        setattr(getattr(layer, message), field, chosen)


# -- layers that treat every element alike ---------------------------------------------------------


@maker("Log")
def _log(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    _positive(g, layer, shape)
    param = layer.log_param
    param.base, param.scale, param.shift = g.choice(-1.0, 2.0, 10.0), g.choice(1.0, 0.5), 0.5


def _positive(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    """Put a Sigmoid between a layer and its first bottom."""
    name = g.name("Sigmoid")
    between = LayerParameter(name=name, type="Sigmoid", bottom=[layer.bottom[0]], top=[name])
    g.append(between, [shape])
    layer.bottom[0] = name


# -- layers with a number for each channel ---------------------------------------------------------


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


@maker("Axpy", fits=images)
def _axpy(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    scale = g.extra((*shape[:2], 1, 1))
    layer.bottom[:] = [scale, *g.random.sample([layer.bottom[0], g.extra(shape)], 2)]


@maker("ChannelScale", fits=images)
def _channel_scale(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.bottom.append(g.extra((shape[0], 1, *shape[2:])))


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


@maker("BN", fits=lambda shape: len(shape) > 1 and _of_channel(shape) > 2)
def _bn(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    if g.chance(0.5):
        modes = layer.bn_param.LEARN, layer.bn_param.INFERENCE
        layer.bn_param.bn_mode = g.random.choice(modes)
    else:
        layer.bn_param.momentum = 0.8
        layer.bn_param.frozen = g.chance(0.2)


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
    stride = [g.choice(1, 1, 1, 2, 2, 3) if not g.wide else 1 + g.chance(0.1) for _ in extents]
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
    param.num_output = g.channels(1, 2, 3, 4, 5, 6, 8, 8, 16, 17, 32)
    if layer.type == "DepthwiseConvolution" or g.chance(0.3):
        param.group = g.divisor(channels // 8 if g.wide and channels % 8 == 0 else channels)
        if g.chance(0.3 * (not g.wide)):
            param.group = channels
        param.num_output = param.group * g.channels(1, 1, 2, 3)
    if len(layer.top) == 1 and g.chance(0.05):
        layer.bottom.append(g.extra(shape))
        layer.top.append(f"{layer.name}_b")
    return None


@maker("Im2col", fits=images)
def _im2col(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    _window(g, layer.convolution_param, shape[2:], dilated=True, largest=3)


@maker("Pooling", fits=images)
def _pooling(g: Growing, layer: LayerParameter, shape: Shape) -> None:
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


@maker("Upsample", fits=lambda shape: len(shape) == 4 and min(shape[2:]) > 1)
def _upsample(g: Growing, layer: LayerParameter, shape: Shape) -> bool | None:
    """On top of a pooling that tells where its maxima stood, or with one bottom."""
    if g.chance(0.4):
        layer.upsample_param.scale = g.choice(1, 2, 3)
        return None
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


@maker("BilinearInterpolation", fits=images)
def _bilinear(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.bottom.append(g.input((1, 1, g.choice(2, 3, 5), g.choice(1, 4)), "shape"))


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


@maker("CropCenter")
def _crop_center(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    cuts = (g.random.randint(0, min(2, (extent - 1) // 2)) for extent in shape)
    layer.crop_center_param.crop_size.extend(cuts)


MANY = 64
"""Equal numbers (slopes of L1) of which a sum is off by more than noise in its terms tells."""


@maker("InnerDistance", fits=lambda shape: len(shape) > 1)
def _inner_distance(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    param = layer.inner_distance_param
    param.num_output, param.distance_type = g.choice(1, 3, 5), g.choice("L2", "L1")
    param.axis = g.choice(1, len(shape) - 1)
    if math.prod(shape[: param.axis]) > MANY:
        param.distance_type = "L2"
    param.weight_filler.type = "xavier"


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


# -- sequences and tables --------------------------------------------------------------------------


@maker("RNN", "LSTM", fits=lambda shape: len(shape) > 2)
def _recurrent(g: Growing, layer: LayerParameter, shape: Shape) -> None:
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


@maker("Lstm")
def _lstm(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.lstm_param.num_output = g.choice(1, 3, 4)
    layer.lstm_param.batch_size = g.divisor(shape[0])
    if g.chance(0.5):
        layer.bottom.append(g.input(shape[:1], "keep"))


@maker("LSTMUnit", fits=lambda shape: len(shape) == 3 and shape[0] == 1)
def _lstm_unit(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    gates = g.extra((*shape[:2], 4 * shape[2]))
    layer.bottom.extend((gates, g.input(shape[:2], "keep")))
    layer.top.append(f"{layer.name}_h")


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
def _classification(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    classes = math.prod(shape[1:])
    if layer.type == "HingeLoss":
        norms = layer.hinge_loss_param.L1, layer.hinge_loss_param.L2
        layer.hinge_loss_param.norm = g.random.choice(norms)
    else:
        _positive(g, layer, shape)
    layer.bottom.append(g.input((shape[0],), f"label{classes}"))


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
    _choose_settings(g, layer, shape)
    layer.loss_weight.append(g.choice(1.0, 0.375))  # few bits: sums of it are exact


@maker("Power", table=LOSSES)
def _summed(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    """A loss weight on a blob of any shape weighs the sum of its elements."""
    layer.power_param.scale = 0.5
    layer.loss_weight.append(g.choice(1.0, 0.125))


@maker("Filter", table=LOSSES)
def _filter(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    layer.bottom.extend((g.input((shape[0], 3)), g.input((shape[0],), "some")))
    layer.top.append(f"{layer.name}_b")
    layer.loss_weight.extend((0.5, 0.0))


@maker("Silence", table=LOSSES)
def _silence(g: Growing, layer: LayerParameter, shape: Shape) -> None:
    del layer.top[:]
