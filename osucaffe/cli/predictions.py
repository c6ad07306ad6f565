"""Owns what a net predicts of its test records: how sure, and right or wrong; with the pictures."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError
from ..net import Net
from ..proto import NetParameter

if TYPE_CHECKING:
    from ..data.preprocessing import Preprocessing

_JUDGES = ("Accuracy", "SoftmaxWithLoss")


@dataclass(order=True)
class Prediction:
    """A record: the share that its true label got, the labels, and what entered the net."""

    share: float
    number: int
    label: int = field(compare=False)
    predicted: int = field(compare=False)
    sure: float = field(compare=False)
    image: np.ndarray = field(compare=False)


@dataclass
class Predictions:
    """confusion: how often each true label (row) was taken for each label. best: right ones, the
    surest first; worst: wrong ones, those that gave their true label the least first."""

    confusion: np.ndarray
    best: list[Prediction]
    worst: list[Prediction]

    @property
    def count(self) -> int:
        return int(self.confusion.sum())

    @property
    def right(self) -> int:
        return int(np.trace(self.confusion))


def judged(param: NetParameter) -> tuple[str, str] | None:
    """The blobs of the scores and the labels: those that accuracy is measured of, else the loss."""
    for kind in _JUDGES:
        for layer in param.layer:
            if layer.type == kind and len(layer.bottom) >= 2:
                return layer.bottom[0], layer.bottom[1]
    return None


def predict(
    net: Net, scores: str, labels: str, images: str, batches: int, shown: int
) -> Predictions:
    """Run so many batches. shown: how many predictions of each kind to keep. UserError where the
    scores are not a row for each label."""
    best: list[Prediction] = []
    worst: list[tuple[float, int, Prediction]] = []
    confusion: np.ndarray | None = None
    number = 0
    for _ in range(batches):
        net.forward()
        given = net.read(scores)
        truth = net.read(labels).astype(int).ravel()
        rows = given.reshape(len(given), -1)
        if len(truth) != len(rows):
            raise UserError(f'"{scores}" has several predictions for an image: there is no report')
        if confusion is None:
            confusion = np.zeros((rows.shape[1], rows.shape[1]), int)
        shares = np.exp(rows - rows.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        guesses = rows.argmax(axis=1)
        np.add.at(confusion, (truth, guesses), 1)
        pictures = net.read(images)
        for index, (true, guess) in enumerate(zip(truth.tolist(), guesses.tolist(), strict=True)):
            share, sure = float(shares[index, true]), float(shares[index, guess])
            found = Prediction(share, -number, true, guess, sure, pictures[index])
            if true == guess:
                _keep(best, found, shown)
            else:
                _keep_least(worst, found, shown)
            number += 1
    assert confusion is not None
    return Predictions(confusion, sorted(best, reverse=True), sorted(each for _, _, each in worst))


def _keep(heap: list[Prediction], found: Prediction, most: int) -> None:
    """Keep copies of the greatest: a batch's array is large."""
    if len(heap) == most and found < heap[0]:
        return
    found.image = found.image.copy()
    (heapq.heappush if len(heap) < most else heapq.heappushpop)(heap, found)


def _keep_least(heap: list[tuple[float, int, Prediction]], found: Prediction, most: int) -> None:
    item = (-found.share, found.number, found)
    if len(heap) == most and item < heap[0]:
        return
    found.image = found.image.copy()
    (heapq.heappush if len(heap) < most else heapq.heappushpop)(heap, item)


def as_picture(image: np.ndarray, entered: Preprocessing | None) -> np.ndarray:
    """What entered the net as bytes (height, width, 1 or 3), red first: scale and mean undone."""
    mean = entered.mean() if entered else None
    image = image / ((entered.scale if entered else 1.0) or 1.0)
    if mean is not None:
        mean = np.asarray(mean, np.float32)
        # Of an image as a mean, crops took parts: its value for each channel is near enough.
        image = image + mean.reshape(len(mean), -1).mean(axis=1)[:, None, None]
    pixels = np.clip(np.rint(image), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return np.ascontiguousarray(pixels[:, :, 2::-1] if pixels.shape[2] == 3 else pixels[:, :, :1])
