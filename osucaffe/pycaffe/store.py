"""What keeps scripts' NumPy arrays in step with the tensors of nets, wherever these lie."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from ..backends.backend import Backend
from ..backends.cores import usable_cores
from ..backends.cpu.workers import Workers, cut
from ..backends.tensor import Shape, Tensor

Key = tuple[int, int]

WORTH_THREADS = 1 << 22
"""Bytes from which several threads copy to memory that a device copies from."""
_COPIERS = Workers(min(8, usable_cores()))


class Watcher(Protocol):
    """Is notified before tensors may be written."""

    def expose(self, tensor: Tensor) -> None:
        """The memory of a tensor may be written from now on."""


class NetArray(np.ndarray):
    """An array on memory that a net computes in. What NumPy computes from it is a plain array, as
    for `np.memmap`."""

    __array_priority__ = -1.0  # what is joined of several is a plain array, too

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array if array is self else np.asarray(array)[()]

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


class BorrowedArray(NetArray):
    """On a tensor's own memory. Who asks for its address may use that without the array."""

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


class StagingArray(NetArray):
    """On memory that a device copies from: what fills all of it at once is copied by several
    threads, as one alone takes longer than the device."""

    def __setitem__(self, where: Any, values: Any) -> None:
        is_large = self.nbytes >= WORTH_THREADS and self.flags.c_contiguous
        fills = where is Ellipsis and isinstance(values, np.ndarray) and values.shape == self.shape
        if is_large and fills and values.flags.c_contiguous:
            target, source = np.asarray(self).reshape(-1), values.reshape(-1)
            parts = cut(target.size, _COPIERS.count)
            copies = [
                functools.partial(np.copyto, target[i:j], source[i:j], "unsafe") for i, j in parts
            ]
            _COPIERS.run(copies)
        else:
            super().__setitem__(where, values)


class Lease:
    """A tensor's memory, or a copy's, in the hands of a script. It lives as long as any array on
    this memory: NumPy lets each of them refer to what is not an array and brought the memory, not
    past it."""

    def __init__(self, of: Tensor | Copy) -> None:
        self._memory = of.array
        self._tensor = weakref.ref(of)
        self.__array_interface__ = np.asarray(of.array).__array_interface__

    def array(self, shape: Shape, kind: type[NetArray]) -> Any:
        """The memory under a shape."""
        return np.asarray(self).reshape(shape).view(kind)

    def pin(self) -> None:
        """Keep it alive as long as the tensor."""
        if (tensor := self._tensor()) is not None:
            _pinned[tensor] = self


_pinned: weakref.WeakKeyDictionary[Tensor | Copy, Lease] = weakref.WeakKeyDictionary()


class Store:
    """The arrays of tensors that a backend's steps read in the host's memory: each lies in its
    tensor's own. A script may write to it as long as it has an array on it (`in_use`)."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self.leases: weakref.WeakValueDictionary[Key, Lease] = weakref.WeakValueDictionary()
        """The memory that scripts have arrays of."""

    def array(self, tensor: Tensor) -> np.ndarray:
        """The values of a tensor: writing to them changes it."""
        name = key(tensor)
        lease = self.leases.get(name)
        if lease is None:
            self.expose([tensor])
            lease = self.leases[name] = Lease(tensor)
        return lease.array(tensor.shape, BorrowedArray)

    is_beside = False
    """Whether a net runs beside the script, which `forget` has wait."""

    def in_use(self, tensor: Tensor) -> bool:
        """Whether a script may write to a tensor's memory at any time."""
        return key(tensor) in self.leases

    def expose(self, tensors: Iterable[Tensor]) -> None:
        """Tell all nets before these tensors may be written, by a script or by a net."""
        for watcher in list(self.watchers):
            for tensor in tensors:
                watcher.expose(tensor)

    def resized(self, old: Tensor, shape: Shape, again: Tensor | None = None) -> Tensor:
        """What a script has in place of a tensor under another shape: the first values stay, those
        after are 0. again: a tensor of that shape whose memory it is to have."""
        new = again or Tensor(shape)
        if new.array is None:
            self.backend.allocate_for(new)
        self.detach(new)
        values = self.values(old).reshape(-1)
        self.replace(old, new)
        flat = self.values(new).reshape(-1)
        count = min(flat.size, values.size)
        flat[:count], flat[count:] = values[:count], 0
        return new

    def detach(self, tensor: Tensor) -> None:
        """The shape of a tensor has come again: arrays that a script still has from then are its
        own."""
        if self.in_use(tensor):
            self.backend.allocate_for(tensor.owner)

    def replace(self, old: Tensor, new: Tensor) -> None:
        """A tensor takes the place of another, and of its values."""

    def adopt(self, tensor: Tensor, resized: Tensor) -> None:
        """Let a tensor have the memory, and what `array` returns, of one that was `resized`."""
        if tensor.address != resized.address:
            tensor.place(resized.array.reshape(-1), resized.address)

    def values(self, tensor: Tensor) -> np.ndarray:
        """The values of a tensor, with what the script has written; not to be written to."""
        array: np.ndarray = tensor.array
        return array

    def written(self, tensor: Tensor) -> np.ndarray | None:
        """The array of a tensor that a script may have written to since the last run."""
        return self.values(tensor)

    def own(self, net: object, blobs: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
        """These belong to a net: nothing but its runs reads or changes them. inputs: those among
        them that its runs only read."""

    def upload(self, net: object = None, but: Iterable[Tensor] = ()) -> None:
        """Before a run of a net: let the device have what the script may have written to the net's
        own tensors, but for some, and to those of no net, such as parameters."""

    def note_uploads(self) -> None:
        """Behind `upload`, for `wait_for_uploads`."""

    def wait_for_uploads(self) -> None:
        """Wait until what was uploaded may be written again, though its net may still run."""

    def forget(self, net: object = None, bring: Iterable[Tensor] = ()) -> None:
        """After a run of a net: it may have changed these tensors, but for its inputs. bring: those
        that the script is about to ask for."""


class DeviceStore(Store):
    """The arrays of a device's tensors. Each that a script looks at has an array on the host.

    Between two runs of a net the script may write to it, so `upload` goes before every run;
    `forget` goes after, and lets the next look bring the values. As in Caffe, an array that was
    taken before a run shows the new values only once `blob.data` has been asked for again. What a
    script writes to an input is uploaded at every run from the first look on, and never brought.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._uploads = backend.uploads()
        self._copies: weakref.WeakKeyDictionary[Tensor, Copy] = weakref.WeakKeyDictionary()
        self._by_memory: weakref.WeakValueDictionary[Key, Copy] = weakref.WeakValueDictionary()
        """Of all tensors that lie in one place, such as nets' shared parameters and the top of a
        Flatten, there is one copy."""
        self._lent: dict[weakref.ref[Copy], None] = {}
        """Those that a script may have written to since they were uploaded, in order."""
        self._runs = 0
        self._uploaded: Any = None
        self._owners: weakref.WeakKeyDictionary[Tensor, int] = weakref.WeakKeyDictionary()
        self._inputs: weakref.WeakSet[Tensor] = weakref.WeakSet()

    is_beside = True

    def array(self, tensor: Tensor) -> np.ndarray:
        copy = self._copy_of(tensor)
        if not copy.is_lent:
            if copy.run != self._runs:
                self._download([tensor])
            self._lend(copy)
            if copy.owner is None:
                self.expose([tensor])
        return copy.lend(tensor.shape)

    def _lend(self, copy: Copy) -> None:
        copy.is_lent = True
        self._lent[weakref.ref(copy)] = None

    def _copy_of(self, tensor: Tensor) -> Copy:
        """The copy for a tensor."""
        copy = self._copies.get(tensor)
        if copy is None or copy.place[0] != tensor.address:
            place = key(tensor)
            copy = self._by_memory.get(place)
            if copy is None:
                owner = self._owners.get(tensor)
                array = self._empty(tensor.shape, owner)
                copy = Copy(array, place, owner, tensor in self._inputs)
                self._by_memory[place] = copy
            self._copies[tensor] = copy
        copy.tensor = weakref.ref(tensor)
        return copy

    def _empty(self, shape: Shape, owner: int | None) -> np.ndarray:
        """Parameters are large and seldom looked at: not worth pinning."""
        return (
            np.empty(shape, np.float32) if owner is None else self._uploads.memory(shape, "float32")
        )

    def in_use(self, tensor: Tensor) -> bool:
        return False

    def detach(self, tensor: Tensor) -> None:
        copy = self._by_memory.get(key(tensor))
        if copy is not None and copy.lease() is not None:
            copy.array, copy.run = self._empty(copy.array.shape, copy.owner), -1
            copy.is_lent = False
            del copy.lease

    def replace(self, old: Tensor, new: Tensor) -> None:
        if old in self._owners:
            self._owners[new] = self._owners[old]
        if old in self._inputs:
            self._inputs.add(new)
        self._lend(self._copy_of(new))
        if (before := self._by_memory.get(key(old))) is not None:
            before.is_lent = False
            self._lent.pop(weakref.ref(before), None)

    def adopt(self, tensor: Tensor, resized: Tensor) -> None:
        super().adopt(tensor, resized)
        self._lend(self._copy_of(tensor))

    def values(self, tensor: Tensor) -> np.ndarray:
        written = self.written(tensor)
        return self.backend.read(tensor) if written is None else written

    def written(self, tensor: Tensor) -> np.ndarray | None:
        copy = self._by_memory.get(key(tensor))
        return copy.under(tensor) if copy is not None and copy.is_lent else None

    def own(self, net: object, blobs: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
        self._owners.update((tensor, id(net)) for tensor in blobs)
        self._inputs.update(inputs)
        for tensor in inputs:
            if key(tensor) in self._by_memory:
                self._copy_of(tensor)

    def _concerned(self, net: object) -> list[Copy]:
        """What a net reads or writes of what is in the script's hands."""
        copies = [reference() for reference in self._lent]
        return [c for c in copies if c is not None and c.owner in (None, id(net))]

    def upload(self, net: object = None, but: Iterable[Tensor] = ()) -> None:
        skipped = {tensor.address for tensor in but}
        for copy in self._concerned(net):
            tensor = copy.tensor()
            if tensor is not None and copy.place[0] not in skipped:
                self.backend.begin_write(tensor, copy.under(tensor))

    def note_uploads(self) -> None:
        self._uploaded = self._uploads.mark()

    def wait_for_uploads(self) -> None:
        if self._uploaded is not None:
            self._uploaded.synchronize()

    def forget(self, net: object = None, bring: Iterable[Tensor] = ()) -> None:
        for copy in self._concerned(net):
            copy.is_lent = copy.is_input
        still_lent = [ref for ref in self._lent if (c := ref()) is not None and c.is_lent]
        self._lent = dict.fromkeys(still_lent)
        self._runs += 1
        self._download(bring)

    def _download(self, tensors: Iterable[Tensor]) -> None:
        """Bring tensors, and wait: for uploads, too, as the script may write again after this."""
        for tensor in tensors:
            copy = self._copy_of(tensor)
            self.backend.begin_read(tensor, copy.under(tensor))
            copy.run = self._runs
        self.backend.synchronize()


class Copy:
    """An array on the host for what lies in a place of a device's memory.

    owner: the id of the net whose blob that is (None: it is a parameter). is_input: nothing but the
    script writes to it. run: how many runs there had been when it was brought. is_lent: a script
    may have written to it since.
    """

    tensor: Callable[[], Tensor | None]
    """The tensor there by which it was last found."""
    lease: Callable[[], Lease | None] = staticmethod(lambda: None)
    """Of what a script has of it."""

    def __init__(self, array: np.ndarray, place: Key, owner: int | None, is_input: bool) -> None:
        self.array, self.place, self.owner, self.is_input = array, place, owner, is_input
        self.run, self.is_lent = -1, False

    def lend(self, shape: Shape) -> np.ndarray:
        """The array under a shape, for a script."""
        lease = self.lease()
        if lease is None:
            lease = Lease(self)
            self.lease = weakref.ref(lease)
        return lease.array(shape, StagingArray)

    def under(self, tensor: Tensor) -> np.ndarray:
        """The array under the shape of a tensor there."""
        same = self.array.shape == tensor.shape
        return self.array if same else self.array.reshape(tensor.shape)


def key(tensor: Tensor) -> Key:
    """The key of a tensor's memory: its address and its size."""
    return tensor.address, tensor.count


@functools.cache
def store_of(backend: Backend) -> Store:
    """The one store of a backend: nets on it share tensors."""
    return (Store if backend.name == "cpu" else DeviceStore)(backend)
