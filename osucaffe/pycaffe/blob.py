"""Blobs as scripts see them: NumPy arrays, synchronized with the device."""

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
        before: Callable[[Shape], Tensor | None] = lambda shape: None,
    ) -> None:
        """find: tells the blob of the engine, which is another one after the net was reshaped.
        complete: is called to give it memory. look: when a script asks for the data. waiting: where
        it enters itself when it is reshaped. before: tells its data when it had a shape, if that is
        remembered."""
        self._find, self._store = find, store
        self._waiting = set() if waiting is None else waiting
        self._look, self._complete, self._before = look, complete, before
        self._reshaped: list[Tensor] = []
        """data, and diff unless nobody has looked at that and it is zero, after `reshape`."""

    @property
    def data(self) -> np.ndarray:
        if self._reshaped:
            return self._store.array(self._reshaped[0])
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
        if len(self._reshaped) == 1:
            self._complete()
            self._reshaped.append(self._store.resized(self._find().diff, self.shape))
        return self._store.array(self._reshaped[1])

    @property
    def shape(self) -> Shape:
        if self._reshaped:
            return self._reshaped[0].shape
        blob = self._find()
        if blob.length is None:
            return blob.shape
        self._computed()
        return *blob.shape[:-2], self._rows(blob.length), blob.shape[-1]

    def __repr__(self) -> str:
        return f'Blob "{self._find().name}" ({"x".join(map(str, self.shape)) or "scalar"})'

    def reshape(self, *shape: int) -> None:
        """Give an input another shape; the net adapts in `reshape`, or else in `forward`.

        The first values stay, as in Caffe. What layers compute gets its shape from them again.
        """
        if shape != self.shape:
            sides = self._reshaped or [self._computed().data, self._find().diff]
            if sides[0].array is None:
                self._complete()
            again = self._before(shape)
            self._reshaped = [
                self._store.resized(side, shape, again if side is sides[0] else None)
                for side in sides
                if side.array is not None
            ]
            self._waiting.add(self)

    @property
    def pending(self) -> list[Tensor]:
        """What `reshape` made, while the net has not followed."""
        return self._reshaped

    def settle(self) -> None:
        """The net has followed: let what `reshape` made be the blob's own."""
        blob, made = self._find(), self._reshaped
        self._reshaped = []
        if made and blob.shape == made[0].shape:
            for mine, tensor in zip((blob.data, blob.diff), made, strict=False):
                self._store.adopt(mine, tensor)


class BlobVec(list[Blob]):
    """The parameters of a layer."""
