"""Owns the predictions of a report: what a trained net says of its test records, by classes, and
pictures of those that it was surest and most wrong of."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...data.pictures.preprocessing import find_preprocessing
from ...data.pictures.transform import centre
from ...data.sets.photo_set import LABELS, read_labels
from ...errors import UserError
from ...net import Net
from ...proto import NetParameter
from ..images import png, to_image

_SCORED = ("SoftmaxWithLoss", "Accuracy")
"""The layers that tell which blobs are scores and labels, the better first."""


@dataclass(frozen=True)
class Prediction:
    """One record: its class, what the net takes it for, the probabilities of both, a picture (a
    PNG in base64; "" where the data is no picture)."""

    label: int
    predicted: int
    probability: float
    of_label: float
    picture: str = ""


@dataclass
class Predictions:
    """Of all records: confusion[class, said] counts them; the surest and right, the most wrong."""

    confusion: np.ndarray
    best: list[Prediction] = field(default_factory=list)
    worst: list[Prediction] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """The part of the records that the net takes for what they are."""
        return float(np.trace(self.confusion) / max(1, self.confusion.sum()))


def scored_blobs(net: NetParameter) -> tuple[str, str, bool]:
    """The blobs of scores and of labels in a net's TEST phase, and whether a softmax follows the
    scores. UserError where no layer tells."""
    for kind in _SCORED:
        for layer in net.layer:
            if layer.type == kind and len(layer.bottom) >= 2:
                return layer.bottom[0], layer.bottom[1], kind == "SoftmaxWithLoss"
    raise UserError(f"no layer of the types {', '.join(_SCORED)} tells which blobs are scores")


def predict(net: Net, blobs: tuple[str, str, bool], batches: int, shown: int) -> Predictions:
    """Run so many batches of a net that reads records. shown: how many best and worst stay.

    Scores are (records, classes), or with extents of 1 behind that. UserError for others.
    """
    scored, labelled, softmax = blobs
    result: Predictions | None = None
    show = Pictures(net)
    for _ in range(batches):
        net.forward()
        scores = np.asarray(net.read(scored), np.float64)
        labels = np.asarray(net.read(labelled)).ravel().astype(np.int64)
        if scores.size != len(scores) * scores.shape[1] or len(labels) != len(scores):
            raise UserError(f'blob "{scored}" {scores.shape} has no class for each record')
        scores = scores.reshape(len(scores), -1)
        if softmax:
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        count = scores.shape[1]
        if result is None:
            result = Predictions(np.zeros((count, count), np.int64))
        _add(result, scores, labels, show, shown)
    assert result is not None
    return result


def _add(
    result: Predictions, scores: np.ndarray, labels: np.ndarray, show: Pictures, shown: int
) -> None:
    """Count a batch, and keep its records where they are among the best or the worst so far."""
    known = (labels >= 0) & (labels < scores.shape[1])  # others are an ignore_label, say
    predicted = scores.argmax(axis=1)
    np.add.at(result.confusion, (labels[known], predicted[known]), 1)
    rows = np.flatnonzero(known)
    right = predicted[rows] == labels[rows]
    for ranking, chosen, sign in (result.best, rows[right], -1), (result.worst, rows[~right], 1):
        order = np.argsort(sign * scores[chosen, labels[chosen]], kind="stable")[:shown]
        for row in chosen[order]:
            entry = (int(labels[row]), int(predicted[row]), float(scores[row, predicted[row]]))
            ranking.append(Prediction(*entry, float(scores[row, labels[row]]), show(int(row))))
        ranking.sort(key=lambda one: sign * one.of_label)
        del ranking[shown:]


class Pictures:
    """Makes pictures of the records of a batch, as they were before a mean and a scale."""

    def __init__(self, net: Net) -> None:
        self._net = net
        top = next((layer.param.top[0] for layer in net.layers if not layer.param.bottom), "")
        shape = net.blobs[top].shape if top else ()
        self._blob = top if len(shape) == 4 and shape[1] in (1, 3) else ""
        trained = find_preprocessing(net.param, "", top)
        self._scale = trained.scale if trained else 1.0
        self._mean: np.ndarray | float = 0.0
        try:
            mean = trained.mean() if trained else None
        except UserError:  # the file is not there: the picture's colours are a bit off
            mean = None
        if mean is not None and self._blob:
            flat = mean.ndim == 1
            self._mean = mean[:, None, None] if flat else centre(mean, shape[2:], axis=1)

    def pixels(self, row: int) -> np.ndarray | None:
        """Bytes (channels, height, width) of a record, blue first; None for what is no picture."""
        if not self._blob:
            return None
        entered = self._net.read(self._blob)[row]
        values = np.clip(entered / (self._scale or 1.0) + self._mean, 0, 255).round()
        return values.astype(np.uint8)

    def __call__(self, row: int) -> str:
        """The PNG of a record, in base64; "" for what is no picture."""
        pixels = self.pixels(row)
        return "" if pixels is None else base64.b64encode(png(to_image(pixels))).decode()


def class_names(net: NetParameter, count: int, file: str | None = None) -> list[str]:
    """The names of so many classes: of this file, or the labels.txt beside what a net reads; else
    their numbers. UserError where a file has others."""
    sources = [Path(layer.data_param.source) for layer in net.layer if layer.data_param.source]
    candidates = [path.parent / LABELS for path in sources]
    path = Path(file) if file else next(filter(Path.is_file, candidates), None)
    if path is None:
        return [str(number) for number in range(count)]
    names = read_labels(path)
    if len(names) != count:
        raise UserError(f"{path}: has {len(names)} labels for {count} classes of the net")
    return names
