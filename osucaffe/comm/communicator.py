"""What a communicator is: ranks that do collective operations on flat arrays together.

Every rank calls the same operations in the same order (also those of several communicators, if
these share a GPU), on arrays of one size and type: float32, float64, float16, int32, or uint16 for
the bits of bfloat16. All of them work in place, or within one array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import numpy as np

from ..trace import running
from .algorithms import Operation, Step, part
from .host import DTYPES


class Handle:
    """An operation in progress. The array must not be touched until `wait` returns."""

    def wait(self, stream: Any = None) -> None:
        """Return when the operation is complete here; raise what it raised.

        stream: waits instead of the host, if the operation runs on a stream.
        """


class _Pending(Handle):
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self, stream: Any = None) -> None:
        self._future.result()


class Recorder(Protocol):
    """What times operations of communicators: see `study/profiling/recorder.py`."""

    def post(
        self, comm: Communicator, operation: Operation, array: Any, begin: Begin, stream: Any
    ) -> Handle:
        """A caller posts an operation: begin it."""

    def carry(
        self,
        comm: Communicator,
        operation: Operation,
        array: Any,
        run: Callable[[], None],
        stream: Any = None,
    ) -> None:
        """A communicator, perhaps inside another one, does its part of an operation: run it."""


Begin = Callable[[], Handle]
DONE = Handle()
_DTYPES = frozenset(map(np.dtype, DTYPES))


class Communicator(ABC):
    """Ranks 0 .. size - 1 that communicate. `level` names the medium, for the tuning table.

    background: operations run one after the other on the communicator's thread, so that the
    caller goes on meanwhile. Without, each is complete when the call returns.

    With a device array comes the `stream` that wrote it; an operation begins when all that was
    enqueued there before has run. On the host it is None.
    """

    has_all_to_all = True
    """Whether `all_to_all` is among its operations."""
    recorder: Recorder | None = None
    """What times its operations, if anything does."""

    def __init__(self, rank: int, size: int, *, level: str, background: bool = False) -> None:
        self.rank = rank
        self.size = size
        self.level = level
        self.background = background
        self._thread: ThreadPoolExecutor | None = None

    @abstractmethod
    def run(self, operation: Operation, array: Any, root: int = 0) -> None:
        """Do one of the collective operations now; return when it is complete here."""

    def carry(self, operation: Operation, array: Any, root: int = 0) -> None:
        """`run`, which a recorder times."""
        if self.recorder is None:
            self.run(operation, array, root)
        else:
            run = partial(self.run, operation, array, root)
            self.recorder.carry(self, operation, array, run)

    def transfer(self, array: Any, step: Step) -> None:
        """Do the transfers of a step; return when they are complete here. (Only `Hierarchical` asks
        for it, of the communicator by MPI that joins all its ranks.)"""
        raise NotImplementedError(f"{type(self).__name__} has no transfers between two ranks")

    def inside(self) -> Sequence[Communicator]:
        """The communicators that this one is composed of, if any."""
        return ()

    def describe_algorithm(self, operation: Operation, array: Any) -> str:
        """A name for the way it does an operation on such an array."""
        return type(self).__name__.lower()

    def broadcast(self, array: Any, root: int = 0, stream: Any = None) -> Handle:
        """Give every rank root's array."""
        return self.collective(Operation.BROADCAST, array, root, stream)

    def reduce(self, array: Any, root: int = 0, stream: Any = None) -> Handle:
        """Sum all arrays into root's. What the other ranks' arrays hold afterwards is undefined."""
        return self.collective(Operation.REDUCE, array, root, stream)

    def all_reduce(self, array: Any, stream: Any = None) -> Handle:
        """Sum all arrays into each of them: the same bits on every rank."""
        return self.collective(Operation.ALL_REDUCE, array, 0, stream)

    def reduce_scatter(self, array: Any, stream: Any = None) -> Handle:
        """Sum all arrays; each rank gets its part of the sum (`part`), in place.

        What the rest of the array holds afterwards is undefined.
        """
        return self.collective(Operation.REDUCE_SCATTER, array, 0, stream)

    def all_gather(self, array: Any, stream: Any = None) -> Handle:
        """Give every rank each rank's part, taken from that rank's array, in place."""
        return self.collective(Operation.ALL_GATHER, array, 0, stream)

    def all_to_all(self, array: Any, stream: Any = None) -> Handle:
        """The first half of each array is cut into one part for each rank, all equally long. Give
        every rank its part of each other's, in the second half of its array, in that one's place.
        """
        return self.collective(Operation.ALL_TO_ALL, array, 0, stream)

    def part(self, count: int, rank: int | None = None) -> tuple[int, int]:
        """The range of an array of `count` elements that is a rank's (None: this one's) part."""
        return part(count, self.size, self.rank if rank is None else rank)

    def close(self) -> None:
        """Wait for what is under way and give everything back."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def collective(
        self, operation: Operation, array: Any, root: int = 0, stream: Any = None
    ) -> Handle:
        """Any of these operations; root: of those that have one."""
        check(array)
        if not 0 <= root < self.size:
            raise ValueError(f"no rank {root} among {self.size}")
        if self.size == 1 or not array.size:
            return DONE
        if self.recorder is None:
            return self._begin(operation, array, root, stream)
        begin = partial(self._begin, operation, array, root, stream)
        return self.recorder.post(self, operation, array, begin, stream)

    def _begin(self, operation: Operation, array: Any, root: int, stream: Any) -> Handle:
        """Do one of the collective operations, or let it be under way."""

        def work() -> None:
            trace = running()
            if trace is None:
                self.carry(operation, array, root)
                return
            with trace.span(describe(operation, array), "communication"):
                self.carry(operation, array, root)

        return self.start(work, stream)

    def sum_by(self, work: Callable[[], None], array: Any, stream: Any = None) -> Handle:
        """An all-reduce of an array that `work` does, by operations of a communicator inside."""
        if self.recorder is None:
            return self.start(work, stream)
        carry = partial(self.recorder.carry, self, Operation.ALL_REDUCE, array, work)
        begin = partial(self.start, carry, stream)
        return self.recorder.post(self, Operation.ALL_REDUCE, array, begin, stream)

    def start(self, work: Callable[[], None], stream: Any = None) -> Handle:
        """Let `work` run in the order of the operations, as they do: on the communicator's thread,
        or now."""
        ready = None if stream is None else stream.record()
        if not self.background:
            _after(ready, work)
            return DONE
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="osucaffe-comm")
        return _Pending(self._thread.submit(_after, ready, work))


class Wrapper(Communicator):
    """A communicator that does its work by another one, which runs in the foreground: as it is, but
    perhaps in the background, or (`run` of others) in another form."""

    def __init__(self, inner: Communicator, *, background: bool = False) -> None:
        super().__init__(inner.rank, inner.size, level=inner.level, background=background)
        self._inner = inner

    def run(self, operation: Operation, array: Any, root: int = 0) -> None:
        """Do one of the collective operations, as it is."""
        self._inner.carry(operation, array, root)

    def part(self, count: int, rank: int | None = None) -> tuple[int, int]:
        """As of the communicator inside."""
        return self._inner.part(count, rank)

    def inside(self) -> Sequence[Communicator]:
        return [self._inner]

    def close(self) -> None:
        """Close the communicator inside, too."""
        super().close()
        self._inner.close()


def _after(ready: Any, work: Callable[[], None]) -> None:
    if ready is not None:
        ready.synchronize()
    work()


def describe(operation: Operation, array: Any) -> str:
    """How a trace calls it."""
    return f"{operation} {array.nbytes:,} B"


def check(array: Any) -> None:
    """ValueError unless the array is flat, contiguous, and of a type that can be reduced."""
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError("a communicator takes flat contiguous arrays")
    if array.dtype not in _DTYPES:  # a type's name takes longer than a small message
        raise ValueError(f"a communicator takes arrays of {', '.join(DTYPES)}, not {array.dtype}")


class Serial(Communicator):
    """One rank, alone."""

    def __init__(self) -> None:
        super().__init__(0, 1, level="serial")

    def run(self, operation: Operation, array: Any, root: int = 0) -> None:
        """Nothing needs to be done."""
