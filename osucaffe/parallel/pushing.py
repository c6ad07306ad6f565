"""Owns a worker's side of the parameter servers: a thread that pushes gradients and pulls weights.

What is pushed is waited for by nobody; each bucket's weights are waited for by themselves.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..backends.tensor import Tensor
from ..comm.channels.channel import Channel, Pause, Pending
from .server import CONTROL, END, LAGS, PUSH, READ, SETUP
from .shards import Part, Piece


class Pushing:
    """Exchanges the pieces of a net's buckets with servers.

    servers: their ranks in the channel. buckets: how many there are. weights, gradients: the whole
    arena's, in host memory.
    """

    def __init__(
        self,
        channel: Channel,
        servers: Sequence[int],
        pieces: Sequence[Piece],
        weights: Tensor,
        gradients: Tensor,
    ) -> None:
        self._channel = channel
        self._servers = servers
        self._pieces = pieces
        self._weights, self._gradients = weights, gradients
        count = 1 + max((each.bucket for each in pieces), default=-1)
        self._left = [0] * count
        self._here = [threading.Event() for _ in range(count)]
        for event in self._here:
            event.set()
        self._todo: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="osucaffe-push", daemon=True)
        self._thread.start()

    def push(self, bucket: int, rate: float) -> None:
        """Send a bucket's gradients, complete as they are, and let its weights come. The first
        bucket begins an iteration, of this learning rate."""
        self._here[bucket].clear()
        self._todo.put((bucket, rate))

    def wait(self, bucket: int) -> None:
        """Return when a bucket's weights are here, if they were to come."""
        self._here[bucket].wait()
        if self._error is not None:
            raise self._error

    def wait_all(self) -> None:
        """Return when all weights are here."""
        for bucket in range(len(self._here)):
            self.wait(bucket)

    # -- beside iterations -----------------------------------------------------------------------

    def set_up(self, server: int, part: Part, flats: Sequence[Tensor]) -> None:
        """Give a server (its number) its part, and what weights and history begin with."""
        rank = self._servers[server]
        described = np.frombuffer(pickle.dumps(part), np.uint8)
        requests = [self._tell(rank, SETUP, len(described))]
        requests.append(self._channel.send([described], rank, CONTROL))
        for flat in flats:
            for tag in part.pieces:
                requests.append(self._channel.send([self._slice(flat, tag)], rank, tag))
        requests.append(self._channel.receive([np.empty(1)], rank, CONTROL))
        self._channel.wait(requests)

    def read(self, which: int, flat: Tensor) -> None:
        """Get the servers' weights (0) or history (1, 2)."""
        requests = [self._tell(rank, READ, which) for rank in self._servers]
        for tag, piece in enumerate(self._pieces):
            rank = self._servers[piece.server]
            requests.append(self._channel.receive([self._slice(flat, tag)], rank, tag))
        self._channel.wait(requests)

    def stop(self) -> None:
        """Push no more."""
        if self._thread.is_alive():
            self._todo.put(None)
            self._thread.join()

    def end(self) -> np.ndarray:
        """Let the servers end; how many weights came with each lag, in iterations."""
        self.stop()
        lags = np.zeros((len(self._servers), LAGS), np.int64)
        requests = [self._tell(rank, END, 0) for rank in self._servers]
        for row, rank in zip(lags, self._servers, strict=True):
            requests.append(self._channel.receive([row], rank, CONTROL))
        self._channel.wait(requests)
        return lags.sum(axis=0)

    def _tell(self, rank: int, operation: int, value: float) -> Any:
        return self._channel.send([np.array([operation, value], np.float64)], rank, CONTROL)

    def _slice(self, flat: Tensor, tag: int) -> np.ndarray:
        values: np.ndarray = flat.array[self._pieces[tag].start : self._pieces[tag].stop]
        return values

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        pending, pause = Pending(self._channel), Pause(self._channel)
        try:
            while True:
                try:
                    item = self._todo.get(block=not len(pending))
                except queue.Empty:
                    pause.after(progress=pending.poll())
                    continue
                if item is None:
                    return
                self._begin(pending, *item)
        except BaseException as error:
            self._error = error
            for event in self._here:
                event.set()

    def _begin(self, pending: Pending, bucket: int, rate: float) -> None:
        if bucket == 0:
            for rank in self._servers:
                pending.add(self._tell(rank, PUSH, rate))
        for tag, piece in enumerate(self._pieces):
            if piece.bucket == bucket:
                rank = self._servers[piece.server]
                self._left[bucket] += 1
                weights = self._channel.receive([self._slice(self._weights, tag)], rank, tag)
                pending.add(weights, partial(self._arrived, bucket))
                pending.add(self._channel.send([self._slice(self._gradients, tag)], rank, tag))

    def _arrived(self, bucket: int) -> None:
        self._left[bucket] -= 1
        if not self._left[bucket]:
            self._here[bucket].set()
