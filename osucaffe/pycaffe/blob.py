"""Owns what scripts see of a blob: NumPy arrays, kept in step with the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from .. import blob as engine
from ..backends.backend import Backend
from ..backends.tensor import Shape, Tensor
from ..layers.python import Extents


class Store:
    """The arrays of a backend's tensors. On the CPU they are the tensors' own memory.

    On a device each tensor that a script looks at has an array on the host. Between two runs
    of a net the script may write to it, so `upload` goes before every run; `forget` goes
    behind, and lets the next look bring the values. As in Caffe, an array that was taken before a
    run shows the new values only once `blob.data` has been asked for again.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._arrays: weakref.WeakKeyDictionary[Tensor, np.ndarray] = weakref.WeakKeyDictionary()
        self._seen: dict[Tensor, None] = {}

    def array(self, tensor: Tensor) -> np.ndarray:
        """The values of a tensor: writing to them changes it."""
        if self.backend.name == "cpu":
            array: np.ndarray = tensor.array
            return array
        if tensor not in self._seen:
            values = self.backend.read(tensor)
            if tensor in self._arrays:
                self._arrays[tensor][...] = values
            else:
                self._arrays[tensor] = np.array(values)
            self._seen[tensor] = None
        return self._arrays[tensor]

    def adopt(self, tensor: Tensor, array: np.ndarray) -> None:
        """Let this array, contiguous and of the tensor's shape, be what `array` returns."""
        if self.backend.name == "cpu":
            tensor.place(array.reshape(-1), array.ctypes.data)
        else:
            self._arrays[tensor] = array
            self._seen[tensor] = None

    def written(self, tensor: Tensor) -> np.ndarray | None:
        """The array of a tensor that a script may have written to since the last run."""
        if self.backend.name == "cpu":
            return tensor.array
        return self._arrays[tensor] if tensor in self._seen else None

    def upload(self) -> None:
        """Bring what the script may have written to the device."""
        for tensor in self._seen:
            self.backend.write(tensor, self._arrays[tensor])

    def forget(self) -> None:
        """The device has changed its tensors."""
        self._seen.clear()


_stores: dict[int, Store] = {}


def store_of(backend: Backend) -> Store:
    """The one store of a backend: nets on it share tensors."""
    if id(backend) not in _stores:
        _stores[id(backend)] = Store(backend)
    return _stores[id(backend)]


class Blob(Extents):
    """`data` and `diff`: arrays of one shape, float32, to read and to write."""

    def __init__(
        self, find: Callable[[], engine.Blob], store: Store, look: Callable[[], None] | None = None
    ) -> None:
        """find: tells the blob of the engine, which is another one after the net was reshaped.
        look: is called when a script asks for the data."""
        self._find = find
        self._look = look
        self._store = store
        self._reshaped: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def data(self) -> np.ndarray:
        if self._reshaped:
            return self._reshaped[0]
        if self._look is not None:
            self._look()
        blob = self._find()
        array = self._store.array(blob.data)
        return array if blob.length is None else array[..., : self._rows(blob.length), :]

    def _rows(self, length: Tensor) -> int:
        """How many rows there are of a blob whose length varies."""
        return int(self._store.backend.read(length).item())

    @property
    def diff(self) -> np.ndarray:
        return self._reshaped[1] if self._reshaped else self._store.array(self._find().diff)

    @property
    def shape(self) -> Shape:
        if self._reshaped:
            return self._reshaped[0].shape
        blob = self._find()
        if blob.length is None:
            return blob.shape
        return *blob.shape[:-2], self._rows(blob.length), blob.shape[-1]

    def reshape(self, *shape: int) -> None:
        """Give an input another shape; the net follows in `reshape`, or else in `forward`.

        The first values stay, as in Caffe. What layers compute gets its shape from them again.
        """
        if shape != self.shape:
            self._reshaped = _resized(self.data, shape), _resized(self.diff, shape)

    def settle(self) -> None:
        """The net has followed: let the arrays of `reshape` be the blob's own."""
        if self._reshaped:
            data, diff = self._reshaped
            self._reshaped = None
            blob = self._find()
            if blob.shape == data.shape:
                self._store.adopt(blob.data, data)
                self._store.adopt(blob.diff, diff)

    @property
    def waits(self) -> bool:
        """Whether it was reshaped and the net has not followed."""
        return self._reshaped is not None


class BlobVec(list[Blob]):
    """The parameters of a layer."""


def _resized(array: np.ndarray, shape: Shape) -> np.ndarray:
    memory = np.zeros(int(np.prod(shape)), array.dtype)
    count = min(memory.size, array.size)
    memory[:count] = array.reshape(-1)[:count]
    return memory.reshape(shape)
