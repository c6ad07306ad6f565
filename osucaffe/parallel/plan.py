"""Plans: what a rank sends, waits for and updates in the passes of an iteration, and when.

A plan is data. `exchange.py` carries it out, `train --comm_profile` times it, and `osucaffe
predict` adds up what it takes. None of them decides what is sent when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..comm.algorithms import Operation
from .buckets import ITEM, Bucket, Layout, align, find_buckets
from .config import ParallelConfig

GRAIN = 64
"""Parts of a bucket begin at multiples of this many elements, for NCCL's vector loads."""
UNDIVIDED = 1 << 20
"""With sharded propagation, the bytes of the largest last bucket that every rank updates in full:
nothing overlaps with it, and its weights need not be sent then. Larger ones are faster sharded."""


@dataclass(frozen=True)
class Send:
    """Begin an operation on the gradients (or weights) of elements start .. stop - 1 of the arena.

    number: what `Wait` calls it; that of a gradient's bucket is the bucket's.
    """

    number: int
    operation: Operation
    start: int
    stop: int
    weights: bool = False


@dataclass(frozen=True)
class Wait:
    """Wait until the operation of this number is complete."""

    number: int


@dataclass(frozen=True)
class Update:
    """Update the weights of elements start .. stop - 1."""

    start: int
    stop: int


@dataclass(frozen=True)
class UpdateAll:
    """Update all weights."""


@dataclass(frozen=True)
class Beside:
    """Do these with low priority, beside what follows, until `Join`."""

    events: tuple[Event, ...]


@dataclass(frozen=True)
class Join:
    """Wait for what runs beside."""


@dataclass(frozen=True)
class Take:
    """Let the gradient hook take the gradients of this pass."""


@dataclass(frozen=True)
class Push:
    """Send the gradients of a bucket to the servers."""

    bucket: int


@dataclass(frozen=True)
class Pull:
    """Wait for the weights of a bucket from the servers."""

    bucket: int


@dataclass(frozen=True)
class Average:
    """Average the ranks' weights, in the iterations in which that is due."""

    steps: int
    after: int
    """Until this iteration it is due in each one."""
    elements: int

    def due(self, iterations: int) -> bool:
        """Whether it is after that many iterations."""
        return iterations <= self.after or iterations % self.steps == 0


@dataclass(frozen=True)
class Note:
    """Call a function of the host (which may enqueue work)."""

    call: Callable[[], None]


Event = Send | Wait | Update | UpdateAll | Beside | Join | Take | Push | Pull | Average | Note
Events = dict[int, list[Event]]


@dataclass
class Pass:
    """The events of one forward and backward pass.

    before, after: by layer, what comes before its forward, and after its backward (before the
    number of layers: between forward and backward). then: behind backward. afterwards: on the host,
    when all of this has run.
    """

    before: Events = field(default_factory=dict)
    after: Events = field(default_factory=dict)
    then: list[Event] = field(default_factory=list)
    afterwards: list[Event] = field(default_factory=list)


class Group(Protocol):
    """What a plan needs to know of the ranks that train together: a communicator does."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def part(self, count: int, rank: int | None = None) -> tuple[int, int]: ...


class Plan(ABC):
    """The plan of one rank.

    updates_weights: whether this rank does. divides: whether a rank's gradients are to be its share
    of the mean gradient, not of its batch's. accumulates: whether backward adds up the gradients of
    the passes of an iteration.
    """

    updates_weights = False
    divides = True
    accumulates = True

    @abstractmethod
    def of_pass(self, *, accumulate: bool, update: bool, finish: bool = True) -> Pass:
        """accumulate: gradients are added to those of the pass before. update: it is the last one
        of an iteration; finish: with what follows backward then."""


def sums_of(buckets: Sequence[Bucket], propagation: str) -> list[Operation]:
    """For each bucket the operation that sums its gradients, by how weights are propagated."""
    sums = {"none": Operation.ALL_REDUCE, "sharded": Operation.REDUCE_SCATTER}
    operations = [sums.get(propagation, Operation.REDUCE)] * len(buckets)
    if propagation == "sharded" and len(buckets) > 1 and buckets[-1].nbytes <= UNDIVIDED:
        operations[-1] = Operation.ALL_REDUCE
    return operations


class CollectivePlan(Plan):
    """By collective operations.

    Gradients are summed bucket by bucket: on every rank, on rank 0, or each rank's part on that
    rank. Weights that another rank has updated come by a broadcast from rank 0, or from all ranks.
    """

    def __init__(
        self,
        net: Layout,
        config: ParallelConfig,
        group: Group,
        *,
        separable: bool,
        enqueues: bool = False,
        takes: bool = False,
    ) -> None:
        """separable: parts of the weights may be updated by themselves. enqueues: streams wait for
        operations, not the host. takes: a gradient hook does (see `hook.py`)."""
        self._enqueues, self._config = enqueues, config
        self.updates_weights = config.propagation in ("none", "sharded") or group.rank == 0
        arena = net.arena
        nbytes = len(arena) * ITEM if config.aggregation == "blocking" else config.bucket
        buckets = find_buckets(net, nbytes, frozen=False)
        if config.propagation == "sharded":
            buckets = align(buckets, GRAIN * group.size)
        self._takes = takes and bool(buckets)
        self.divides = self.accumulates = not self._takes
        self.buckets = buckets
        self.gradients = [
            Send(number, operation, bucket.start, bucket.stop)
            for number, (bucket, operation) in enumerate(
                zip(buckets, sums_of(buckets, config.propagation), strict=True)
            )
        ]
        """What is sent of gradients, by bucket."""
        self._updates: list[Update] = []
        """By bucket, if they are separate."""
        travelling: list[Bucket] = []
        for bucket, send in zip(buckets, self.gradients, strict=True):
            first, last = 0, bucket.stop - bucket.start
            if send.operation is Operation.REDUCE_SCATTER:
                first, last = group.part(last)
                travelling.append(bucket)
            if separable and self.updates_weights:
                self._updates.append(Update(bucket.start + first, bucket.start + last))
        propagate = Operation.ALL_GATHER
        self._own: list[Event] = []
        """Where inner products are split: the update of this rank's parts."""
        if arena.is_split:
            travelling = [
                Bucket(start, start + parameter.blob.data.count, 0)
                for start, _, parameter in arena.segments
                if parameter.own is not None
            ]
            if self._updates:
                self._own = [Update(arena.shared, arena.learned)]
        elif config.propagation != "sharded":
            nbytes = config.bucket if config.propagation == "overlapped" else len(arena) * ITEM
            travelling, propagate = find_buckets(net, nbytes, frozen=True), Operation.BROADCAST
        # Forward needs them in the order of the layers: the arena is in backward order.
        self.weights = {
            Send(len(buckets) + number, propagate, each.start, each.stop, weights=True): each.layer
            for number, each in enumerate(travelling[::-1])
        }
        """What is sent of weights, each with the layer that needs it."""

    def own(self, group: Group, send: Send) -> tuple[int, int]:
        """The elements that this rank updates, of weights that are sent."""
        start, stop = send.start, send.stop
        if send.operation is Operation.BROADCAST:
            return (start, stop) if group.rank == 0 else (start, start)
        first, last = group.part(stop - start)
        return start + first, start + last

    def of_pass(self, *, accumulate: bool, update: bool, finish: bool = True) -> Pass:
        made = Pass()
        if self._takes and not update:
            made.after[0] = [Take()]
        if self._config.propagation != "none" and not accumulate:
            # All weights are sent before the first layer, which waits for all of them, or each
            # layer waits for what it needs.
            made.before[0] = [*self.weights]
            for send, layer in self.weights.items():
                at = 0 if self._config.propagation == "blocking" else layer
                made.before.setdefault(at, []).append(Wait(send.number))
        if not update:
            return made
        if self._config.aggregation not in ("blocking", "buckets"):
            for bucket, send in zip(self.buckets, self.gradients, strict=True):
                made.after.setdefault(bucket.layer, []).append(send)
        else:
            made.then += self.gradients
        if finish:
            self._finish(made)
        return made

    def _finish(self, made: Pass) -> None:
        """The update goes bucket by bucket if it is separable. Where gradients are sent during
        backward, and a stream waits for them, not the host, so does the update."""
        waits: list[Event] = [Wait(send.number) for send in self.gradients]
        if not self._updates:
            made.then += [*waits, *([UpdateAll()] if self.updates_weights else [])]
            return
        changes = list(zip(waits, self._updates, strict=True))
        beside = self._enqueues and bool(made.after) and len(changes) > 1
        if beside:
            for bucket, change in zip(self.buckets, changes[:-1], strict=False):
                made.after.setdefault(bucket.layer, []).append(Beside(change))
            changes = changes[-1:]
        made.then += [*self._own, *(event for change in changes for event in change)]
        made.then += [Join()] if beside else []


class LocalPlan(Plan):
    """Each rank updates all weights from its own gradients; now and then weights are averaged."""

    updates_weights = True
    divides = False

    def __init__(self, net: Layout, config: ParallelConfig) -> None:
        self.average = Average(config.local_steps, config.local_after, net.arena.learned)

    def of_pass(self, *, accumulate: bool, update: bool, finish: bool = True) -> Pass:
        return Pass(then=[UpdateAll()], afterwards=[self.average]) if update and finish else Pass()


class ServerPlan(Plan):
    """Gradients are pushed to servers during backward (layerwise), or behind it; each layer waits
    for its weights."""

    def __init__(self, buckets: Sequence[Bucket], *, layerwise: bool) -> None:
        self._buckets, self._layerwise = buckets, layerwise

    def of_pass(self, *, accumulate: bool, update: bool, finish: bool = True) -> Pass:
        made = Pass()
        for number, bucket in enumerate(self._buckets):
            if not accumulate:
                made.before.setdefault(bucket.layer, []).append(Pull(number))
            if update and self._layerwise:
                made.after.setdefault(bucket.layer, []).append(Push(number))
            elif update and finish:
                made.then.append(Push(number))
        return made
