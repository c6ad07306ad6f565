"""Uploads of batches and tables that overlap the computation; and batches of bytes on the GPU
that threads fill."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...tensor import Run, Shape, Tensor
from ...uploads import Mark, Uploads, pages
from ..gpu import Gpu

SLOTS = 2


class Upload:
    """One tensor that every iteration refills.

    A batch goes from the host to a slot on a stream of its own, while the iteration before it
    computes, and from there to the tensor's memory, whose address never changes.
    """

    def __init__(self, backend: Gpu, tensor: Tensor) -> None:
        cupy = backend.cupy
        self.backend, self.tensor = backend, tensor
        self.runtime = cupy.cuda.runtime
        self.nbytes = backend.nbytes(tensor)
        self.memory = backend.allocate(self.nbytes)
        self.slots = [backend.allocate(self.nbytes) for _ in range(SLOTS)]
        self.arrived = [cupy.cuda.Event(disable_timing=True) for _ in range(SLOTS)]
        self.taken = [cupy.cuda.Event(disable_timing=True) for _ in range(SLOTS)]
        self.registered: dict[int, Any] = {}
        self.count = 0
        backend.place(tensor, self.memory, 0)

    def wait(self) -> None:
        """Wait until the last batch has left the host's memory."""
        if self.count:
            self.arrived[(self.count - 1) % SLOTS].synchronize()

    def start(self) -> None:
        """Copy the memory that the tensor was placed in, and place it here again."""
        source, address, slot = self.tensor.array, self.tensor.address, self.count % SLOTS
        kinds = self.runtime
        kind = kinds.memcpyDeviceToDevice  # of images that were decoded there
        if isinstance(source, np.ndarray):
            kind = kinds.memcpyHostToDevice
            self._register(source, address)
        there, here = self.backend.upload_stream, self.backend.stream
        staged, target = int(self.slots[slot].data.ptr), int(self.memory.data.ptr)
        if self.count >= SLOTS:
            there.wait_event(self.taken[slot])
        kinds.memcpyAsync(staged, address, self.nbytes, kind, there.ptr)
        self.arrived[slot].record(there)
        here.wait_event(self.arrived[slot])
        kinds.memcpyAsync(target, staged, self.nbytes, kinds.memcpyDeviceToDevice, here.ptr)
        self.taken[slot].record(here)
        self.count += 1
        self.backend.place(self.tensor, self.memory, 0)

    def _register(self, source: Any, address: int) -> None:
        """Pin the host memory when it is first seen: only then is the copy truly asynchronous."""
        if address not in self.registered and not address % mmap.PAGESIZE:
            self.registered[address] = source  # which keeps it alive as long as it is pinned
            pin(self.runtime, source, self.nbytes)


def pin(runtime: Any, memory: np.ndarray, nbytes: int) -> None:
    """Let the GPU read the host's memory by itself, as long as the array lives.

    Only memory that begins with a page is pinned (the data layers' is): CUDA refuses to copy
    from an array of which only a part shares its pages with pinned memory.
    """
    address = memory.ctypes.data
    if address % mmap.PAGESIZE:
        return
    # Where the system lets none be pinned, the copy is only slower.
    with contextlib.suppress(runtime.CUDARuntimeError):
        runtime.hostRegister(address, nbytes, 0)
        weakref.finalize(memory, runtime.hostUnregister, address).atexit = False


class DeviceUploads(Uploads):
    """Copies to a GPU's memory, on the stream of uploads."""

    def __init__(self, backend: Gpu) -> None:
        self._backend = backend
        self._runtime = backend.cupy.cuda.runtime
        self._pinned: set[int] = set()

    def free_bytes(self) -> int:
        """What is free on the device, and what CuPy holds of it unused."""
        free, _ = self._backend.device.mem_info
        return int(free) + int(self._backend.cupy.get_default_memory_pool().free_bytes())

    def memory(self, shape: Shape, dtype: str) -> np.ndarray:
        count = math.prod(shape)
        memory = np.frombuffer(pages(count * np.dtype(dtype).itemsize), dtype, count)
        pin(self._runtime, memory, memory.nbytes)
        return memory.reshape(shape)

    def pin(self, memory: np.ndarray) -> None:
        address = memory.ctypes.data
        if address not in self._pinned:
            self._pinned.add(address)
            weakref.finalize(memory, self._pinned.discard, address).atexit = False
            pin(self._runtime, memory, memory.nbytes)

    def mark(self) -> Mark:
        return self._recorded(self._backend.stream)

    def send(self, rows: np.ndarray, tensor: Tensor, first: int = 0, after: Mark = None) -> Run:
        stream = self._backend.upload_stream
        if after is not None:
            stream.wait_event(after)
        row = self._backend.nbytes(tensor) // tensor.shape[0]
        target, source = tensor.address + first * row, rows.ctypes.data
        kind = self._runtime.memcpyHostToDevice
        if len(rows) > 1 and rows.strides[0] != row:
            rectangle = (target, row, source, rows.strides[0], row, len(rows))
            self._runtime.memcpy2DAsync(*rectangle, kind, stream.ptr)
        else:
            self._runtime.memcpyAsync(target, source, rows.nbytes, kind, stream.ptr)
        done: Run = self._recorded(stream).synchronize
        return done

    def wait(self) -> None:
        self._backend.stream.wait_event(self._recorded(self._backend.upload_stream))

    def _recorded(self, stream: Any) -> Any:
        event = self._backend.cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        return event


def feed_step(backend: Gpu, tensors: Sequence[Tensor], function: Callable[[], None]) -> Run:
    """A step that lets `function` place tensors in the next batch's host memory, and uploads it."""
    uploads = [Upload(backend, tensor) for tensor in tensors]

    def step() -> None:
        for upload in uploads:
            upload.wait()
        function()
        for upload in uploads:
            upload.start()

    return step


class BatchMemory:
    """Gives memory for batches, and copies records there, on a stream: a Filler (records.py)."""

    def __init__(self, backend: Gpu, stream: Any) -> None:
        self._backend, self._runtime = backend, backend.cupy.cuda.runtime
        self._stream = stream

    def allocate(self, shape: Shape) -> Any:
        """Memory on the GPU for a batch: uint8 of this shape."""
        memory = self._backend.allocate(math.prod(shape)).reshape(shape)
        self._backend.synchronize()  # what had it before may be at work on another stream
        return memory

    def put(self, image: np.ndarray, place: int, batch: Any) -> None:
        """Copy a record, or some after each other, to a place of a batch."""
        self._backend.device.use()  # each thread has a current device of its own
        address = int(batch.data.ptr) + place * (batch.nbytes // len(batch))
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(address, image.ctypes.data, image.nbytes, kind, self._stream.ptr)
        self._stream.synchronize()
