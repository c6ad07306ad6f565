"""Owns a test net's outputs over many batches: they stay on the device until they are read."""

from __future__ import annotations

import numpy as np

from ..backends.tensor import Tensor
from ..net import Net
from .report import numbers, read_outputs

_ROWS, _ELEMENTS = 128, 1 << 20
"""The most batches, and the most elements in total, that are buffered."""


class OutputBuffer:
    """Collects all elements of a net's outputs, as `read_outputs` gives them, batch by batch.

    Reading them makes the host wait for the device: `note` only enqueues a copy, where possible.
    loss: append the sum of the losses (0 if there are none).
    """

    def __init__(self, net: Net, *, loss: bool = False) -> None:
        self._net, self._loss = net, loss
        self._blobs = [net.blobs[name].data for name in numbers(net)]
        if loss and net.seeds:
            self._blobs.append(net.total)
        self._count = sum(blob.count for blob in self._blobs)
        self.width = self._count + (loss and not net.seeds)
        """The number of values per batch."""
        plain = all(blob.layout is None and blob.dtype == "float32" for blob in self._blobs)
        fixed = not net.inspectable and not any(layer.reshapes for layer in net.layers)
        self._rows = min(_ROWS, _ELEMENTS // max(self._count, 1)) if plain and fixed else 0
        self._buffers: list[Tensor] = []
        for blob in self._blobs if self._rows else ():
            tensor = Tensor((self._rows, *blob.shape), name="outputs", persistent=True)
            net.backend.give_memory(tensor)
            self._buffers.append(tensor)
        self._noted = 0
        self._host_rows: list[np.ndarray] = []

    @property
    def full(self) -> bool:
        """Whether `take` must be called before the next `note`."""
        return 0 < self._rows == self._noted

    def forget(self) -> None:
        """Discard all that are stored."""
        self._noted, self._host_rows = 0, []

    def note(self) -> None:
        """Store those of the last forward pass."""
        if not self._rows:
            values = read_outputs(self._net)
            self._host_rows.append(np.append(values, self._net.loss()) if self._loss else values)
            return
        for blob, tensor in zip(self._blobs, self._buffers, strict=True):
            self._net.backend.store(blob, tensor, self._noted)
        self._noted += 1

    def take(self) -> np.ndarray:
        """Those stored since the last call: (batches, `width`), float64."""
        rows = np.array(self._host_rows) if self._host_rows else np.zeros((self._noted, self.width))
        if self._noted:
            # Rows beyond those stored are uninitialized memory: they must not be converted.
            arrays = [
                self._net.backend.read(tensor).reshape(self._rows, -1)[: self._noted]
                for tensor in self._buffers
            ]
            if arrays:
                rows[:, : self._count] = np.concatenate(arrays, axis=1)
        self.forget()
        return rows
