"""Owns when gradients and weights are exchanged: at once, or bucket by bucket, overlapped.

Layer by layer, as S-Caffe does it (Awan et al., PPoPP 2017): gradients are sent as soon as backward
has completed them (SC-OBR); weights arrive just before the layer that needs them (SC-OB).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ..arena import Buffer
from ..backends.tensor import Run, Tensor, sequence
from ..comm.communicator import Communicator, Handle
from ..comm.gpu.on_stream import OnStream
from .buckets import ITEM, Bucket, NetLayout, align, find_buckets
from .config import ParallelConfig
from .hook import GradientHook

GRAIN = 64
"""Parts of a bucket begin at multiples of this many elements, for NCCL's vector loads."""
UNDIVIDED = 1 << 20
"""With sharded propagation, the bytes of the largest last bucket that every rank updates in full:
nothing overlaps with it, and its weights need not be sent then. Larger ones are faster sharded."""

Hooks = dict[int, Run]
"""By layer, what to run before its forward, or after its backward."""


def add_hook(hooks: Hooks, layer: int, step: Run, *, first: bool = False) -> None:
    """Add a step to a layer's hook: after the steps it has, or (first) before them."""
    there = hooks.get(layer)
    if there is not None:
        step = sequence([step, there] if first else [there, step])
    hooks[layer] = step


class Update(Protocol):
    """What an exchange needs of an optimizer (see `solvers.update.optimizer`)."""

    steps: list[Run]

    @property
    def separable(self) -> bool: ...
    @property
    def rate(self) -> float: ...
    @property
    def flats(self) -> Sequence[Tensor]: ...
    def part(self, start: int, stop: int) -> Run: ...


class Exchange(ABC):
    """How the gradients of all ranks become the weights of all ranks, during the passes of one net.

    `DataParallel` runs a net with it; a prediction runs a sketch of the net.
    """

    updates_weights = False
    """Whether this rank updates weights."""
    enqueues = False
    """Whether a stream waits for operations, rather than the host."""
    accumulates = True
    """Whether backward adds up the gradients of the passes of an iteration."""
    divides = True
    """Whether a rank's gradients are to be its share of the mean gradient: not of its batch's."""
    missing = 0
    """How many ranks' gradients are not in a sum."""
    buffers: Sequence[Buffer] = ()
    """What it keeps for each parameter: part of a snapshot, as rank 0 has it after `synchronize`
    with history. What is called "residual" is a rank's share of a sum."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        """buckets: of gradients, in the order in which backward completes them."""
        self._layers = [bucket.layer for bucket in buckets]
        self._sent = 0

    def send(self, layer: int) -> None:
        """Backward has run this layer and all above it: send the gradients that are complete."""
        while self._sent < len(self._layers) and layer <= self._layers[self._sent]:
            self.send_bucket(self._sent)
            self._sent += 1

    @abstractmethod
    def send_bucket(self, bucket: int) -> None:
        """Send gradients that are complete."""

    @abstractmethod
    def hooks(self, *, accumulate: bool, update: bool) -> tuple[Hooks, Hooks]:
        """For one pass, what to run before layers in forward, and after them in backward."""

    @abstractmethod
    def finish(self, after: Hooks) -> list[Run]:
        """After the backward of a pass with an update: the rest of the exchange, and the update.
        after: from `hooks`; parts of the update may be added."""

    @abstractmethod
    def exchange(self) -> None:
        """Without `finish`: return when this rank has the sums that it updates with, or (where
        others make the updates) the new weights."""

    def agreed(self) -> None:  # noqa: B027 (most need not know)
        """All ranks have been given the same weights and history."""

    @abstractmethod
    def updated(self) -> None:
        """An update was made, on the ranks that make one."""

    @abstractmethod
    def synchronize(self, *, history: bool) -> None:
        """Bring all ranks to the weights of the last update; history: and to its history."""


def sender(
    comm: Communicator, hook: GradientHook | None, operation: str, bucket: Bucket, gradients: Any
) -> Callable[..., Handle]:
    """What begins to sum a bucket's gradients, given the stream that makes them."""
    if hook is None:
        return partial(getattr(comm, operation), gradients)
    return partial(comm.start, partial(hook.reduce, bucket, gradients))


def sums_of(buckets: Sequence[Bucket], propagation: str) -> list[str]:
    """For each bucket the operation that sums its gradients, by how weights are propagated."""
    operation = {"none": "all_reduce", "sharded": "reduce_scatter"}.get(propagation, "reduce")
    operations = [operation] * len(buckets)
    if propagation == "sharded" and len(buckets) > 1 and buckets[-1].nbytes <= UNDIVIDED:
        operations[-1] = "all_reduce"
    return operations


class Collectives(Exchange):
    """By collective operations, as configured by a `ParallelConfig`.

    Gradients are summed bucket by bucket: on every rank, on rank 0, or each rank's part on that
    rank. Weights that another rank has updated come by a broadcast from rank 0, or from all ranks.
    Where forward reads 16-bit copies, only these are sent in each iteration (and parameters that it
    reads themselves, such as biases, become what their copies are), and the weights when
    `synchronize` is called.
    """

    def __init__(
        self,
        comm: Communicator,
        net: NetLayout,
        optimizer: Update,
        config: ParallelConfig,
        hook: GradientHook | None = None,
    ) -> None:
        """hook: sums the gradients (with propagation "none"), on the communicator's thread."""
        self._backend, self._optimizer, self._config = net.backend, optimizer, config
        self.enqueues = isinstance(comm, OnStream)
        self.updates_weights = config.propagation in ("none", "sharded") or comm.rank == 0
        arena = net.arena
        all_bytes, gradients = len(arena) * ITEM, arena.diff.array
        nbytes = all_bytes if config.aggregation == "blocking" else config.bucket
        buckets = find_buckets(net, nbytes, frozen=False)
        if config.propagation == "sharded":
            buckets = align(buckets, GRAIN * comm.size)
        operations = sums_of(buckets, config.propagation)
        super().__init__(buckets)
        self._hook = hook
        self.buffers = hook.buffers if hook else ()
        self._sends = [
            sender(comm, hook, operation, bucket, gradients[bucket.start : bucket.stop])
            for bucket, operation in zip(buckets, operations, strict=True)
        ]
        self._take: Callable[..., Handle] | None = None
        if hook and hook.takes and buckets:
            self.accumulates = self.divides = False
            self._take = partial(comm.start, partial(hook.take, gradients[: arena.learned]))
        self._sums: list[Handle] = []
        self._updates: list[tuple[int, Run]] = []
        """By bucket the layer that completes it, and the step that awaits its sums and updates."""
        divided: list[Bucket] = []
        for index, (bucket, operation) in enumerate(zip(buckets, operations, strict=True)):
            first, last = 0, bucket.stop - bucket.start
            if operation == "reduce_scatter":
                first, last = comm.part(last)
                divided.append(bucket)
            if optimizer.separable and self.updates_weights:
                change = optimizer.part(bucket.start + first, bucket.start + last)
                self._updates.append(
                    (bucket.layer, sequence([partial(self._arrive, index), change]))
                )
        travelling: Sequence[Bucket] = divided
        self._propagate: Callable[..., Handle] = comm.all_gather
        self._some_differ = config.propagation != "none" or arena.is_split
        self._update_own: list[Run] = []
        """Where inner products are split: the update of this rank's parts."""
        if arena.is_split:
            travelling = [
                Bucket(start, start + parameter.blob.data.count, 0)
                for start, _, parameter in arena.segments
                if parameter.own is not None
            ]
            if self._updates:
                self._update_own = [optimizer.part(arena.shared, arena.learned)]
        elif config.propagation != "sharded":
            nbytes = config.bucket if config.propagation == "overlapped" else all_bytes
            travelling, self._propagate = find_buckets(net, nbytes, frozen=True), comm.broadcast
        self._weights, self._copies = arena.data, net.backend.low_precision_arena(arena.data)
        self._renewals = {bucket: self._renewal(net, comm, bucket) for bucket in travelling}
        """Of each bucket what goes before the sending of its copies, and after it."""
        # Forward needs them in the order of the layers: the arena is in backward order.
        self._travelling = travelling[::-1]
        self._coming: deque[tuple[int, Handle, Run]] = deque()
        self._weights_differ = self._history_differs = False

    def _renewal(self, net: NetLayout, comm: Communicator, bucket: Bucket) -> tuple[Run, Run]:
        """Steps by which the parameters of a bucket that forward reads in 32 bits travel with the
        16-bit copies of the others: those that this rank updates become copies, and copies become
        those of other ranks."""
        start, stop, _ = bucket
        if self._propagate == comm.broadcast:
            own = (start, stop) if comm.rank == 0 else (start, start)
        else:
            first, last = comm.part(stop - start)
            own = start + first, start + last

        def renew(*ranges: tuple[int, int], copies: bool) -> Run:
            parts = [
                (parameter.blob.data, max(begin, first), min(end, last))
                for begin, end, parameter in net.arena.segments
                for first, last in ranges
                if begin < net.arena.learned and max(begin, first) < min(end, last)
            ]
            return self._backend.renew_exact(self._weights, parts, copies=copies)

        return renew(own, copies=True), renew((start, own[0]), (own[1], stop), copies=False)

    def hooks(self, *, accumulate: bool, update: bool) -> tuple[Hooks, Hooks]:
        before: Hooks = {}
        after: Hooks = {0: self._take_gradients} if self._take and not update else {}
        if self._config.propagation != "none" and not accumulate:
            # All weights are sent before the first layer, which waits for all of them, or each
            # layer waits for what it needs.
            blocking = self._config.propagation == "blocking"
            if not blocking:
                before = {b.layer: partial(self._wait, b.layer) for b in self._travelling}
            before[0] = partial(self._send_weights, None if blocking else 0)
        if update and self._config.aggregation == "layerwise":
            after = {layer: partial(self.send, layer) for layer in self._layers}
        return before, after

    def finish(self, after: Hooks) -> list[Run]:
        """The update goes bucket by bucket if it is separable. Where gradients are sent during
        backward, and a stream waits for them, not the host, so does the update."""
        if not self._updates:
            return [self.exchange, *(self._optimizer.steps if self.updates_weights else [])]
        changes = [change for _, change in self._updates]
        send_rest = partial(self.send, 0)
        if not (self.enqueues and after and len(changes) > 1):
            return [send_rest, *self._update_own, *changes]
        for layer, change in self._updates[:-1]:
            add_hook(after, layer, self._backend.low_priority(change))
        return [send_rest, *self._update_own, changes[-1], self._backend.join_low_priority]

    def exchange(self) -> None:
        self.send(0)
        for bucket in range(len(self._layers)):
            self._arrive(bucket)

    def updated(self) -> None:
        self._weights_differ = self._history_differs = self._some_differ

    def synchronize(self, *, history: bool) -> None:
        """Each rank's up-to-date parts of the history are those of the weights."""
        if self._weights_differ:
            for tensor in (self._copies, self._weights):
                if tensor is not None:
                    self._send_weights(None, tensor)
            self._weights_differ = False
        if history and self._hook:
            self._hook.settle()
        if history and self._history_differs:
            for tensor in self._optimizer.flats:
                self._send_weights(None, tensor)
            self._history_differs = False

    def send_bucket(self, bucket: int) -> None:
        self._sums.append(self._sends[bucket](stream=self._backend.current))

    def _arrive(self, bucket: int) -> None:
        """Wait for the sums of a bucket; called for all buckets, in order."""
        self._sums[bucket].wait(self._backend.current)
        if bucket == len(self._layers) - 1:
            self._sums.clear()
            self._sent = 0

    def _take_gradients(self) -> None:
        assert self._take is not None
        self._take(stream=self._backend.current).wait(self._backend.current)

    def _send_weights(self, layer: int | None, tensor: Tensor | None = None) -> None:
        """Send what forward reads, or another tensor of the same layout, and `_wait`."""
        array = (tensor or self._copies or self._weights).array
        stream = self._backend.current
        nothing = sequence([])
        for bucket in self._travelling:
            before, after = self._renewals[bucket] if tensor is None else (nothing, nothing)
            before()
            handle = self._propagate(array[bucket.start : bucket.stop], stream=stream)
            self._coming.append((bucket.layer, handle, after))
        self._wait(layer)

    def _wait(self, layer: int | None) -> None:
        """Wait for the weights of the layers up to this one (None: of all)."""
        while self._coming and (layer is None or self._coming[0][0] <= layer):
            _, handle, after = self._coming.popleft()
            handle.wait(self._backend.current)
            after()
