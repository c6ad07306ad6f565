"""Owns training on the caller's batches: any iterable of arrays in place of data layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..data.ahead.pipeline import Buffer, allocate
from ..errors import UserError, listed
from ..proto import NetParameter
from . import devices

_FILL = ("DummyData", "Parameter")
"""Layers without bottoms that need no data."""


class Batches:
    """The records of an iterable of batches, over and over.

    data: gives each batch as a tuple of arrays in the order of the net's inputs, a dict by their
    names, or one array: NumPy's, PyTorch's. Batches may be of any size: the net takes as many
    records as its own has, one after the other.
    """

    def __init__(self, data: Iterable[Any], what: str) -> None:
        self._data, self._what = data, what
        self._iterator: Iterator[Any] = iter(())
        self._names: list[str] = []
        self._left: list[np.ndarray] = []
        self._buffers: dict[str, Buffer] = {}
        self._given: set[str] = set()

    def replace_readers(self, net: NetParameter) -> NetParameter:
        """The net with an Input layer for each that reads data: what it makes has the shapes of the
        first batch. UserError if that has others than the net has inputs."""
        made = NetParameter()
        made.CopyFrom(net)
        readers = [layer for layer in made.layer if not layer.bottom and layer.type not in _FILL]
        self._names = [top for layer in readers for top in layer.top]
        self._left = self._next()
        shapes = dict(zip(self._names, (values.shape for values in self._left), strict=True))
        for layer in readers:
            name, tops, rules = layer.name, list(layer.top), list(layer.include)
            layer.Clear()
            layer.name, layer.type = name, "Input"
            layer.top.extend(tops)
            layer.include.extend(rules)
            for top in tops:
                layer.input_param.shape.add(dim=shapes[top])
        self._buffers = {name: allocate(shape) for name, shape in shapes.items()}
        self._given = set(self._names)
        return made

    def next(self, names: Sequence[str]) -> list[Buffer]:
        """What an Input layer with these tops brings next: of one batch as long as no layer has had
        its part of it."""
        if not self._given.isdisjoint(names):
            self._fill([self._buffers[name].array for name in self._names])
            self._given = set()
        self._given |= set(names)
        return [self._buffers[name] for name in names]

    def _fill(self, arrays: Sequence[np.ndarray]) -> None:
        done, count = 0, len(arrays[0])
        while done < count:
            if not len(self._left[0]):
                self._left = self._next()
            part = min(count - done, len(self._left[0]))
            for target, values in zip(arrays, self._left, strict=True):
                if values.shape[1:] != target.shape[1:]:
                    raise UserError(
                        f"{self._what}: a batch has records of {values.shape[1:]}, but the first "
                        f"had {target.shape[1:]}"
                    )
                target[done : done + part] = values[:part]
            self._left = [values[part:] for values in self._left]
            done += part

    def _next(self) -> list[np.ndarray]:
        """The next batch; after the last one the first."""
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = iter(self._data)
            batch = next(self._iterator, None)
        if batch is None:
            raise UserError(
                f"{self._what}: there are no more batches: give what can be iterated again and "
                "again, such as a list or a DataLoader"
            )
        return self._arrays(batch)

    def _arrays(self, batch: Any) -> list[np.ndarray]:
        if isinstance(batch, Mapping):
            given = {str(name): values for name, values in batch.items()}
        else:
            parts = batch if isinstance(batch, list | tuple) else [batch]
            given = (
                dict(zip(self._names, parts, strict=False))
                if len(parts) == len(self._names)
                else {}
            )
        if not given.keys() >= set(self._names):
            raise UserError(
                f"{self._what}: a batch must have {listed(self._names)}: a dict of arrays with "
                "these names, or a tuple in this order"
            )
        arrays = [devices.numbers(given[name], np, name) for name in self._names]
        counts = {len(values) if values.ndim else 0 for values in arrays}
        if len(counts) > 1 or 0 in counts:
            raise UserError(f"{self._what}: the arrays of a batch have {listed(counts)} records")
        return arrays
