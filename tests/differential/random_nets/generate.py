"""The random nets: number N of a seed is always the same NetParameter, and so are its values.

What an Input holds stands in its name (`values_of`): a prototxt says all there is to say about a
net.
"""

from __future__ import annotations

import math
import zlib
from random import Random

import numpy as np

from osucaffe.layer import layer_types
from osucaffe.proto import caffe_pb2

from . import layers  # noqa: F401 (which fills the tables)
from .growing import (
    BATCHES,
    CHANNELS,
    EXTENTS,
    FORGETS,
    IN_PLACE,
    LOSSES,
    MAKERS,
    Growing,
    LayerParameter,
    Shape,
    Top,
    _names,
)

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
    if way < 0.75 or g.wide:
        shape = (batch, g.channels(*CHANNELS), g.choice(*EXTENTS), g.choice(*EXTENTS))
    elif way < 0.83:
        shape = (batch, g.choice(*CHANNELS))
    elif way < 0.91:
        shape = (g.choice(1, 2, 3, 4), batch, g.choice(1, 2, 3, 5))
    elif way < 0.96:
        shape = (batch, g.choice(1, 2, 3, 4), *(g.choice(1, 2, 3, 4) for _ in range(3)))
    else:
        shape = (g.choice(1, 5, 12),)
    return shape if math.prod(shape) <= g.most_elements else _first_shape(g)


def generate(seed: int, number: int, *, wide: bool = False) -> caffe_pb2.NetParameter:
    """Net `number` of a seed. wide: as `Growing` has it."""
    g = Growing(Random(f"{seed}/{number}"), wide=wide)
    kinds = sorted(MAKERS)
    shape = _first_shape(g)
    for _ in range(g.choice(1, 1, 1, 2)):
        g.input(shape)
    length = g.choice(1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
    for _ in range(6 * length):
        made = sum(layer.type != "Input" for layer in g.net.layer)
        if made >= length:
            break
        if wide and g.chance(0.1):
            _stage(g, g.pick())
        kind = g.random.choice(COMMON if g.chance(0.85 if wide else 0.55) else kinds)
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
    grown = list(net.layer)
    del net.layer[:]
    net.layer.extend([*g.inputs, *grown])
    net.force_backward = g.chance(0.6)
    return net


def _stage(g: Growing, top: Top) -> None:
    """What ends a ResNet's stage and begins the next one: a normalization, perhaps a sum and a
    ReLU, read by convolutions that leave out pixels alone, or by pooling."""
    if len(top.shape) != 4 or max(top.shape[2:]) < 2:
        return
    stride, first = g.choice(2, 2, 3), top.name

    def add_first(g: Growing, layer: LayerParameter, shape: Shape) -> None:
        layer.bottom.append(first)

    def work_in_place(g: Growing, layer: LayerParameter, shape: Shape) -> None:
        layer.top[0] = layer.bottom[0]

    def head(g: Growing, layer: LayerParameter, shape: Shape) -> None:
        param = layer.convolution_param
        param.num_output, param.bias_term = g.channels(), g.chance(0.3)
        param.kernel_size.append(1)
        param.stride.append(stride)

    steps = [("BatchNorm", MAKERS["BatchNorm"], 1.0), ("Scale", MAKERS["Scale"], 0.5)]
    steps += [("Eltwise", add_first, 0.5), ("ReLU", work_in_place, 0.5)]
    for kind, maker, share in steps:
        made = g.add(kind, top, maker) if g.chance(share) else []
        top = made[0] if made else top
    if top.name != first:
        if g.chance(0.4):
            g.add("Pooling", top, MAKERS["Pooling"])
        else:
            for _ in range(g.choice(1, 2)):
                g.add("Convolution", top, head)
        g.tops = [each for each in g.tops if each.name != top.name]
        g.unread.pop(top.name, None)


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
