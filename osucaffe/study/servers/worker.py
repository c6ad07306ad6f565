"""A worker's side of the parameter servers: a thread that pushes gradients and pulls weights.

Nothing waits for a push; each bucket's weights can be waited for separately.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...backends.tensor import Tensor
from ...comm.channels.channel import Channel, Pause, Pending
from ...comm.staged import from_host, mirror, to_host
from ...parallel.buckets import Bucket
from .server import CONTROL, END, LAGS, PUSH, READ, SETUP
from .shards import Part, Piece


class ServerClient:
    """Exchanges the pieces of a net's buckets with servers.

    servers: their ranks in the channel. weights, gradients: the arena's, on any backend. For those
    on a device, calls pass the stream that computes or reads them. backups: replies tell of how
    many updates weights are. iterations: that were pushed (or skipped) so far; updates: by piece.
    """

    def __init__(
        self,
        channel: Channel,
        servers: Sequence[int],
        buckets: Sequence[Bucket],
        pieces: Sequence[Piece],
        weights: Tensor,
        gradients: Tensor,
        *,
        backups: bool = False,
    ) -> None:
        self.iterations, self.updates = 0, np.zeros((len(pieces), 1), np.int64)
        self._backups = backups
        self._channel = channel
        self._servers = servers
        self._pieces = pieces
        parts = [slice(bucket.start, bucket.stop) for bucket in buckets]
        self._weights = mirror(weights.array, parts)
        self._gradients = mirror(gradients.array, parts)
        self._left = [0] * len(buckets)
        self._here = [threading.Event() for _ in buckets]
        self._new: set[int] = set()
        for event in self._here:
            event.set()
        self._todo: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="osucaffe-push", daemon=True)
        self._thread.start()

    def push(self, bucket: int, rate: float, stream: Any = None) -> None:
        """Send a bucket's gradients, complete when the stream comes to this, and let its weights
        come. The first bucket begins an iteration, of this learning rate."""
        self.iterations += bucket == 0
        self._here[bucket].clear()
        self._new.add(bucket)
        self._gradients.fetch(bucket, stream)
        self._todo.put((bucket, rate))

    def wait(self, bucket: int, stream: Any = None) -> bool:
        """Return when a bucket's weights are here, or on their way to the device, for which the
        stream waits. Whether they are new."""
        self._here[bucket].wait()
        if self._error is not None:
            raise self._error
        if bucket not in self._new:
            return False
        self._new.remove(bucket)
        self._weights.follow(bucket, stream)
        return True

    # -- outside of iterations -------------------------------------------------------------------

    def set_up(self, server: int, part: Part, flats: Sequence[Tensor]) -> None:
        """Give a server (its number) its part, and what weights and history begin with."""
        rank = self._servers[server]
        described = np.frombuffer(pickle.dumps(part), np.uint8)
        requests = [self._send_control(rank, SETUP, len(described))]
        requests.append(self._channel.send([described], rank, CONTROL))
        for values in [to_host(flat.array) for flat in flats]:
            for tag in part.pieces:
                requests.append(self._channel.send([self._slice(values, tag)], rank, tag))
        requests.append(self._channel.receive([np.empty(1)], rank, CONTROL))
        self._channel.wait(requests)

    def read(self, which: int, flat: Tensor) -> None:
        """Get the servers' weights (0) or history (1, 2)."""
        values = to_host(flat.array)
        requests = [self._send_control(rank, READ, which) for rank in self._servers]
        for tag, piece in enumerate(self._pieces):
            rank = self._servers[piece.server]
            requests.append(self._channel.receive([self._slice(values, tag)], rank, tag))
        self._channel.wait(requests)
        if values is not flat.array:
            from_host(flat.array, values)

    def stop(self) -> None:
        """Push no more."""
        if self._thread.is_alive():
            self._todo.put(None)
            self._thread.join()

    def end(self) -> np.ndarray:
        """Let the servers end; how many weights came with each lag, in iterations."""
        self.stop()
        lags = np.zeros((len(self._servers), LAGS), np.int64)
        requests = [self._send_control(rank, END, 0) for rank in self._servers]
        for row, rank in zip(lags, self._servers, strict=True):
            requests.append(self._channel.receive([row], rank, CONTROL))
        self._channel.wait(requests)
        return lags.sum(axis=0)

    def _send_control(self, rank: int, operation: int, value: float) -> Any:
        message = np.array([operation, value, self.iterations], np.float64)
        return self._channel.send([message], rank, CONTROL)

    def _slice(self, values: np.ndarray, tag: int) -> np.ndarray:
        return values[self._pieces[tag].start : self._pieces[tag].stop]

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        pending, pause = Pending(self._channel), Pause(self._channel)
        leaving: deque[tuple[int, float]] = deque()
        ends = False
        try:
            while leaving or not ends:
                try:
                    item = self._todo.get(block=not (leaving or len(pending)))
                except queue.Empty:
                    progress = pending.poll()
                else:
                    progress, ends = True, item is None
                    leaving.extend([item] if item is not None else [])
                while leaving and self._gradients.fetched(leaving[0][0]):
                    self._begin(pending, *leaving.popleft())
                    progress = True
                pause.after(progress=progress)
        except BaseException as error:
            self._error = error
            for event in self._here:
                event.set()

    def _begin(self, pending: Pending, bucket: int, rate: float) -> None:
        if bucket == 0:
            for rank in self._servers:
                pending.add(self._send_control(rank, PUSH, rate))
        for tag, piece in enumerate(self._pieces):
            if piece.bucket == bucket:
                rank = self._servers[piece.server]
                self._left[bucket] += 1
                arrays = [self._slice(self._weights.host, tag)]
                if self._backups:
                    arrays.append(self.updates[tag])
                weights = self._channel.receive(arrays, rank, tag)
                pending.add(weights, partial(self._arrived, bucket, tag))
                gradients = self._channel.send([self._slice(self._gradients.host, tag)], rank, tag)
                pending.add(gradients, partial(self._pushed, tag))

    def _pushed(self, tag: int) -> None:
        """A piece's gradients have left: a profile notes it."""

    def _arrived(self, bucket: int, tag: int) -> None:
        self._left[bucket] -= 1
        if not self._left[bucket]:
            self._weights.give(bucket)
            self._here[bucket].set()
