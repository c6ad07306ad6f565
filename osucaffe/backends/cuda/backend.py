"""Owns the CUDA backend: memory on one GPU, its stream, and the preparation of calls."""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from ...errors import UserError
from ..backend import Backend
from ..random import RandomState, call_key
from ..tensor import Call, Step, Tensor, sequence
from . import registry
from .autotune.trial import trial_numbers
from .autotune.tuner import Tuner
from .convolution.cudnn import CudnnPlans
from .convolution.gemm import Products
from .layout import ITEM_BYTES, Layout, dtype_of, from_bfloat16, to_bfloat16, with_layout
from .libraries import cudnn
from .libraries.jpegs import Decoder, find_decoder
from .passes.convert import convert
from .runtime.background import shared_interpreter
from .runtime.compile import Kernel, kernel, texts
from .runtime.device import Device, describe
from .runtime.graphs import arrange, capture, on_other_stream
from .runtime.launch import launch
from .runtime.mapped_file import MappedFile, map_file
from .runtime.out_of_memory import translate_oom
from .runtime.startup import import_cupy
from .runtime.timer import DeviceTimer
from .runtime.upload import DeviceUploads

PRIORITY = -1
"""Of the streams that compute, over those for which there is time. The smaller, the sooner."""
PRECISIONS = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Cuda(Backend):
    """Runs nets on one GPU.

    number: of the GPU. precision: "fp32", "tf32", "bf16" or "fp16": what convolutions and products
    compute in, and in the 16-bit ones also what blobs are held in; parameters, their gradients,
    history and sums are float32 always. graphs: replay what is captured as CUDA graphs.
    """

    name = "cuda"
    fuses_relu_backward = frozenset((
        "average_pooling_backward", "convolution_backward_data", "dropout_backward",
        "inner_product_backward_data", "lrn_backward", "max_pooling_backward", "split", "sum",
    ))  # fmt: skip
    overlaps = frozenset(("convolution_backward_filter", "inner_product_backward_filter", "total"))
    raw_records = True
    """A byte a pixel is quicker to upload than a float, and `transform` takes no time here."""

    @translate_oom
    def __init__(
        self, number: int = 0, precision: str | None = "fp32", *, graphs: bool = True
    ) -> None:
        if precision is not None and precision not in PRECISIONS:
            raise UserError(f"unknown precision {precision}: choose {', '.join(PRECISIONS)}")
        self.cupy = import_cupy()
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
        registry.load()
        self.precision = precision
        self.graphs = graphs
        self.dtype = PRECISIONS[precision]
        streams = _streams(self.cupy, number)
        self.stream, self.overlap_stream, self.low_priority_stream, self.upload_stream = streams
        self.current = self.stream
        self.stream.use()
        self.random = RandomState()
        self._counters: dict[int, tuple[RandomState, int]] = {}
        self._tables: list[Any] = []
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._copied_arenas: dict[int, tuple[Tensor, Tensor]] = {}
        self._image_decoders: dict[bool, Decoder | None] = {}

    @functools.cached_property
    def cudnn(self) -> CudnnPlans:
        """cuDNN's plans on this device."""
        return CudnnPlans(self)

    @functools.cached_property
    def products(self) -> Products:
        """cuBLASLt's algorithms on this device."""
        return Products(self)

    @functools.cached_property
    def tuner(self) -> Tuner:
        """What chooses among candidates, by timing them on this device: again, where the libraries
        or our kernels have changed."""
        kernels = f"{zlib.crc32(texts().encode()):08x}"
        libraries = f"cudnn {cudnn.version()}, cublaslt {self.products.library.version}"
        return Tuner(self, f"{self.properties.name}, {libraries}, kernels {kernels}")

    @functools.cached_property
    def _set_floats(self) -> Kernel:
        return kernel("values", "set_floats")

    @functools.cached_property
    def _set_step(self) -> Kernel:
        return kernel("values", "set_step")

    @functools.cached_property
    def trial_source(self) -> int:
        """Where memory to try candidates on is copied from."""
        return self.upload(trial_numbers())

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
            given = [*flat, *[np.float32(0)] * (4 - flat.size)]
            arguments = [tensor, np.int32(flat.size), *given]
            launch(self._set_floats, 1, arguments, block=1)()
        elif flat.size:
            self._copy(tensor.address, flat)
        if id(tensor) in self._copies:
            self._refresh(*self._copies[id(tensor)])

    def store(self, x: Tensor, target: Tensor, index: int) -> None:
        """Copy x to target[index], without waiting. Both are row-major, and of one type."""
        runtime, nbytes = self.cupy.cuda.runtime, self.nbytes(x)
        place, kind = target.address + index * nbytes, runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(place, x.address, nbytes, kind, self.stream.ptr)

    def _copy(self, address: int, flat: np.ndarray) -> None:
        """Copy host memory to the device, in the order of the stream."""
        runtime = self.cupy.cuda.runtime
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(address, flat.ctypes.data, flat.nbytes, kind, self.stream.ptr)
        self.stream.synchronize()

    def upload(self, table: np.ndarray) -> int:
        """The address of a copy of the table on the device, which lives as long as this backend."""
        memory = self.allocate(table.nbytes)
        self._tables.append(memory)
        address = int(memory.data.ptr)
        self._copy(address, np.ascontiguousarray(table))
        return address

    def image_decoder(self, *, always: bool) -> Decoder | None:
        """The device's JPEG engines, if it has any; always: else its multiprocessors."""
        if always not in self._image_decoders:
            self._image_decoders[always] = find_decoder(self, always=always)
        return self._image_decoders[always]

    def map_file(self, file: BinaryIO) -> MappedFile | None:
        """What copies records from a file into this device's memory; None where it cannot be."""
        return map_file(self, file)

    def synchronize(self) -> None:
        """Wait until all steps have run."""
        self.stream.synchronize()

    def uploads(self) -> DeviceUploads:
        """What fills the device's memory beside its steps."""
        return DeviceUploads(self)

    def memory_in_use(self) -> dict[str, int]:
        """Bytes that this backend holds beside a net's own, by what they are for."""
        copies = [copy for _, copy in self._copies.values()]
        return {
            "16-bit copies of the parameters": sum(map(self.nbytes, copies)),
            "all of the GPU's memory that is in use here": (
                self.cupy.get_default_memory_pool().used_bytes()
            ),
        }

    def timer(self) -> DeviceTimer:
        """A clock for parts of a net's steps."""
        return DeviceTimer(self)

    # -- 16-bit copies of the parameters ----------------------------------------------------------

    def low_precision(self, parameter: Tensor) -> Tensor:
        """The parameter in the type that convolutions and products read (itself in fp32, tf32).

        The copy follows the parameter: `write` and the update rule renew it.
        """
        if self.dtype == "float32":
            return parameter
        if id(parameter) not in self._copies:
            layout = parameter.layout
            shape, nhwc = (layout.shape, layout.nhwc) if layout else (parameter.shape, False)
            copy = Tensor(parameter.shape, name=f"{parameter.name}.16")
            with_layout(copy, Layout(shape, self.dtype, nhwc))
            self.give_memory(copy)
            self._copies[id(parameter)] = (parameter, copy)
            if parameter.array is not None:
                self._refresh(parameter, copy)
        return self._copies[id(parameter)][1]

    def low_precision_arena(self, arena: Tensor) -> Tensor | None:
        """Let the 16-bit copies of all parameters in a flat tensor lie as these do, so that an
        update can write both in one pass. None where there are none."""
        if id(arena) in self._copied_arenas:
            return self._copied_arenas[id(arena)][1]
        inside = [
            (parameter, copy)
            for parameter, copy in self._copies.values()
            if 0 <= parameter.address - arena.address < self.nbytes(arena)
        ]
        if not inside:
            return None
        for _, copy in inside:  # their memory can be had again
            copy.array = None
        whole = with_layout(
            Tensor(arena.shape, name="arena.16"), Layout(arena.shape, self.dtype, False)
        )
        memory = self.allocate(self.nbytes(whole))
        self.place(whole, memory, 0)
        for parameter, copy in inside:
            self.place(copy, memory, (parameter.address - arena.address) // 2)
            self._refresh(parameter, copy)
        self._copied_arenas[id(arena)] = (arena, whole)
        return whole

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Renew the 16-bit copies of tensors that steps have changed."""
        for tensor in tensors:
            if id(tensor) in self._copies:
                self._refresh(*self._copies[id(tensor)])

    def _refresh(self, parameter: Tensor, copy: Tensor) -> None:
        convert(parameter, copy)()

    # -- random numbers --------------------------------------------------------------------------

    def key(self, key: int) -> int:
        """The key of squares32 for a call of the net that is being prepared."""
        return call_key(self.random.seed, key)

    def counter(self) -> int:
        """The address of the device's copy of the current RandomState: step and rank, uint64."""
        random = self.random
        if id(random) not in self._counters:
            address = self.upload(np.array([random.step, random.rank], np.uint64))
            self._counters[id(random)] = (random, address)
        return self._counters[id(random)][1]

    def begin_forward(self, random: RandomState) -> None:
        """Let the device draw the random numbers of this forward pass."""
        if id(random) in self._counters:
            address = np.uint64(self._counters[id(random)][1])
            arguments = [address, np.uint64(random.step), np.uint64(random.rank)]
            launch(self._set_step, 1, arguments, block=1)()

    # -- steps -----------------------------------------------------------------------------------

    @translate_oom
    def prepare(self, calls: Iterable[Call]) -> list[Step]:
        """The steps that run calls. Layouts of their flexible tensors are chosen from here on."""
        with shared_interpreter():
            steps = [translate_oom(step) for step in registry.prepare(self, calls)]
        if "cudnn" in self.__dict__:  # made when it is first needed
            self.cudnn.forget()
        return steps

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

    def arrange(self, calls: Sequence[tuple[Call, Step]]) -> list[Step]:
        """The steps of the calls in their order, where those that may run beside others do."""
        return arrange(self, calls)

    def low_priority(self, step: Step) -> Step:
        """A step that runs another behind what is enqueued so far, in the room that what follows
        leaves on the device; `join_low_priority` waits for it."""
        return on_other_stream(self, self.low_priority_stream, step)

    def join_low_priority(self) -> None:
        """Let what follows run behind all that runs at `low_priority`."""
        done = self.cupy.cuda.Event(disable_timing=True)
        done.record(self.low_priority_stream)
        self.current.wait_event(done)

    def capture(self, steps: Sequence[Step]) -> Step:
        """One step that runs these: as they are at first, then as one CUDA graph."""
        return translate_oom(capture(self, steps) if self.graphs else sequence(steps))

    def choose_layout(self, tensor: Tensor, dtype: str | None = None) -> None:
        """Choose the layout of a tensor, if it is still open."""
        if not tensor.is_open:
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


@functools.cache
def _streams(cupy: Any, device: int) -> tuple[Any, ...]:
    """The streams to compute, to do so beside that, to do so in what room these leave, and to
    upload: shared on a device."""
    return tuple(
        cupy.cuda.Stream(non_blocking=True, priority=each) for each in (PRIORITY, PRIORITY, 0, 0)
    )


def _array_dtype(tensor: Tensor) -> np.dtype:
    """CuPy has no bfloat16: its bits are held as uint16."""
    name = dtype_of(tensor)
    return np.dtype(np.uint16 if name == "bfloat16" else name)
