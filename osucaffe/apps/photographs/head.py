"""The new last layer of a pretrained net: trained first, on what the other layers make of each
photograph, which is computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...backends.cpu import Cpu
from ...cli.output import progress
from ...data.sets.photo_set import PhotoSet
from ...graph.prototxt.filter import filter_layers, net_state, with_layers
from ...loading import load_weights
from ...net import Net
from ...proto import AnyWeights, NetParameter, array_to_blob
from . import adapt

_PASSES = 2
"""How often each photograph is seen, mirrored or not at random."""
_BATCH = 32
_DECAY = 0.01
"""Of the squares of the weights, for features of variance 1."""
_STEPS = 300


def train_head(
    training: NetParameter, weights: tuple[str, AnyWeights], data: PhotoSet
) -> NetParameter | None:
    """The net with weights to begin with: those of the file, and of the main classifier such as
    make the cross entropy of the training set least while all others stay as they are.

    training: the net, which reads the data. None where its classifier is no InnerProduct.
    """
    head = adapt.classifiers(training)[-1]
    if head.type != "InnerProduct":
        return None
    features, labels = _features(training, weights, data, head.bottom[0])
    learned = logistic_regression(features, labels, head.inner_product_param.num_output)
    begun = NetParameter()
    begun.CopyFrom(training)
    known = {layer.name: layer.blobs for layer in weights[1].layer}
    for layer in begun.layer:
        own = map(array_to_blob, learned) if layer.name == head.name else known.get(layer.name, ())
        layer.blobs.extend(own)
    return begun


def _features(
    training: NetParameter, weights: tuple[str, AnyWeights], data: PhotoSet, blob: str
) -> tuple[np.ndarray, np.ndarray]:
    """What comes to a blob for the training set, (photographs, features), and the labels."""
    tested = filter_layers(training, net_state(training, "TEST"))
    at = next(at for at, layer in reversed([*enumerate(tested.layer)]) if blob in layer.top)
    net = with_layers(tested, tested.layer[: at + 1])
    reader = net.layer[0]
    reader.data_param.source = str(data.folder / "train_lmdb")
    reader.data_param.batch_size = batch = min(_BATCH, data.train)
    reader.transform_param.mirror = True
    label = reader.top[1]
    engine = Net(net, phase="TEST", backend=Cpu(), inference=True, wanted=[blob, label], seed=1)
    load_weights([engine], [weights])
    count = math.ceil(data.train * _PASSES / batch)
    features: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    with progress("Computing features", count) as advance:
        for _ in range(count):
            engine.forward()
            features.append(engine.read(blob).reshape(batch, -1))
            labels.append(engine.read(label).astype(int))
            advance()
    return np.concatenate(features), np.concatenate(labels)


def logistic_regression(
    features: np.ndarray, labels: Sequence[int] | np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (classes, features) and biases that make the mean cross entropy and a decay least.

    By Nesterov's accelerated gradient, whose step is one over the greatest curvature.
    """
    mean = features.mean(0)
    scale = np.sqrt(features.var(0).mean()) or 1.0
    x = np.hstack([(features - mean) / scale, np.ones((len(features), 1))]).astype(np.float32)
    wanted = np.eye(classes, dtype=np.float32)[labels] / len(x)
    direction: np.ndarray = np.ones(x.shape[1], np.float32)
    for _ in range(20):
        direction = x.T @ (x @ direction) / len(x)
        curvature = float(np.linalg.norm(direction))
        direction /= curvature
    rate = 1 / (curvature / 2 + _DECAY)
    w: np.ndarray = np.zeros((x.shape[1], classes), np.float32)
    ahead = w
    for step in range(_STEPS):
        scores = x @ ahead
        exponentials = np.exp(scores - scores.max(1, keepdims=True))
        shares = exponentials / exponentials.sum(1, keepdims=True) / len(x)
        moved = ahead - rate * (x.T @ (shares - wanted) + _DECAY * ahead)
        ahead = moved + step / (step + 3) * (moved - w)
        w = moved
    weight = w[:-1].T / scale
    return weight, w[-1] - weight @ mean
