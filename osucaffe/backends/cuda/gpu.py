"""A GPU as calls see it: its memory and streams, the layouts of tensors, random numbers, and
the 16-bit copies of the parameters."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...errors import UserError
from ..backend import Backend
from ..random import RandomState, call_key
from ..tensor import Run, Tensor, sequence
from .convolution.cudnn_search import CudnnPlans
from .layout import ITEM_BYTES, Layout, dtype_of, from_bfloat16, in_dtype, to_bfloat16
from .libraries.cublaslt import Products
from .passes.convert import convert
from .runtime.compile import Kernel, kernel
from .runtime.device import Device, describe
from .runtime.launch import launch
from .runtime.out_of_memory import translate_oom
from .runtime.startup import import_cupy

PRIORITY = -1
"""Of the streams that compute, over those for which there is time. The smaller, the sooner."""
PRECISIONS = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Gpu(Backend):
    """A backend but for its steps: see `Cuda`."""

    @translate_oom
    def __init__(self, number: int, precision: str | None) -> None:
        if precision is not None and precision not in PRECISIONS:
            raise UserError(f"unknown precision {precision}: choose {', '.join(PRECISIONS)}")
        self.cupy = self.xp = import_cupy()
        count = self.cupy.cuda.runtime.getDeviceCount()
        if not 0 <= number < count:
            raise UserError(
                f"GPU {number} does not exist: there are {count}, numbered from 0 "
                "(`osucaffe device_query` lists them)"
            )
        self.device = self.cupy.cuda.Device(number)
        self.device.use()
        self.properties: Device = describe(self.cupy.cuda.runtime, number)
        precision = precision or self.properties.default_precision
        self.properties.refuse(precision)
        self.precision = precision
        self.dtype = PRECISIONS[precision]
        streams = _streams(self.cupy, number)
        self.stream, self.overlap_stream, self.low_priority_stream, self.upload_stream = streams
        self.current = self.stream
        self.stream.use()
        self.random = RandomState()
        # What belongs to a net goes with it.
        self._counters: WeakKeyDictionary[RandomState, Tensor] = WeakKeyDictionary()
        self._copies: WeakKeyDictionary[Tensor, Tensor] = WeakKeyDictionary()
        self._copied_arenas: WeakKeyDictionary[Tensor, Tensor] = WeakKeyDictionary()

    @functools.cached_property
    def cudnn(self) -> CudnnPlans:
        """cuDNN's plans on this device."""
        plans = CudnnPlans(self.device, self.properties.name)
        plans.use(self.current)
        return plans

    @functools.cached_property
    def products(self) -> Products:
        """cuBLASLt's algorithms on this device."""
        return Products(self.device)

    @functools.cached_property
    def _set_floats(self) -> Kernel:
        return kernel("values", "set_floats")

    @functools.cached_property
    def _set_step(self) -> Kernel:
        return kernel("values", "set_step")

    # -- memory ----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Any:
        """A flat uint8 array of nbytes on the device, not initialized."""
        try:
            return self.cupy.empty(max(nbytes, 1), np.uint8)
        except self.cupy.cuda.memory.OutOfMemoryError:
            free, total = self.device.mem_info
            raise UserError(
                f"GPU {self.device.id} is out of memory: {nbytes / 2**30:.2f} GiB more are needed, "
                f"{free / 2**30:.2f} of {total / 2**30:.2f} GiB are free; lower the batch size or "
                f"choose a 16-bit precision"
            ) from None

    def memory_at(self, address: int, nbytes: int) -> Any:
        """Memory as of `allocate` that somebody else keeps at this address."""
        memory = self.cupy.cuda.UnownedMemory(address, nbytes, None, self.device.id)
        return self.cupy.ndarray(
            (nbytes,), np.uint8, memptr=self.cupy.cuda.MemoryPointer(memory, 0)
        )

    def nbytes(self, tensor: Tensor) -> int:
        """The memory that a tensor takes here."""
        return tensor.size * ITEM_BYTES[dtype_of(tensor)]

    def place(self, tensor: Tensor, memory: Any, offset: int) -> None:
        """Let the tensor lie in memory (from `allocate`), offset bytes from its start."""
        piece = memory[offset : offset + self.nbytes(tensor)]
        tensor.place(piece.view(_array_dtype(tensor)), int(piece.data.ptr))

    def read(self, tensor: Tensor) -> np.ndarray:
        """A copy of the tensor's values on the host, of its shape, whatever its layout."""
        self.stream.synchronize()
        values = tensor.array.reshape(-1).get()
        if dtype_of(tensor) == "bfloat16":
            values = from_bfloat16(values)
        elif dtype_of(tensor) == "float16":
            values = values.astype(np.float32)
        if tensor.layout is None:
            return values.reshape(tensor.shape)
        return tensor.layout.from_memory(values, tensor.shape)

    def write(self, tensor: Tensor, values: Any) -> None:
        """Set the tensor's values from an array that can be broadcast to its shape."""
        values = np.broadcast_to(np.asarray(values), tensor.shape)
        if tensor.layout is not None:
            values = tensor.layout.to_memory(values)
        if dtype_of(tensor) == "bfloat16":
            values = to_bfloat16(values)
        flat = np.ascontiguousarray(values, _array_dtype(tensor)).reshape(-1)
        if flat.dtype == np.float32 and flat.size <= 4:  # without waiting: a learning rate, say
            arguments = [tensor, flat.size, *flat, *[0] * (4 - flat.size)]
            launch(self._set_floats, 1, arguments, block=1)()
        elif flat.size:
            self._copy(tensor.address, flat)
            self.stream.synchronize()
        self.refresh_copies([tensor])

    def begin_write(self, tensor: Tensor, values: np.ndarray) -> None:
        """Begin to set the values of a row-major float32 tensor, from a contiguous array of the
        same: it may change once the backend was synchronized."""
        self._copy(tensor.address, values)
        self.refresh_copies([tensor])

    def begin_read(self, tensor: Tensor, values: np.ndarray) -> None:
        """Begin to copy the values of a row-major float32 tensor to a contiguous array of the
        same: they are there once the backend was synchronized."""
        runtime = self.cupy.cuda.runtime
        to, kind = values.ctypes.data, runtime.memcpyDeviceToHost
        runtime.memcpyAsync(to, tensor.address, values.nbytes, kind, self.stream.ptr)

    def store(self, x: Tensor, target: Tensor, index: int) -> None:
        """Copy x to target[index], without waiting. Both are row-major, and of one type."""
        runtime, nbytes = self.cupy.cuda.runtime, self.nbytes(x)
        place, kind = target.address + index * nbytes, runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(place, x.address, nbytes, kind, self.stream.ptr)

    def _copy(self, address: int, flat: np.ndarray) -> None:
        """Begin to copy host memory to the device, in the order of the stream."""
        runtime = self.cupy.cuda.runtime
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(address, flat.ctypes.data, flat.nbytes, kind, self.stream.ptr)

    def upload(self, table: np.ndarray) -> Tensor:
        """A copy of the table on the device, as bytes."""
        table = np.ascontiguousarray(table)
        copy = Tensor((table.nbytes,), "uint8", persistent=True)
        self.allocate_for(copy)
        self._copy(copy.address, table)
        self.stream.synchronize()
        return copy

    def synchronize(self) -> None:
        """Wait until all steps have run."""
        self.stream.synchronize()

    def array_stream(self) -> Any:
        """A new stream for `computing_arrays`."""
        return self.cupy.cuda.Stream(non_blocking=True)

    @contextlib.contextmanager
    def computing_arrays(self, stream: Any) -> Iterator[None]:
        """Let this thread's operations of CuPy go to a stream, and be complete at the end."""
        self.device.use()
        before = self.cupy.cuda.get_current_stream()
        stream.use()
        try:
            yield
            stream.synchronize()
        finally:
            before.use()

    # -- 16-bit copies of the parameters ----------------------------------------------------------

    def low_precision(self, parameter: Tensor) -> Tensor:
        """The parameter in the type that convolutions and products read (itself in fp32, tf32).

        The copy follows the parameter: `write` and the update rule renew it.
        """
        if self.dtype == "float32":
            return parameter
        if (copy := self._copies.get(parameter)) is None:
            copy = self._copies[parameter] = in_dtype(parameter, self.dtype, f"{parameter.name}.16")
            for arena, low in self._copied_arenas.items():
                if _is_inside(parameter, arena):
                    self._place_copy(copy, parameter, arena, low)
            if copy.array is None:
                self.allocate_for(copy)
            if parameter.array is not None:
                self._refresh(parameter, copy)
        return copy

    def low_precision_arena(self, arena: Tensor) -> Tensor | None:
        """Let the 16-bit copies of all parameters in a flat tensor, and those that are made later,
        lie as these do, so that an update can write both in one pass. None where there are none."""
        if arena in self._copied_arenas:
            return self._copied_arenas[arena]
        inside = [each for each in self._copies.items() if _is_inside(each[0], arena)]
        if not inside:
            return None
        self.moves += 1
        for _, copy in inside:  # their memory can be had again
            copy.array = None
        low = self._copied_arenas[arena] = in_dtype(arena, self.dtype, "arena.16")
        self.allocate_for(low)
        for parameter, copy in inside:
            self._place_copy(copy, parameter, arena, low)
            self._refresh(parameter, copy)
        return low

    def renew_exact(
        self, arena: Tensor, parts: Iterable[tuple[Tensor, int, int]], *, copies: bool
    ) -> Run:
        # Convolutions read biases themselves, though products read copies of theirs.
        low, ranges, steps = self.low_precision_arena(arena), list[list[int]](), list[Run]()
        for parameter, first, last in parts:
            if low is not None and (parameter not in self._copies or len(parameter.shape) < 2):
                if ranges and ranges[-1][1] == first:
                    ranges[-1][1] = last
                else:
                    ranges.append([first, last])
        for first, last in ranges:
            exact = arena.view((last - first,), first)
            copy = in_dtype(exact, self.dtype)
            assert low is not None
            self.place(copy, low.array.reshape(-1).view(np.uint8), 2 * first)
            steps.append(convert(exact, copy) if copies else convert(copy, exact))
        return sequence(steps)

    def _place_copy(self, copy: Tensor, parameter: Tensor, arena: Tensor, low: Tensor) -> None:
        """Let the copy of a parameter lie in that of the arena."""
        start = (parameter.address - arena.address) // 2
        self.place(copy, low.array.reshape(-1).view(np.uint8), start)

    def refresh_copies(self, tensors: Iterable[Tensor]) -> None:
        """Renew the 16-bit copies of tensors that steps have changed."""
        changed = {each for tensor in tensors for each in (tensor, tensor.whole, *tensor.views)}
        for parameter, copy in self._copies.items():
            if parameter in changed:
                self._refresh(parameter, copy)

    def _refresh(self, parameter: Tensor, copy: Tensor) -> None:
        convert(parameter, copy)()

    # -- random numbers --------------------------------------------------------------------------

    def key(self, key: int) -> int:
        """The key of squares32 for a call of the net that is being prepared."""
        return call_key(self.random.seed, key)

    def counter(self) -> Tensor:
        """The device's copy of the current RandomState: step and rank, uint64."""
        random = self.random
        if random not in self._counters:
            self._counters[random] = self.upload(np.array([random.step, random.rank], np.uint64))
        return self._counters[random]

    def begin_forward(self, random: RandomState) -> None:
        """Let the device draw the random numbers of this forward pass."""
        if counter := self._counters.get(random):
            launch(self._set_step, 1, [counter, random.step, random.rank], block=1)()

    # -- streams and layouts ----------------------------------------------------------------------

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Launch everything on this stream meanwhile."""
        before = self.current
        self._use(stream)
        try:
            yield
        finally:
            self._use(before)

    def _use(self, stream: Any) -> None:
        self.current = stream
        stream.use()
        if "cudnn" in self.__dict__:  # made when it was first needed
            self.cudnn.use(stream)

    def choose_layout(self, tensor: Tensor, dtype: str | None = None) -> None:
        """Choose the layout of a tensor, if it is still open."""
        if not tensor.layout_undecided:
            return
        root = tensor.root
        layout = self.layout_for(root, dtype)
        if layout is None:
            root.flexible = False
        else:
            root.layout = layout

    def layout_for(self, root: Tensor, dtype: str | None = None) -> Layout | None:
        """What `choose_layout` chooses: blobs are of the precision's type, channels last;
        parameters and outputs stay row-major float32 (None)."""
        if root.persistent:
            return None
        chosen = dtype or (self.dtype if root.dtype == "float32" else root.dtype)
        return Layout(root.shape, chosen, len(root.shape) > 2)


def _is_inside(parameter: Tensor, arena: Tensor) -> bool:
    """Whether a parameter lies in this flat tensor of float32."""
    return 0 <= parameter.address - arena.address < 4 * arena.size


@functools.cache
def _streams(cupy: Any, device: int) -> tuple[Any, ...]:
    """A device's streams, shared by its backends: to compute, to overlap that, for work of low
    priority, and to upload."""
    return tuple(
        cupy.cuda.Stream(non_blocking=True, priority=priority)
        for priority in (PRIORITY, PRIORITY, 0, 0)
    )


def _array_dtype(tensor: Tensor) -> np.dtype:
    """CuPy has no bfloat16: its bits are held as uint16."""
    name = dtype_of(tensor)
    return np.dtype(np.uint16 if name == "bfloat16" else name)
