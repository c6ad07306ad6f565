"""The hook between backward and update: what becomes of a bucket of gradients there.

(PyTorch's DDP calls it a communication hook.) Without one, a collective operation sums each bucket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..arena import Buffer
from ..comm.algorithms import Operation
from ..comm.communicator import Communicator
from ..errors import UserError
from ..proto import caffe_pb2
from .buckets import Bucket, Layout, NetLayout


class GradientHook(ABC):
    """Sums the gradients of all ranks in its own way.

    comm: of all ranks; its operations are complete when they have been waited for. net: whose
    gradients. iteration: tells the iteration that is under way. buffers: what is to be
    saved with snapshots, rank 0's for all: see `settle`. xp, stream: see `Backend`.
    """

    parameter: staticmethod[[str], Any] | None = None
    """Reads what follows a colon in --compression (ValueError), the fourth argument of the class;
    None: nothing does."""
    buffers: Sequence[Buffer] = ()
    touched = 0.0, 0.0
    """How often `reduce` reads or writes an element of a bucket, about: in all, and besides for
    each rank whose message it adds."""
    takes = False
    """Whether it gets gradients as they are: those of each pass by themselves, of the mean of this
    rank's batch. Then it must return the mean of the ranks, not a sum of their shares."""

    def __init__(self, comm: Communicator, net: NetLayout, iteration: Callable[[], int]) -> None:
        self.comm, self.net, self.iteration = comm, net, iteration
        self.xp, self.stream = net.backend.xp, net.backend.array_stream()

    @abstractmethod
    def reduce(self, bucket: Bucket, gradients: Any) -> None:
        """Replace the gradients of a bucket, which are complete, by the sum of all ranks', of the
        same bits on each. All ranks call it for the same buckets in the same order, perhaps
        while backward goes on."""

    @classmethod  # noqa: B027 (most go with all)
    def check(cls, param: caffe_pb2.SolverParameter, ranks: int) -> None:
        """UserError where it cannot be combined with a solver's settings, or that many ranks."""

    @classmethod
    def messages(
        cls, net: Layout, bucket: Bucket, ranks: int, *given: Any
    ) -> list[tuple[Operation, int]]:
        """What `reduce` sends among that many ranks: operations, and the elements (of 4 bytes) of
        their arrays. given: what follows the iteration in `__init__`. UserError where it is not
        known: `osucaffe predict` asks."""
        raise UserError(f"{cls.__name__} does not tell what it sends: it has no `messages`")

    def take(self, gradients: Any) -> None:
        """If it `takes`: the gradients of all that learns, after a pass that no update follows."""
        raise NotImplementedError

    def settle(self) -> None:  # noqa: B027 (some have no state)
        """Bring the state to what rank 0's buffers say, with zeros in those of the other ranks, and
        to what follows from the iteration: as it will be after a resume. All ranks call it."""

    def computing(self) -> AbstractContextManager[None]:
        """Let this thread's operations on arrays go to `stream`, and be complete at the end."""
        return self.net.backend.computing_arrays(self.stream)

    def sum(self, array: Any) -> None:
        """Sum the arrays of all ranks into each of them, as part of `reduce`."""
        self.comm.all_reduce(array, self.stream).wait(self.stream)

    def gather(self, array: Any) -> Iterator[Any]:
        """The arrays of all ranks, which are equally long, by rank."""
        count, comm = len(array), self.comm
        together = self.xp.empty(count * comm.size, array.dtype)
        parts = [slice(*comm.part(len(together), rank)) for rank in range(comm.size)]
        together[parts[comm.rank]] = array
        comm.all_gather(together, self.stream).wait(self.stream)
        return (together[part] for part in parts)


class ErrorFeedback(GradientHook):
    """Sends something smaller than the gradients; what that lacks is added to the next ones.

    Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, algorithm 2 (with gradients in
    place of updates): p = g + e is compressed, and e becomes what p has lost by it. What ranks
    have not sent yet is conserved: the sum of all that was sent and of all e is that of all g.
    """

    def __init__(self, comm: Communicator, net: NetLayout, iteration: Callable[[], int]) -> None:
        super().__init__(comm, net, iteration)
        self.residual = Buffer(net.arena, net.backend, "residual", net.parameters)
        self.buffers = [self.residual]

    @abstractmethod
    def compress(self, bucket: Bucket, values: Any, total: Any) -> None:
        """Let total become the sum of what all ranks send of their values, and take from the
        values what this rank has sent. (total holds nothing before.)"""

    def reduce(self, bucket: Bucket, gradients: Any) -> None:
        with self.computing():
            values = self.residual.flat.array[bucket.start : bucket.stop]
            values += gradients
            self.compress(bucket, values, gradients)

    def settle(self) -> None:
        """Rank 0 takes over what all ranks have not sent: then it does not matter how many go on
        from a snapshot."""
        with self.computing():
            values = self.residual.flat.array
            self.comm.reduce(values, 0, self.stream).wait(self.stream)
            if self.comm.rank:
                values[:] = 0


class Gathered(ErrorFeedback):
    """Each rank encodes its values as 32-bit words, which all ranks gather, decode and add."""

    @classmethod
    def words(cls, count: int, *given: Any) -> int:
        """How many stand for that many values."""
        raise NotImplementedError

    @classmethod
    def messages(
        cls, net: Layout, bucket: Bucket, ranks: int, *given: Any
    ) -> list[tuple[Operation, int]]:
        words = cls.words(bucket.stop - bucket.start, *given)
        return [(Operation.ALL_GATHER, ranks * words)]

    @abstractmethod
    def encode(self, values: Any) -> Any:
        """The words, as many on each rank (int32)."""

    @abstractmethod
    def decode(self, words: Any, out: Any, sign: float) -> None:
        """out += sign times the values that the words stand for."""

    def compress(self, bucket: Bucket, values: Any, total: Any) -> None:
        words = self.encode(values)
        total[:] = 0
        for others in self.gather(words):
            self.decode(others, total, 1)
        self.decode(words, values, -1)
