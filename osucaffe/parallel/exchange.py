"""Owns when gradients and weights travel: at once, or bucket by bucket beside backward, forward.

Layer by layer, as S-Caffe does it (Awan et al., PPoPP 2017): gradients leave as soon as backward
has completed them (SC-OBR); weights arrive just before the layer that needs them (SC-OB).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from ..backends.tensor import Step, Tensor
from ..comm.communicator import Communicator, Handle
from .buckets import Bucket


class Aggregation:
    """Sums gradients over the ranks, on all of them or (to_root) on rank 0 only.

    stream: where backward computes them; None on the host.
    In every iteration: `begin`; `after` whenever backward has run a layer, or not at all; `finish`.
    """

    def __init__(
        self, comm: Communicator, diff: Tensor, buckets: list[Bucket], *, to_root: bool, stream: Any
    ) -> None:
        self._comm = comm
        self._stream = stream
        self._pieces = [diff.array[bucket.start : bucket.stop] for bucket in buckets]
        self._layers = [bucket.layer for bucket in buckets]
        self._to_root = to_root
        self._handles: deque[Handle] = deque()
        self._next = 0

    def begin(self) -> None:
        """Backward is about to start."""
        self._next = 0

    def after(self, layer: int) -> None:
        """Backward has run this layer and all above it: send what is complete."""
        while self._next < len(self._layers) and layer <= self._layers[self._next]:
            self._send(self._pieces[self._next])
            self._next += 1

    def marks(self) -> dict[int, Step]:
        """`after` for the layers with which something is complete."""
        return {layer: partial(self.after, layer) for layer in self._layers}

    def finish(self) -> None:
        """Send the rest; return when all sums have arrived."""
        self.after(0)
        while self._handles:
            self._handles.popleft().wait()

    def _send(self, piece: Any) -> None:
        if self._to_root:
            self._handles.append(self._comm.reduce(piece, 0, self._stream))
        else:
            self._handles.append(self._comm.all_reduce(piece, self._stream))


class Propagation:
    """Brings rank 0's weights to all ranks.

    `send` after an update; then forward, with `before_first` and `after` called around its layers,
    or `settle`. stream: where forward reads them; None on the host.
    """

    def __init__(
        self, comm: Communicator, data: Tensor, buckets: list[Bucket], *, stream: Any
    ) -> None:
        self._comm = comm
        self._stream = stream
        # Forward needs them in the order of the layers: the arena lies in backward order.
        self._pieces = [(each.layer, data.array[each.start : each.stop]) for each in buckets[::-1]]
        self._handles: deque[tuple[int, Handle]] = deque()

    def send(self) -> None:
        """Begin to broadcast all weights."""
        for layer, piece in self._pieces:
            self._handles.append((layer, self._comm.broadcast(piece, 0, self._stream)))

    def before_first(self) -> None:
        """Forward is about to start."""
        self._wait(0)

    def after(self, layer: int) -> None:
        """Forward has run a layer: wait for the weights of the next one."""
        self._wait(layer + 1)

    def settle(self) -> None:
        """Return when all weights have arrived."""
        while self._handles:
            self._handles.popleft()[1].wait()

    def _wait(self, layer: int) -> None:
        while self._handles and self._handles[0][0] <= layer:
            self._handles.popleft()[1].wait()
