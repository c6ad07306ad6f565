"""The predictions of a classifier on its test records: the confusion matrix, the figures of
each class, and pictures of the best and the worst."""

from __future__ import annotations

import base64
import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ...api.images import to_image
from ...api.model_files import class_names
from ...api.tables import table
from ...data.pictures.preprocessing import find_preprocessing
from ...data.pictures.transform import centre
from ...errors import UserError
from ...files import write_bytes
from ...net import Net
from ...proto import NetParameter
from ...solvers.report import epochs_of
from ..images import png
from ..output import csv_text, short

TOP = 5
"""Among that many of the most likely classes the right one counts, too."""
_SCORED = ("SoftmaxWithLoss", "Accuracy")
"""The layers that identify the blobs of scores and labels, preferred ones first."""
_MAX_CLASSES = 25
"""Classes that a table has; of more, it has those that are recognized least."""
_log = logging.getLogger("osucaffe")


@dataclass(frozen=True)
class Prediction:
    """One record: its class, the predicted class, the probabilities of the predicted one and of its
    own, the name of its file, its row in the last batch (-1: of one before), and a picture (a PNG
    in base64; "" if the data is not a picture)."""

    label: int
    predicted: int
    probability: float
    of_label: float
    file: str = ""
    row: int = 0
    picture: str = ""


@dataclass
class Predictions:
    """Of all records: confusion[class, predicted] counts them; the number of those whose class was
    among the TOP most likely; the best and the worst ones."""

    confusion: np.ndarray
    among_top: int = 0
    best: list[Prediction] = field(default_factory=list)
    worst: list[Prediction] = field(default_factory=list)

    def add(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Count records: probabilities (records, classes) and labels."""
        np.add.at(self.confusion, (labels, scores.argmax(axis=1)), 1)
        of_label = scores[np.arange(len(labels)), labels]
        better = (scores > of_label[:, None]).sum(axis=1)
        self.among_top += int(((better < TOP) & np.isfinite(of_label)).sum())

    @property
    def total(self) -> int:
        """The number of records."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The fraction of correctly predicted records."""
        return self.right / max(1, self.total)

    @property
    def right(self) -> int:
        """The number of correctly predicted records."""
        return int(np.trace(self.confusion))

    @property
    def interval(self) -> tuple[float, float]:
        """The shares right among records of this kind that agree with `accuracy` at 95 %."""
        return confidence_interval(self.right, self.total)

    @classmethod
    def none(cls, classes: int) -> Predictions:
        """Of no record yet."""
        return cls(np.zeros((classes, classes), np.int64))

    @property
    def by_class(self) -> list[tuple[int, float, float]]:
        """Of each class: its records; precision, the share of those predicted as this class that
        are of it; recall, the share of its records that are predicted so. nan: of none."""
        right = np.diagonal(self.confusion)
        made, there = self.confusion.sum(axis=0), self.confusion.sum(axis=1)
        with np.errstate(invalid="ignore"):
            return list(zip(there.tolist(), right / made, right / there, strict=True))

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """What a document of results has of them."""
        keys = ("name", "records", "precision", "recall")
        rows = zip(names, self.by_class, strict=True)
        return {
            "records": self.total,
            "accuracy": self.accuracy,
            "interval": self.interval,
            f"top{TOP}": self.among_top / max(1, self.total),
            "classes": [dict(zip(keys, (name, *row), strict=True)) for name, row in rows],
        }

    def text(self, names: Sequence[str], what: str = "records") -> str:
        """A table of the classes, and the shares of all."""
        rows = [("class", what, "precision", "recall", "taken for")]
        figures = self.by_class
        order = [label for label in range(len(names)) if figures[label][0]]
        if many := len(order) > _MAX_CLASSES:
            order = sorted(order, key=lambda label: figures[label][2])[:_MAX_CLASSES]
        for label in order:
            count, precision, recall = figures[label]
            wrong = [(n, names[at]) for at, n in enumerate(self.confusion[label]) if at != label]
            wrong = sorted((pair for pair in wrong if pair[0]), key=lambda pair: -pair[0])[:2]
            taken = ", ".join(f"{short(name, 14)} {n}" for n, name in wrong)
            shares = ("–" if np.isnan(precision) else f"{precision:.1%}", f"{recall:.1%}")
            rows.append((short(names[label], 16), f"{count:,}", *shares, taken))
        lines = table("<>>><", *rows)
        lines += [f"({_MAX_CLASSES} of {len(names)} classes: the least recognized)"] * many
        among = f"; {self.among_top / max(1, self.total):.2%} among the {TOP} most likely"
        return "\n".join(lines) + (
            f"\n{self.accuracy:.2%} right: {self.right:,} of {self.total:,} {what} "
            f"(95 % confidence: {percents(self.interval)})" + among * (len(names) > TOP)
        )


def confidence_interval(right: int, total: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share, of which `right` of `total` were seen: exact
    (Clopper and Pearson, Biometrika 26, 1934)."""
    upper = 1.0 if right == total else _share_with_tail(right, total)
    lower = 0.0 if right == 0 else 1 - _share_with_tail(total - right, total)
    return lower, upper


def _share_with_tail(most: int, total: int) -> float:
    """The share p at which `most` or fewer of `total` are seen with probability 0.025."""
    counts = np.arange(most + 1)
    logs = np.array([math.lgamma(each + 1) for each in range(total + 1)])
    ways = logs[total] - logs[counts] - logs[total - counts]
    low, high = 0.0, 1.0
    for _ in range(50):
        share = (low + high) / 2
        terms = ways + counts * math.log(share) + (total - counts) * math.log1p(-share)
        low, high = (share, high) if np.exp(terms).sum() > 0.025 else (low, share)
    return low


def percents(interval: tuple[float, float]) -> str:
    """77–100 %, with as many digits as tell the two apart."""
    low, high = interval
    digits = next((n for n in range(4) if f"{100 * low:.{n}f}" != f"{100 * high:.{n}f}"), 4)
    return f"{100 * low:.{digits}f}–{100 * high:.{digits}f} %"


class Scored(NamedTuple):
    """The blobs of scores and of labels in a net's TEST phase, and whether a softmax follows the
    scores."""

    scores: str
    labels: str
    softmax: bool

    def fit(self, net: Net) -> bool:
        """Whether there is a score of each class, and a label, for each record."""
        scores, labels = (net.blobs[name].shape for name in self[:2])
        count = int(np.prod(labels))
        return len(scores) > 1 and scores[0] == count and np.prod(scores) == count * scores[1]

    def read(self, net: Net) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities (records, classes) and labels after a forward pass."""
        scores = np.asarray(net.read(self.scores), np.float64)
        scores = scores.reshape(len(scores), -1)
        if self.softmax:
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        return scores, np.asarray(net.read(self.labels)).ravel().astype(np.int64)


def scored_blobs(net: NetParameter) -> Scored | None:
    """Those of a net; None if no layer identifies them."""
    for kind in _SCORED:
        for layer in net.layer:
            if layer.type == kind and len(layer.bottom) >= 2:
                return Scored(layer.bottom[0], layer.bottom[1], kind == "SoftmaxWithLoss")
    return None


class Scoring:
    """Counts the predictions of a net for the records that it reads, each once.

    names: of the classes (a file, see `class_names`). UserError if there is no score of each class
    for each record.
    """

    def __init__(self, net: Net, blobs: Scored, labels: str | None = None) -> None:
        shape = net.blobs[blobs.scores].shape
        if not blobs.fit(net):
            raise UserError(f'blob "{blobs.scores}" {shape} has no class for each record')
        self.blobs, self._epochs = blobs, epochs_of(net)
        layer = next((node.layer for node in net.nodes if node.layer.records), None)
        self._files = getattr(layer, "names", None)
        self.names = class_names(sources_of(net.param), shape[1], labels)
        self.result = Predictions.none(shape[1])
        self.rows: list[Prediction] = []
        """The records of the last batch that count."""

    def add(self, batch: int, scores: np.ndarray, labels: np.ndarray) -> None:
        """Count what `blobs` gave for a batch, the first of which has number 0. Records that were
        read before do not count, nor those that have none of the classes (an ignore_label, say)."""
        first = batch * len(labels)
        left = max(0, self._epochs.count - first) if self._epochs else len(labels)
        known = np.flatnonzero((labels >= 0) & (labels < scores.shape[1]))
        known = known[known < left]
        files = self._files(first, len(labels)) if self._files else [""] * len(labels)
        predicted = scores.argmax(axis=1)
        self.result.add(scores[known], labels[known])
        self.rows = [
            Prediction(
                int(labels[row]), int(predicted[row]), float(scores[row, predicted[row]]),
                float(scores[row, labels[row]]), files[row], int(row),
            )
            for row in known
        ]  # fmt: skip


def write_predictions(path: str, rows: Iterable[Prediction], names: Sequence[str]) -> None:
    """Write a line for each record to a CSV file."""
    lines: list[tuple[str, ...]] = [
        ("file", "class", "predicted", "probability", "probability of class")
    ]
    for one in rows:
        shares = (f"{value:.6g}" for value in (one.probability, one.of_label))
        lines.append((one.file, names[one.label], names[one.predicted], *shares))
    write_bytes(path, csv_text(lines).encode())


def predict(net: Net, scoring: Scoring, batches: int, shown: int) -> Predictions:
    """Run batches of a net. shown: how many best and worst records are stored."""
    result, show = scoring.result, Pictures(net)
    of_class = max(1, shown // len(scoring.names))  # the best would all be of one class
    for batch in range(batches):
        net.forward()
        scoring.add(batch, *scoring.blobs.read(net))
        right = [one for one in scoring.rows if one.label == one.predicted]
        wrong = [one for one in scoring.rows if one.label != one.predicted]
        best = _first(result.best + right, -1, shown, of_class)
        worst = _first(result.worst + wrong, 1, shown, shown)
        result.best, result.worst = (
            [one if one.row < 0 else replace(one, picture=show(one.row), row=-1) for one in ranking]
            for ranking in (best, worst)
        )
    return result


def _first(found: list[Prediction], sign: int, most: int, of_class: int) -> list[Prediction]:
    """Those of the least sign * probability of their class: in all, and of each class."""
    counts: Counter[int] = Counter()
    kept = []
    for one in sorted(found, key=lambda one: sign * one.of_label):
        counts[one.label] += 1
        kept += [one] if counts[one.label] <= of_class else []
    return kept[:most]


class Pictures:
    """Makes pictures of the records of a batch, undoing mean and scale."""

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
        """Bytes (channels, height, width) of a record, blue first; None if it is not a picture."""
        if not self._blob:
            return None
        entered = self._net.read(self._blob)[row]
        values = np.clip(entered / (self._scale or 1.0) + self._mean, 0, 255).round()
        return values.astype(np.uint8)

    def __call__(self, row: int) -> str:
        """The PNG of a record, in base64; "" if it is not a picture."""
        pixels = self.pixels(row)
        return "" if pixels is None else base64.b64encode(png(to_image(pixels))).decode()


def sources_of(net: NetParameter) -> list[str]:
    """What a net's data layers read."""
    params = [param for layer in net.layer for param in (layer.data_param, layer.image_data_param)]
    return [param.source for param in params if param.source]
