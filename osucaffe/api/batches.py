"""Training on the caller's batches: any iterable of arrays in place of data layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..data.ahead.pipeline import Buffer, allocate
from ..errors import UserError, listed
from ..proto import LayerParameter, NetParameter
from . import devices

Batch = Any
"""A tuple of arrays in the order of the net's inputs, a dict by their names, or one array."""
Data = Iterable[Batch] | Callable[[], Iterable[Batch]] | Batch
_AGAIN = (
    "give what can be iterated again and again, such as a list, a DataLoader, or a generator's "
    "function (not what it returns)"
)
_FILL = ("DummyData", "Parameter")
"""Layers without bottoms that need no data."""


class Batches:
    """The records of batches, over and over: a stream as data layers have them.

    data: an iterable of batches, such as a list or a PyTorch DataLoader, or a function that gives
    one for each pass over the data; or, as one tuple or dict of arrays, all records, of which the
    net takes as many as its data layer says. Batches may be of any size: the net takes as many
    records as the first has, one after the other. what: the argument's name, for messages.
    """

    def __init__(self, data: Data, what: str) -> None:
        self._data, self._what = data, what
        self._iterator: Iterator[Batch] = iter(())
        self._names: list[str] = []
        self._left: list[np.ndarray] = []
        self._buffers: list[Buffer] = []
        self._position = self._passed = self._length = 0
        """Records given: of the stream, and of this pass; those of a whole pass (0: not known)."""

    def replace_readers(self, net: NetParameter) -> NetParameter:
        """The net with one Input layer in place of those that read data: what it brings has the
        shapes of the first batch. UserError if that has others than the net has inputs."""
        made = NetParameter()
        made.CopyFrom(net)
        readers = [layer for layer in made.layer if not layer.bottom and layer.type not in _FILL]
        if not readers:
            raise UserError(f"{self._what}: the net has no layer that reads data")
        self._names = [top for layer in readers for top in layer.top]
        if self._is_all_records():
            self._data = self._cut(max(map(batch_size, readers), default=0))
        self._left = self._next()
        first, *others = readers
        name, rules = first.name, list(first.include)
        first.Clear()
        first.name, first.type = name, "Input"
        first.top.extend(self._names)
        first.include.extend(rules)
        for values in self._left:
            first.input_param.shape.add(dim=values.shape)
        for layer in others:
            made.layer.remove(layer)
        self._buffers = [allocate(values.shape) for values in self._left]
        return made

    def next(self) -> list[Buffer]:
        """The next records, an array for each input of the net."""
        arrays = [buffer.array for buffer in self._buffers]
        done, count = 0, len(arrays[0])
        while done < count:
            part = self._take(count - done)
            for target, values in zip(arrays, part, strict=True):
                if values.shape[1:] != target.shape[1:]:
                    raise UserError(
                        f"{self._what}: a batch has records of {values.shape[1:]}, but the first "
                        f"had {target.shape[1:]}"
                    )
                target[done : done + len(values)] = values
            done += len(part[0])
        return self._buffers

    @property
    def position(self) -> int:
        """How many records were given so far. Set, it goes on from there as far as passes over the
        data bring the same records: a DataLoader that shuffles goes on in another order."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        if position < self._position:
            if isinstance(self._data, Iterator):
                raise UserError(f"{self._what}: it cannot go back to record {position}: {_AGAIN}")
            self._iterator, self._left = iter(()), []
            self._position = self._passed = 0
        while missing := position - self._position:
            whole = missing // self._length * self._length if self._length else 0
            self._position += whole
            if missing > whole:
                self._take(missing - whole)

    def _take(self, most: int) -> list[np.ndarray]:
        """At most so many records of one batch."""
        if not self._left or not len(self._left[0]):
            self._left = self._next()
        part = [values[:most] for values in self._left]
        self._left = [values[most:] for values in self._left]
        self._position += len(part[0])
        self._passed += len(part[0])
        return part

    def _next(self) -> list[np.ndarray]:
        """The next batch; after the last one the first."""
        batch = next(self._iterator, None)
        if batch is None:
            self._length, self._passed = self._passed or self._length, 0
            self._iterator = iter(self._data() if callable(self._data) else self._data)
            batch = next(self._iterator, None)
        if batch is None:
            raise UserError(f"{self._what}: there are no more batches: {_AGAIN}")
        return self._arrays(batch)

    def _is_all_records(self) -> bool:
        """Whether the data are arrays, not an iterable of batches."""
        data = self._data
        if isinstance(data, tuple) and len(data) == len(self._names):
            return all(hasattr(values, "shape") for values in data)
        return isinstance(data, Mapping) or hasattr(data, "shape")

    def _cut(self, size: int) -> list[dict[str, np.ndarray]]:
        """Batches of this size (0: one) of arrays of all records."""
        whole = dict(zip(self._names, self._arrays(self._data), strict=True))
        count = len(next(iter(whole.values())))
        starts = range(0, count, size or count)
        return [{name: all[at : at + size] for name, all in whole.items()} for at in starts]

    def _arrays(self, batch: Batch) -> list[np.ndarray]:
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


def batch_size(layer: LayerParameter) -> int:
    """The batch size of a layer that brings data; 0 if it states none."""
    shapes = [shape.dim[0] for shape in layer.input_param.shape[:1] if shape.dim]
    return max([0, *shapes, *(getattr(value, "batch_size", 0) for _, value in layer.ListFields())])
