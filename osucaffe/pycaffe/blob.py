"""Owns blobs as scripts see them: NumPy arrays, synchronized with the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from .. import blob as engine
from ..backends.backend import Backend
from ..backends.tensor import Shape, Tensor
from ..layers.core.python import Extents

Key = tuple[int, int]


class Watcher(Protocol):
    """Is notified before tensors may be written."""

    def lend(self, tensor: Tensor) -> None:
        """A script, which has no array of a tensor, is about to get one (on the CPU)."""

    def expose(self, tensor: Tensor) -> None:
        """The memory of a tensor may be written from now on."""


class Lent(np.ndarray):
    """An array on memory that a net computes in. What NumPy computes from it is a plain array, as
    for `np.memmap`. Who asks for its address may use that without the array."""

    __array_priority__ = -1.0  # what is joined of several is a plain array, too

    @property
    def ctypes(self) -> Any:
        self._pin()
        return super().ctypes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self._pin()
        return super().__array_interface__

    def _pin(self) -> None:
        owner: Any = self
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, Lease):
            owner.pin()

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array if array is self else np.asarray(array)[()]

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


class Lease:
    """A tensor's memory in the hands of a script. It lives as long as any array on this memory:
    NumPy lets each of them refer to what is not an array and brought the memory, not past it."""

    def __init__(self, tensor: Tensor) -> None:
        self._memory = tensor.array
        self._tensor = weakref.ref(tensor)
        self.__array_interface__ = tensor.array.__array_interface__

    def array(self, shape: Shape) -> np.ndarray:
        """The memory under a shape."""
        return np.asarray(self).reshape(shape).view(Lent)

    def pin(self) -> None:
        """Keep it alive as long as the tensor."""
        if (tensor := self._tensor()) is not None:
            _pinned[tensor] = self


_pinned: weakref.WeakKeyDictionary[Tensor, Lease] = weakref.WeakKeyDictionary()


class Store:
    """The arrays of a backend's tensors. On the CPU they lie in the tensors' own memory.

    There a script may write to that as long as it has an array on it (`in_use`). On a device each
    tensor that a script looks at has an array on the host. Between two runs
    of a net the script may write to it, so `upload` goes before every run; `forget` goes
    behind, and lets the next look bring the values. As in Caffe, an array that was taken before a
    run shows the new values only once `blob.data` has been asked for again.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self.leases: weakref.WeakValueDictionary[Key, Lease] = weakref.WeakValueDictionary()
        """The memory that scripts have arrays of (on the CPU)."""
        self._arrays: weakref.WeakKeyDictionary[Tensor, np.ndarray] = weakref.WeakKeyDictionary()
        self._seen: dict[Tensor, None] = {}

    def array(self, tensor: Tensor) -> np.ndarray:
        """The values of a tensor: writing to them changes it."""
        if self.backend.name == "cpu":
            name = key(tensor)
            lease = self.leases.get(name)
            if lease is None:
                for watcher in list(self.watchers):
                    watcher.expose(tensor)
                    watcher.lend(tensor)
                lease = self.leases[name] = Lease(tensor)
            return lease.array(tensor.shape)
        if tensor not in self._seen:
            values = self.backend.read(tensor)
            if tensor in self._arrays:
                self._arrays[tensor][...] = values
            else:
                self._arrays[tensor] = np.array(values)
            self._seen[tensor] = None
            self.expose([tensor])
        return self._arrays[tensor]

    def in_use(self, tensor: Tensor) -> bool:
        """Whether a script may write to a tensor's memory at any time."""
        return key(tensor) in self.leases

    def expose(self, tensors: Iterable[Tensor]) -> None:
        """Tell all nets before these tensors may be written, by a script or by a net."""
        for watcher in list(self.watchers):
            for tensor in tensors:
                watcher.expose(tensor)

    def adopt(self, tensor: Tensor, array: np.ndarray) -> None:
        """Let this array, contiguous and of the tensor's shape, be what `array` returns."""
        if self.backend.name == "cpu":
            tensor.place(array.reshape(-1), array.ctypes.data)
        else:
            self._arrays[tensor] = array
            self._seen[tensor] = None

    def values(self, tensor: Tensor) -> np.ndarray:
        """The values of a tensor, with what the script has written; not to be written to."""
        if self.backend.name == "cpu":
            array: np.ndarray = tensor.array
            return array
        return self._arrays[tensor] if tensor in self._seen else self.backend.read(tensor)

    def written(self, tensor: Tensor) -> np.ndarray | None:
        """The array of a tensor that a script may have written to since the last run."""
        return self.values(tensor) if self.backend.name == "cpu" or tensor in self._seen else None

    def upload(self) -> None:
        """Copy arrays that the script may have written to the device."""
        for tensor in self._seen:
            self.backend.write(tensor, self._arrays[tensor])

    def forget(self) -> None:
        """Invalidate the arrays: the device has changed its tensors."""
        self._seen.clear()


def key(tensor: Tensor) -> Key:
    """The key of a tensor's memory: its address and its size."""
    return tensor.address, tensor.count


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
        blob = self._computed()
        array = self._store.array(blob.data)
        return array if blob.length is None else array[..., : self._rows(blob.length), :]

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
        return self._reshaped[1] if self._reshaped else self._store.array(self._find().diff)

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
        """Whether it was reshaped and the net has not adapted yet."""
        return self._reshaped is not None


class BlobVec(list[Blob]):
    """The parameters of a layer."""


def _resized(array: np.ndarray, shape: Shape) -> np.ndarray:
    memory = np.zeros(int(np.prod(shape)), array.dtype)
    count = min(memory.size, array.size)
    memory[:count] = array.reshape(-1)[:count]
    return memory.reshape(shape)
