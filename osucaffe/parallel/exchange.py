"""Owns when gradients and weights travel: at once, or bucket by bucket beside backward, forward.

Layer by layer, as S-Caffe does it (Awan et al., PPoPP 2017): gradients leave as soon as backward
has completed them (SC-OBR); weights arrive just before the layer that needs them (SC-OB).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from ..backends.backend import Backend
from ..backends.tensor import Step, Tensor
from ..comm.communicator import Communicator, Handle
from .buckets import Bucket

UNDIVIDED = 1 << 20
"""With sharded propagation, the bytes of the largest last bucket that every rank updates whole:
nothing runs beside it, and its weights need no trip then. Larger ones take longer as a whole."""


def sums_of(buckets: Sequence[Bucket], propagation: str) -> list[str]:
    """For each bucket the operation that sums its gradients, by how weights are propagated."""
    operation = {"none": "all_reduce", "sharded": "reduce_scatter"}.get(propagation, "reduce")
    operations = [operation] * len(buckets)
    if propagation == "sharded" and len(buckets) > 1 and buckets[-1].nbytes <= UNDIVIDED:
        operations[-1] = "all_reduce"
    return operations


class Aggregation:
    """Sums gradients over the ranks.

    operations: where the sums of each bucket are wanted: "all_reduce", on every rank; "reduce", on
    rank 0; "reduce_scatter", each rank's part on that rank.
    In every iteration: `after` whenever backward has run a layer, or not at all; `send_rest`;
    `arrive` for each bucket.
    """

    def __init__(
        self,
        comm: Communicator,
        backend: Backend,
        diff: Tensor,
        buckets: Sequence[Bucket],
        operations: Sequence[str],
    ) -> None:
        self._backend = backend
        self._sends = [
            partial(getattr(comm, operation), diff.array[bucket.start : bucket.stop])
            for bucket, operation in zip(buckets, operations, strict=True)
        ]
        self._layers = [bucket.layer for bucket in buckets]
        self._handles: list[Handle] = []

    def after(self, layer: int) -> None:
        """Backward has run this layer and all above it: send what is complete."""
        while len(self._handles) < len(self._layers) and layer <= self._layers[len(self._handles)]:
            send = self._sends[len(self._handles)]
            self._handles.append(send(stream=self._backend.current))

    def hooks(self) -> dict[int, Step]:
        """`after` for the layers with which something is complete."""
        return {layer: partial(self.after, layer) for layer in self._layers}

    def send_rest(self) -> None:
        """Backward has run all layers."""
        self.after(0)

    def arrive(self, bucket: int) -> None:
        """Wait for the sums of a bucket; all are to be waited for, in their order."""
        self._handles[bucket].wait(self._backend.current)
        if bucket == len(self._layers) - 1:
            self._handles.clear()

    def finish(self) -> None:
        """Send the rest, and wait for all."""
        self.send_rest()
        for bucket in range(len(self._layers)):
            self.arrive(bucket)


class Propagation:
    """Brings the weights that another rank has updated to this one.

    operation: "broadcast", rank 0 updates all; "all_gather", each rank its part of each bucket.
    copies: what forward reads in the place of `weights`, where the backend has 16-bit copies: then
    these travel from iteration to iteration, and the weights when they are asked for
    (`synchronize`).

    `changed` after an update; then forward, with the steps of `hooks` ahead of its layers, or
    `synchronize`.
    """

    def __init__(
        self,
        comm: Communicator,
        backend: Backend,
        weights: Tensor,
        copies: Tensor | None,
        buckets: Sequence[Bucket],
        operation: str,
    ) -> None:
        self._backend = backend
        self._send = getattr(comm, operation)
        self._weights, self._copies = weights, copies
        # Forward needs them in the order of the layers: the arena lies in backward order.
        self._buckets = buckets[::-1]
        self._handles: deque[tuple[int, Handle]] = deque()
        self._differ = self._others_differ = False

    def changed(self) -> None:
        """Ranks have made an update that the others do not have."""
        self._differ = self._others_differ = True

    def hooks(self, *, overlapped: bool) -> dict[int, Step]:
        """By layer, what to run ahead of it in forward: all weights are sent before the first
        one, and it waits for all, or (overlapped) each layer waits for what it needs."""
        layers = {bucket.layer for bucket in self._buckets} if overlapped else ()
        hooks: dict[int, Step] = {layer: partial(self._wait, layer) for layer in layers}
        hooks[0] = partial(self._begin, 0 if overlapped else None)
        return hooks

    def synchronize(self, others: Sequence[Tensor] = ()) -> None:
        """Return when all weights are the same on every rank. others: the update's own tensors,
        which lie as the weights do; each rank has the same parts of them up to date."""
        if self._differ:
            for tensor in (self._copies, self._weights):
                if tensor is not None:
                    self._begin(None, tensor)
            self._differ = False
        if self._others_differ and others:
            for tensor in others:
                self._begin(None, tensor)
            self._others_differ = False

    def _begin(self, layer: int | None, tensor: Tensor | None = None) -> None:
        """Send what forward reads, or another tensor, and `_wait`."""
        array = (tensor or self._copies or self._weights).array
        stream = self._backend.current
        for bucket in self._buckets:
            handle = self._send(array[bucket.start : bucket.stop], stream=stream)
            self._handles.append((bucket.layer, handle))
        self._wait(layer)

    def _wait(self, layer: int | None) -> None:
        """Wait for the weights of the layers up to this one (None: of all)."""
        while self._handles and (layer is None or self._handles[0][0] <= layer):
            self._handles.popleft()[1].wait(self._backend.current)
