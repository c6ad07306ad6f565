"""How a classification net is adapted to other classes: its last layers, data layers and
input."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...errors import UserError
from ...graph.prototxt.filter import filter_layers, net_state, with_layers
from ...proto import TEST, TRAIN, caffe_pb2

_LOSSES = ("SoftmaxWithLoss", "HingeLoss", "MultinomialLogisticLoss", "InfogainLoss")
_LEARNED = {"InnerProduct": "inner_product_param", "Convolution": "convolution_param"}
"""Layers that make a score for each class, and their settings."""
_FASTER = 10
"""How much faster a new layer learns than those that have learned already, as Caffe's examples
have it."""


UNSEEN = "unseen"
"""The stage of the TEST phase in which a net reads photographs that chose nothing in training."""


class Records(NamedTuple):
    """What data layers are to read. sources, batches: of TRAIN, of TEST and, if there is a third,
    of TEST in the stage UNSEEN."""

    sources: Sequence[str]
    batches: Sequence[int]
    transform: caffe_pb2.TransformationParameter


def classifiers(net: caffe_pb2.NetParameter) -> list[caffe_pb2.LayerParameter]:
    """The layers that make the scores of classes, the main one last. UserError without any."""
    layers = [_learned_before(net, at, layer.bottom[0]) for at, layer in _ends(net) if layer.bottom]
    scores: dict[str, caffe_pb2.LayerParameter] = {
        layer.name: layer for layer in layers if layer is not None
    }
    if not scores:
        raise UserError(
            "has no layer that gives classes scores: an InnerProduct or Convolution in front of a "
            "SoftmaxWithLoss or a Softmax"
        )
    return list(scores.values())


def set_classes(
    net: caffe_pb2.NetParameter, classes: int, taken: Collection[str] | None = None
) -> list[str]:
    """Give the layers of `classifiers` as many outputs; return their names.

    taken: the layers of a file of weights: then they get names that are none of these, so that they
    begin again, and learn faster than the others.
    """
    names = []
    for layer in classifiers(net):
        getattr(layer, _LEARNED[layer.type]).num_output = classes
        if taken is not None:
            _rename(net, layer, _new_name(layer.name, taken))
            _let_learn(layer)
        names.append(layer.name)
    return names


def begin_anew(
    net: caffe_pb2.NetParameter, names: Collection[str], taken: Collection[str]
) -> list[str]:
    """Let layers of these names begin again, too, as `set_classes` does; return their new names."""
    renamed = []
    for layer in [layer for layer in net.layer if layer.name in names and layer.bottom]:
        _rename(net, layer, _new_name(layer.name, taken))
        if layer.type in _LEARNED:
            _let_learn(layer)
        renamed.append(layer.name)
    return renamed


def for_training(net: caffe_pb2.NetParameter, records: Records) -> caffe_pb2.NetParameter:
    """The net with data layers that read these, a loss, and accuracies that there can be."""
    trained = with_layers(net, [layer for layer in net.layer if layer.bottom])
    image, label = image_blob(net), _label(net)
    for at, (source, batch) in enumerate(zip(records.sources, records.batches, strict=True)):
        phase = TEST if at else TRAIN
        layer = caffe_pb2.LayerParameter(name="data", type="Data", top=[image, label])
        rule = layer.include.add(phase=phase)
        if at and len(records.sources) > 2:
            (rule.stage if at > 1 else rule.not_stage).append(UNSEEN)
        layer.transform_param.CopyFrom(records.transform)
        if phase == TEST:
            layer.transform_param.ClearField("mirror")
            layer.transform_param.ClearField("augmentation_param")
        layer.data_param.source, layer.data_param.batch_size = source, batch
        layer.data_param.backend = caffe_pb2.DataParameter.LMDB
        trained.layer.insert(at, layer)
    head = classifiers(net)[-1]
    if not any(layer.type in _LOSSES for layer in trained.layer):
        scores = _end(net)
        layers = [layer for layer in trained.layer if layer.type != "Softmax"]
        trained = with_layers(trained, layers)
        trained.layer.add(name="loss", type="SoftmaxWithLoss", bottom=[scores, label], top=["loss"])
    classes = getattr(head, _LEARNED[head.type]).num_output
    layers = [layer for layer in trained.layer if layer.accuracy_param.top_k < classes]
    trained = with_layers(trained, layers)
    if not any(layer.type == "Accuracy" for layer in trained.layer):
        accuracy = trained.layer.add(
            name="accuracy", type="Accuracy", bottom=[_end(net), label], top=["accuracy"]
        )
        accuracy.include.add(phase=TEST)
    return trained


def for_prediction(net: caffe_pb2.NetParameter, shape: Sequence[int]) -> caffe_pb2.NetParameter:
    """The net between an input of this shape and the probabilities of the main classifier."""
    scores, image = _end(net), image_blob(net)
    tested = filter_layers(net, net_state(net, "TEST"))
    deployed = caffe_pb2.NetParameter(name=net.name)
    data = deployed.layer.add(name=image, type="Input", top=[image])
    data.input_param.shape.add(dim=shape)
    needed, chosen = {scores}, []
    ends = [*_LOSSES, "Accuracy", "Softmax"]
    for layer in reversed(tested.layer):
        if layer.bottom and layer.type not in ends and needed & set(layer.top):
            chosen.append(layer)
            needed.update(layer.bottom)
    deployed.layer.extend(reversed(chosen))
    deployed.layer.add(name="prob", type="Softmax", bottom=[scores], top=["prob"])
    return deployed


def image_blob(net: caffe_pb2.NetParameter) -> str:
    """The name of the images among a net's inputs."""
    for layer in net.layer:
        if not layer.bottom and layer.top:
            return layer.top[0]
    raise UserError("has no layer that brings images: begin with a Data or an Input layer")


def crop_of(net: caffe_pb2.NetParameter) -> int:
    """The width and height that the net was made for; 0 where it does not say."""
    for layer in net.layer:
        if not layer.bottom and layer.transform_param.crop_size:
            return layer.transform_param.crop_size
        if layer.type == "Input" and layer.input_param.shape:
            extents = layer.input_param.shape[0].dim
            if len(extents) == 4 and extents[2] == extents[3]:
                return int(extents[2])
    return 0


def learned_layers(net: caffe_pb2.NetParameter) -> list[str]:
    """The names of the convolutions and inner products that prediction takes."""
    shape = (1, 3, 1, 1)
    layers = for_prediction(net, shape).layer
    return [layer.name for layer in layers if layer.type in _LEARNED]


def _ends(net: caffe_pb2.NetParameter) -> list[tuple[int, caffe_pb2.LayerParameter]]:
    """The losses, with their places; without any, the Softmax layers."""
    layers = list(enumerate(net.layer))
    losses = [(at, layer) for at, layer in layers if layer.type in _LOSSES]
    return losses or [(at, layer) for at, layer in layers if layer.type == "Softmax"]


def _end(net: caffe_pb2.NetParameter) -> str:
    """The blob with the scores of the main classifier."""
    ends = _ends(net)
    return ends[-1][1].bottom[0] if ends else classifiers(net)[-1].top[0]


def _label(net: caffe_pb2.NetParameter) -> str:
    labels = [layer.bottom[1] for layer in net.layer if layer.type in _LOSSES]
    return labels[-1] if labels else "label"


def _learned_before(
    net: caffe_pb2.NetParameter, at: int, blob: str
) -> caffe_pb2.LayerParameter | None:
    """The layer that learns scores, of those that make this blob in front of a place."""
    for index in range(at - 1, -1, -1):
        layer = net.layer[index]
        if blob in layer.top:
            if layer.type in _LEARNED:
                return layer
            return _learned_before(net, index, layer.bottom[0]) if layer.bottom else None
    return None


def _new_name(name: str, taken: Collection[str]) -> str:
    plain = re.sub(r"_new\d*$", "", name)
    names = itertools.chain([f"{plain}_new"], (f"{plain}_new{n}" for n in itertools.count(2)))
    return next(name for name in names if name not in taken)


def _rename(net: caffe_pb2.NetParameter, layer: caffe_pb2.LayerParameter, name: str) -> None:
    """Another name for a layer, and for its top where that has the same."""
    old, layer.name = layer.name, name
    if list(layer.top) != [old]:
        return
    for user in net.layer:
        for blobs in (user.bottom, user.top):
            for index, blob in enumerate(blobs):
                if blob == old:
                    blobs[index] = name


def _let_learn(layer: caffe_pb2.LayerParameter) -> None:
    settings = getattr(layer, _LEARNED[layer.type])
    if not layer.param:
        layer.param.add(lr_mult=1, decay_mult=1)
        if settings.bias_term:
            layer.param.add(lr_mult=2, decay_mult=0)
    for spec in layer.param:
        spec.lr_mult = _FASTER * spec.lr_mult
        spec.ClearField("name")
    if not settings.HasField("weight_filler"):
        settings.weight_filler.type = "xavier"
