"""Owns what a script's net does with whole data sets: any number of items, batch by batch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest

import numpy as np

from .blob import Blob

Arrays = dict[str, np.ndarray]


class WholeSets:
    """A net that runs forward and backward over more items than a batch has."""

    inputs: list[str]
    outputs: list[str]
    blobs: OrderedDict[str, Blob]
    forward: Callable[..., Arrays]
    backward: Callable[..., Arrays]

    def forward_all(self, blobs: Iterable[str] | None = None, **inputs: np.ndarray) -> Arrays:
        """Run forward over any number of items, batch by batch; returns all outputs by name."""
        blobs = list(blobs or ())
        results: dict[str, list[np.ndarray]] = {name: [] for name in {*self.outputs, *blobs}}
        for batch in self._batch(inputs):
            for name, values in self.forward(blobs, None, None, **batch).items():
                results[name].extend(values.copy())
        return _cut(results, inputs)

    def forward_backward_all(
        self,
        blobs: Iterable[str] | None = None,
        diffs: Iterable[str] | None = None,
        **given: np.ndarray,
    ) -> tuple[Arrays, Arrays]:
        """Run forward and backward over any number of items, batch by batch.

        given: values for the inputs, and diffs for the outputs. Returns outputs and diffs by name.
        """
        blobs, diffs = list(blobs or ()), list(diffs or ())
        values: dict[str, list[np.ndarray]] = {name: [] for name in {*self.outputs, *blobs}}
        gradients: dict[str, list[np.ndarray]] = {name: [] for name in {*self.inputs, *diffs}}
        inputs = {name: given[name] for name in self.inputs if name in given}
        tops = {name: given[name] for name in self.outputs if name in given}
        for batch, top in zip_longest(self._batch(inputs), self._batch(tops)):
            for name, array in self.forward(blobs, None, None, **(batch or {})).items():
                values[name].extend(array.copy())
            for name, array in self.backward(diffs, None, None, **(top or {})).items():
                gradients[name].extend(array.copy())
        return _cut(values, given), _cut(gradients, given)

    def _batch(self, arrays: Mapping[str, np.ndarray]) -> Iterator[Arrays]:
        """Pieces of the net's batch size; the last one is filled up with zeros."""
        if not arrays:
            return
        size = self.blobs[next(iter(arrays))].shape[0]
        for start in range(0, len(next(iter(arrays.values()))), size):
            pieces = {}
            for name, values in arrays.items():
                piece = np.asarray(values[start : start + size])
                missing = np.zeros((size - len(piece), *piece.shape[1:]), piece.dtype)
                pieces[name] = np.concatenate([piece, missing])
            yield pieces


def _cut(results: Mapping[str, list[np.ndarray]], given: Mapping[str, np.ndarray]) -> Arrays:
    """All results as arrays, without those of the zeros that filled the last batch."""
    count = len(next(iter(given.values()))) if given else None
    return {name: np.asarray(values[:count]) for name, values in results.items()}
