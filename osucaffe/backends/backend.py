"""What a backend is: memory, steps made of calls, a clock. `Cpu` and `Cuda` are the two.

What a backend need not be able to do has a default here: an empty set, None, or what comes to the
same where work is done when a step returns.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO

import numpy as np

from .primitives.recording import Primitive
from .random import RandomState
from .records import ImageDecoder, PhotoScaler, RecordCopier, ScaledCrops
from .tensor import Run, Shape, Step, Tensor, sequence
from .uploads import Uploads

Memory = Any
"""A flat uint8 array of the backend's kind: NumPy's or CuPy's."""
Prepared = tuple[Primitive, Run]
"""A call, and what runs it."""
Stream = Any
"""What work is enqueued on (CuPy's); None on the host."""


class Timer:
    """Times of marks between steps: `begin`, `mark` after each part, `read`.

    track: the device whose time it is, or "" for the host's own.
    """

    track = ""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def begin(self) -> None:
        """The first part is about to be run."""
        self._marks = [time.perf_counter()]

    def mark(self) -> None:
        """A part has been run."""
        self._marks.append(time.perf_counter())

    def time_of(self, event: Any) -> float:
        """When a device came to an event, on the same clock; the host has no such events."""
        raise NotImplementedError

    def read(self) -> list[float]:
        """Where the first part began and where each ended, in seconds of `time.perf_counter`."""
        return self._marks


class Backend(ABC):
    """Runs nets on a device.

    dtype: the element type of blobs. random: the state by which the calls draw that are prepared
    while it is set.
    """

    name: str
    dtype: str
    random: RandomState

    # -- what a net may offer it, beyond the calls as they are recorded --------------------------

    fuses_relu_backward: tuple[type[Primitive], ...] = ()
    """Primitives that can apply the backward pass of a ReLU to the gradient that they write."""
    overlaps: tuple[type[Primitive], ...] = ()
    """Primitives that overlap with the calls that follow, none of which waits for their results."""
    adds: tuple[type[Primitive], ...] = ()
    """Primitives that can add a tensor to what they compute, in its memory."""
    enabled_passes: frozenset[str] = frozenset()
    """Passes by which it gains, of those that are for some backends only
    (`graph/passes/pipeline.py`)."""
    activations: frozenset[str] = frozenset()
    """Formulas that a convolution or inner product may end with, where nothing runs backward: its
    `activation` is the call that would apply it."""
    moves: int = 0
    """How often memory of nets was given up for other: what was captured before holds addresses
    that are not theirs any more."""
    raw_records: bool = False
    """Whether it wants records as they are stored, and transforms them itself."""

    def adds_gradient(self, call: Primitive) -> bool:
        """Whether a call can add another gradient to the one that it writes, and mask the sum."""
        return False

    def image_decoder(self, *, always: bool) -> ImageDecoder | None:
        """What decodes JPEGs into its own memory by engines made for it, where it has such.

        always: else by what computes. UserError where it could, but lacks a library.
        """
        return None

    def photo_scaler(self, crops: ScaledCrops, shape: Shape) -> PhotoScaler | None:
        """What scales batches of packed photos, uint8 of this shape, in its own memory, where that
        is faster than to scale them on the host."""
        return None

    def map_file(self, file: BinaryIO) -> RecordCopier | None:
        """What copies records from a file into its own memory, where there is such a thing."""
        return None

    # -- streams ---------------------------------------------------------------------------------

    stream: Stream = None
    """Where it computes."""
    current: Stream = None
    """Where it launches just now."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all steps have run."""

    # -- arrays, computed with outside of steps --------------------------------------------------

    xp: Any = np
    """What computes with arrays in its memory: NumPy, or CuPy."""

    def array_stream(self) -> Stream:
        """A new stream for `computing_arrays`."""
        return None

    def computing_arrays(self, stream: Stream) -> AbstractContextManager[None]:
        """Let this thread's operations of `xp` go to a stream, and be complete at the end."""
        return nullcontext()

    # -- memory ----------------------------------------------------------------------------------

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """A flat uint8 array of nbytes, not initialized."""

    @abstractmethod
    def memory_at(self, address: int, nbytes: int) -> Memory:
        """Memory as of `allocate` that somebody else keeps at this address."""

    @abstractmethod
    def nbytes(self, tensor: Tensor) -> int:
        """The memory that a tensor takes here, padding included."""

    @abstractmethod
    def place(self, tensor: Tensor, memory: Memory, offset: int) -> None:
        """Let the tensor lie in memory (from `allocate`), offset bytes from its start."""

    def allocate_for(self, tensor: Tensor) -> Memory:
        """Let the tensor lie in memory of its own, not initialized. Returns that memory."""
        memory = self.allocate(self.nbytes(tensor))
        self.place(tensor, memory, 0)
        return memory

    def allocate_zeros_for(self, tensor: Tensor) -> None:
        """Let the tensor lie in memory of its own, all 0."""
        self.allocate_for(tensor)[:] = 0

    @abstractmethod
    def read(self, tensor: Tensor) -> np.ndarray:
        """A copy of the tensor's values on the host, of its shape, whatever its layout."""

    @abstractmethod
    def write(self, tensor: Tensor, values: Any) -> None:
        """Set the tensor's values from an array that can be broadcast to its shape."""

    def begin_write(self, tensor: Tensor, values: np.ndarray) -> None:
        """Begin to set the values of a row-major float32 tensor, from a contiguous array of the
        same: it may change once the backend was synchronized."""
        self.write(tensor, values)

    def begin_read(self, tensor: Tensor, values: np.ndarray) -> None:
        """Begin to copy the values of a row-major float32 tensor to a contiguous array of the
        same: they are there once the backend was synchronized."""
        values[...] = self.read(tensor)

    @abstractmethod
    def store(self, x: Tensor, target: Tensor, index: int) -> None:
        """Copy x to target[index], without waiting. Both are row-major, and of one type."""

    def refresh_copies(self, tensors: Iterable[Tensor]) -> None:
        """Steps have changed these tensors: update whatever else holds their values."""
        return None

    def uploads(self) -> Uploads:
        """What copies from the host into its memory, outside of steps."""
        return Uploads()

    def memory_in_use(self) -> dict[str, int]:
        """Bytes that it holds in addition to the nets', by purpose."""
        return {}

    def low_precision_arena(self, arena: Tensor) -> Tensor | None:
        """One flat tensor of the 16-bit copies of all parameters in a flat tensor, if it has any:
        they lie in it as these do."""
        return None

    def renew_exact(
        self, arena: Tensor, parts: Iterable[tuple[Tensor, int, int]], *, copies: bool
    ) -> Run:
        """A step for those of these parameters that steps read themselves: they become what lies in
        `low_precision_arena` for them, as it has come from elsewhere; or this what they are
        (copies). parts: parameters, and elements first .. last - 1 of the arena of each."""
        return sequence([])

    # -- steps -----------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, calls: Iterable[Primitive], beside: Sequence[Primitive] = ()) -> list[Step]:
        """The steps that run calls. Layouts of their flexible tensors are chosen from here on.

        beside: calls of their net that were prepared before, or will be, if they run.
        """

    @abstractmethod
    def begin_forward(self, random: RandomState) -> None:
        """Let a forward pass draw its random numbers."""

    def schedule(self, calls: Sequence[Prepared]) -> list[Run]:
        """The steps of the calls in their order, where those that may overlap others do."""
        return [step for _, step in calls]

    def capture(self, steps: Sequence[Run]) -> Run:
        """One step that runs these, and may be replayed as a whole."""
        return sequence(steps)

    def low_priority(self, step: Run) -> Run:
        """A step that runs another after what is enqueued so far, in the room that what follows
        leaves on the device; `join_low_priority` waits for it."""
        return step

    def join_low_priority(self) -> None:
        """Let what follows run after all that runs at `low_priority`."""
        return None

    def timer(self) -> Timer:
        """A clock for parts of a net's steps."""
        return Timer()
