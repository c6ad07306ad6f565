"""Owns a test net's outputs over many batches: they stay on the device until they are read."""

from __future__ import annotations

import numpy as np

from ..backends.tensor import Tensor
from ..net import Net
from .report import numbers, read_outputs

_ROWS, _ELEMENTS = 128, 1 << 20
"""Of how many batches, and how many elements in all, the outputs stay at most."""


class KeptOutputs:
    """Of batches one after the other all elements of a net's outputs, as `read_outputs` gives them.

    To read them makes the host wait for the device: `note` only enqueues a copy, where that can be.
    loss: the sum of the losses stands behind them (0: there are none).
    """

    def __init__(self, net: Net, *, loss: bool = False) -> None:
        self._net, self._loss = net, loss
        self._blobs = [net.blobs[name].data for name in numbers(net)]
        if loss and net.seeds:
            self._blobs.append(net.total)
        self._count = sum(blob.count for blob in self._blobs)
        self.width = self._count + (loss and not net.seeds)
        """How many numbers a batch has."""
        plain = all(blob.layout is None and blob.dtype == "float32" for blob in self._blobs)
        fixed = not net.inspectable and not any(layer.reshapes for layer in net.layers)
        self._rows = min(_ROWS, _ELEMENTS // max(self._count, 1)) if plain and fixed else 0
        self._kept: list[Tensor] = []
        for blob in self._blobs if self._rows else ():
            tensor = Tensor((self._rows, *blob.shape), name="outputs", persistent=True)
            net.backend.give_memory(tensor)
            self._kept.append(tensor)
        self._noted = 0
        self._found: list[np.ndarray] = []

    @property
    def full(self) -> bool:
        """Whether they are to be taken before more are noted."""
        return 0 < self._rows == self._noted

    def forget(self) -> None:
        """Forget all that were noted."""
        self._noted, self._found = 0, []

    def note(self) -> None:
        """Keep those of the last forward pass."""
        if not self._rows:
            values = read_outputs(self._net)
            self._found.append(np.append(values, self._net.loss()) if self._loss else values)
            return
        for blob, tensor in zip(self._blobs, self._kept, strict=True):
            self._net.backend.store(blob, tensor, self._noted)
        self._noted += 1

    def take(self) -> np.ndarray:
        """Those of the batches that were noted since the last time: (batches, `width`), float64."""
        rows = np.array(self._found) if self._found else np.zeros((self._noted, self.width))
        if self._noted:
            # Rows beyond those noted hold whatever the memory held: they are not to be converted.
            arrays = [
                self._net.backend.read(tensor).reshape(self._rows, -1)[: self._noted]
                for tensor in self._kept
            ]
            if arrays:
                rows[:, : self._count] = np.concatenate(arrays, axis=1)
        self.forget()
        return rows
