"""What labels may be: those that the layers which read them tell apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .errors import UserError


class Classes(NamedTuple):
    """The labels that a layer takes: 0 to classes - 1, and one that it ignores.

    layer: as messages call it. Fractions of labels do not count, as they do not in Caffe.
    others: of a layer that can do with any label, what is called with one of the others.
    """

    layer: str
    classes: int
    ignored: int | None = None
    others: Callable[[float], object] | None = None

    def good(self, labels: np.ndarray) -> np.ndarray:
        """Which of these labels the layer takes."""
        good: np.ndarray = (labels > -1) & (labels < self.classes)
        if self.ignored is not None:
            good |= np.trunc(labels) == self.ignored
        return good


class Labels:
    """The labels that all layers take which read one blob. Without such layers: any."""

    def __init__(self, readers: Sequence[Classes] = ()) -> None:
        # Two of a kind, such as a loss and a score, need one look.
        strict_last = sorted(readers, key=lambda reader: reader.others is None)
        self._readers = list({(each.classes, each.ignored): each for each in strict_last}.values())

    def __bool__(self) -> bool:
        return bool(self._readers)

    def wrong(self, labels: np.ndarray) -> int | None:
        """Where the first label stands, in row-major order, that a layer does not take."""
        for reader in self._readers:
            good = reader.good(labels)
            if good.all():
                continue
            if reader.others is None:
                return int(np.argmin(good))
            reader.others(labels[~good].flat[0])
        return None

    def check_all(self, labels: np.ndarray, name: str) -> None:
        """Refuse an array that holds a label that a layer does not take."""
        labels = np.asarray(labels)
        if (place := self.wrong(labels)) is not None:
            where = ", ".join(map(str, np.unravel_index(place, labels.shape)))
            self.check(labels.flat[place], f"{name}[{where}]")

    def check(self, label: float, name: str) -> None:
        """Refuse a label that a layer does not take. name: as messages call what has it."""
        for layer, classes, ignored, others in self._readers:
            if -1 < label < classes or np.trunc(label) == ignored:
                continue
            if others is not None:
                others(label)
                continue
            but = "" if ignored is None else f" and ignores {ignored}"
            raise UserError(
                f"{name} has label {label:g}, but {layer} has {classes} classes, "
                f"0 to {classes - 1}{but}: correct the label, or the net's number of classes"
            )
