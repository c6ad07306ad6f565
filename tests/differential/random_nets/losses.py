"""Owns the random ends of branches: losses and the like."""

from __future__ import annotations

import math

from .growing import LOSSES, Growing, LayerParameter, Shape, maker
from .layers import _choose_settings, _positive


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
