"""Owns the sums of a test net's outputs: they stay where they were computed until many are read."""

from __future__ import annotations

import numpy as np

from ..backends.tensor import Tensor
from ..net import Net
from .report import numbers, read_outputs

_ROWS, _ELEMENTS = 128, 1 << 20
"""Of how many batches, and how many elements in all, the outputs stay at most."""


class Outputs:
    """The sum over batches of all elements of a net's outputs, as `read_outputs` gives them.

    To read them makes the host wait for the device: `note` only enqueues a copy, where that can be.
    """

    def __init__(self, net: Net) -> None:
        self._net = net
        self._blobs = [net.blobs[name].data for name in numbers(net)]
        count = sum(blob.count for blob in self._blobs)
        plain = all(blob.layout is None and blob.dtype == "float32" for blob in self._blobs)
        fixed = not net.inspectable and not any(layer.reshapes for layer in net.layers)
        self._rows = min(_ROWS, _ELEMENTS // max(count, 1)) if plain and fixed else 0
        self._kept: list[Tensor] = []
        for blob in self._blobs if self._rows else ():
            tensor = Tensor((self._rows, *blob.shape), name="outputs", persistent=True)
            net.backend.give_memory(tensor)
            self._kept.append(tensor)
        self._total, self._noted = np.zeros(count), 0

    def reset(self) -> None:
        """Forget all batches."""
        self._total, self._noted = np.zeros_like(self._total), 0

    def note(self) -> None:
        """Add those of the last forward pass."""
        if not self._rows:
            self._total += read_outputs(self._net)
            return
        if self._noted == self._rows:
            self._read()
        for blob, tensor in zip(self._blobs, self._kept, strict=True):
            self._net.backend.store(blob, tensor, self._noted)
        self._noted += 1

    def sum(self) -> np.ndarray:
        """The sum over the batches that were noted (float64)."""
        self._read()
        return self._total

    def _read(self) -> None:
        if not self._noted:
            return
        # Rows beyond those noted hold whatever the memory held: they are not to be converted.
        arrays = [
            self._net.backend.read(tensor).reshape(self._rows, -1)[: self._noted]
            for tensor in self._kept
        ]
        for row in np.concatenate([*arrays, np.empty((self._noted, 0))], axis=1):
            self._total += row
        self._noted = 0
