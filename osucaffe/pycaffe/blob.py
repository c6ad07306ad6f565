"""Owns blobs as scripts see them: NumPy arrays, synchronized with the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import blob as engine
from ..backends.tensor import Shape, Tensor
from ..layers.core.python import Extents
from .store import Store

Notify = Callable[[], None]


class Blob(Extents):
    """`data` and `diff`: arrays of one shape, float32, to read and to write."""

    def __init__(
        self,
        find: Callable[[], engine.Blob],
        store: Store,
        complete: Notify,
        look: Notify | None = None,
        waiting: set[Blob] | None = None,
    ) -> None:
        """find: tells the blob of the engine, which is another one after the net was reshaped.
        complete: is called to give it memory. look: when a script asks for the data. waiting: where
        it enters itself when it is reshaped."""
        self._find, self._store = find, store
        self._waiting = set() if waiting is None else waiting
        self._look, self._complete = look, complete
        self._reshaped: tuple[np.ndarray, np.ndarray | None] | None = None
        """data and diff after `reshape`; None: a diff that nobody has looked at, and is zero."""

    @property
    def data(self) -> np.ndarray:
        if self._reshaped:
            return self._reshaped[0]
        blob = self._computed()
        array = self._array(blob.data)
        return array if blob.length is None else array[..., : self._rows(blob.length), :]

    def _array(self, tensor: Tensor) -> np.ndarray:
        if tensor.array is None:
            self._complete()
        return self._store.array(tensor)

    def _computed(self) -> engine.Blob:
        """The engine's blob, with what the last pass computed."""
        if self._look is not None:
            self._look()
        return self._find()

    def _rows(self, length: Tensor) -> int:
        """How many rows there are of a blob whose length varies."""
        return int(self._store.backend.read(length).item())

    @property
    def diff(self) -> np.ndarray:
        if not self._reshaped:
            return self._array(self._find().diff)
        data, diff = self._reshaped
        if diff is None:
            diff = np.zeros(data.shape, data.dtype)
            self._reshaped = data, diff
        return diff

    @property
    def shape(self) -> Shape:
        if self._reshaped:
            return self._reshaped[0].shape
        blob = self._find()
        if blob.length is None:
            return blob.shape
        self._computed()
        return *blob.shape[:-2], self._rows(blob.length), blob.shape[-1]

    def reshape(self, *shape: int) -> None:
        """Give an input another shape; the net adapts in `reshape`, or else in `forward`.

        The first values stay, as in Caffe. What layers compute gets its shape from them again.
        """
        if shape != self.shape:
            diff = self._reshaped[1] if self._reshaped else self._placed_diff()
            resized = None if diff is None else self._resized(diff, shape)
            self._reshaped = self._resized(self.data, shape), resized
            self._waiting.add(self)

    def _placed_diff(self) -> np.ndarray | None:
        return None if self._find().diff.array is None else self.diff

    def _resized(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        resized = self._store.empty(shape)
        flat, count = resized.reshape(-1), min(resized.size, array.size)
        flat[:count] = array.reshape(-1)[:count]
        flat[count:] = 0
        return resized

    def settle(self) -> None:
        """The net has followed: let the arrays of `reshape` be the blob's own."""
        if self._reshaped:
            data, diff = self._reshaped
            self._reshaped = None
            blob = self._find()
            if blob.shape == data.shape:
                self._store.adopt(blob.data, data)
                if diff is not None:
                    self._store.adopt(blob.diff, diff)


class BlobVec(list[Blob]):
    """The parameters of a layer."""
