"""A parameter server: a rank that holds a part of the weights and updates it.

Workers push their gradients piece by piece and get the piece's weights in return (the design of
Li et al., OSDI 2014; Dean et al., NIPS 2012): at once (async), when no other worker lacks more than
N iterations (ssp:N; Ho et al., NIPS 2013), or when all have pushed and the update of their sum is
made (sync), or all but B, whose gradients are dropped (backup:B; Chen et al., arXiv 1604.00981).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...backends.backend import Backend
from ...backends.tensor import Run, Tensor
from ...comm.channels.channel import Channel, Pause, Pending
from ...solvers.update.optimizer import Optimizer
from .shards import Consistency, Part, Shard

CONTROL = 1 << 14
"""The tag of control messages: three float64, an operation, its value and how many iterations the
worker has begun. (MPI has tags up to 32767 everywhere.)"""
PUSH, READ, SETUP, END = range(4)
"""Gradients follow, with this learning rate; send these weights (0) or that history (1, 2); a
description of that many bytes follows, then weights and history; no more follows."""
LAGS = 256
"""Lags that a server counts apart; longer ones count as the longest."""


class Server:
    """Serves workers 0 .. workers - 1 of a channel.

    sum_servers: gives the sum of a number over all servers.
    """

    def __init__(
        self,
        channel: Channel,
        workers: int,
        consistency: Consistency,
        backend: Backend,
        sum_servers: Callable[[float], float],
    ) -> None:
        self._channel = channel
        self._workers = range(workers)
        self._consistency = consistency
        self._backend = backend
        self._sum_servers = sum_servers
        self._pending = Pending(channel)
        self._open = set(self._workers)
        self._rates = [0.0] * workers
        self._lags = np.zeros(LAGS, np.int64)

    def serve(self) -> None:
        """Return when all workers have ended."""
        for worker in self._workers:
            self._listen(worker)
        pause = Pause(self._channel)
        while self._open:
            pause.after(progress=self._pending.poll())
        self._pending.drain()

    def _listen(self, worker: int) -> None:
        message = np.empty(3)
        request = self._channel.receive([message], worker, CONTROL)
        self._pending.add(request, partial(self._on_message, worker, message))

    def _on_message(self, worker: int, message: np.ndarray) -> None:
        operation, value, clock = message
        if operation == END:
            self._open.discard(worker)
            self._pending.add(self._channel.send([self._lags], worker, CONTROL))
            return
        if operation == PUSH:
            self._rates[worker] = value
            for tag in self._ranges:
                request = self._channel.receive([self._inbox[tag][worker]], worker, tag)
                self._pending.add(request, partial(self._pushed, worker, tag, int(clock)))
        elif operation == READ:
            for tag in self._ranges:
                values = self._slice(self._flats[int(value)], tag)
                self._pending.add(self._channel.send([values], worker, tag))
        else:
            self._set_up(worker, int(value))
        self._listen(worker)

    # -- what a worker describes -----------------------------------------------------------------

    def _set_up(self, worker: int, nbytes: int) -> None:
        """Take a description, and what weights and history begin with."""
        described = np.empty(nbytes, np.uint8)
        self._channel.wait([self._channel.receive([described], worker, CONTROL)])
        part: Part = pickle.loads(described.tobytes())
        shard = Shard(self._backend, part.pieces)
        self._ranges = shard.ranges
        net: Any = shard  # which has all that an optimizer needs of a net
        self._optimizer = Optimizer(net, part.update, self._backend)
        self._weights, self._gradients = shard.arena.data, shard.arena.diff
        self._flats = [self._weights, *self._optimizer.flats]
        self._steps: dict[int, Run] = {}
        if self._optimizer.separable:
            self._steps = {tag: self._optimizer.part(*span) for tag, span in self._ranges.items()}
        memory = self._channel.buffer(len(self._workers) * len(shard.arena))
        rows = memory.reshape(len(self._workers), -1)
        self._inbox = {tag: rows[:, first:last] for tag, (first, last) in self._ranges.items()}
        self._clocks = {tag: [0] * len(self._workers) for tag in self._ranges}
        self._waiting: dict[int, list[int]] = {tag: [] for tag in self._ranges}
        self._done = dict.fromkeys(self._ranges, 0)
        self._summed = 0
        self._applied = np.nan
        for flat in self._flats:
            self._channel.wait(
                [
                    self._channel.receive([self._slice(flat, tag)], worker, tag)
                    for tag in self._ranges
                ]
            )
        self._pending.add(self._channel.send([np.zeros(1)], worker, CONTROL))

    def _slice(self, flat: Tensor, tag: int) -> np.ndarray:
        start, stop = self._ranges[tag]
        values: np.ndarray = flat.array[start:stop]
        return values

    # -- gradients and updates -------------------------------------------------------------------

    def _pushed(self, worker: int, tag: int, clock: int) -> None:
        """A worker's gradients of a piece, in its iteration `clock` (from 1), are here."""
        self._clocks[tag][worker] = clock
        waiting, inbox = self._waiting[tag], self._inbox[tag]
        if not self._consistency.together:
            self._slice(self._gradients, tag)[:] = inbox[worker]
            self._update(self._rates[worker], self._steps[tag])
            waiting.append(worker)
            self._answer(tag)
            return
        if clock <= self._done[tag]:
            self._send(worker, tag)
            return
        waiting.append(worker)
        needed = len(self._workers) - (self._consistency.backups or 0)
        if len(waiting) != needed:
            return
        # In the order of the workers, whichever came first: the same bits in each run.
        taken = inbox if needed == len(inbox) else inbox[sorted(waiting)]
        np.sum(taken, axis=0, out=self._slice(self._gradients, tag))
        if self._steps:
            self._update(self._rates[worker], self._steps[tag])
            self._send_all(tag)
            return
        self._summed += 1
        if self._summed == len(self._ranges):
            self._summed = 0
            self._update(self._rates[worker], self._update_by_global_norm)
            for piece in self._ranges:
                self._send_all(piece)

    def _update(self, rate: float, step: Run) -> None:
        if rate != self._applied:
            self._applied = rate
            self._optimizer.set_rate(rate, 0)
            self._optimizer.take_rate()
        step()

    def _update_by_global_norm(self) -> None:
        """An update that needs the sum of squares of all gradients, those of all servers."""
        update, *rest = self._optimizer.steps
        squares = self._optimizer.squares
        assert squares is not None
        update()
        total = self._sum_servers(float(self._backend.read(squares)[0]))
        self._backend.write(squares, np.full(1, total, np.float32))
        for step in rest:
            step()

    def _send_all(self, tag: int) -> None:
        """Give the workers that wait for them a piece's new weights."""
        waiting = self._waiting[tag]
        self._done[tag] += 1
        self._lags[0] += len(waiting)
        for worker in waiting:
            self._send(worker, tag)
        waiting.clear()

    def _send(self, worker: int, tag: int) -> None:
        """Give a worker a piece's weights. They do not change before all have them, as each pushes
        again only then; with backups they may, and the worker is told of how many updates they are.
        """
        arrays = [self._slice(self._weights, tag)]
        if self._consistency.backups is not None:
            arrays = [self._inbox[tag][worker], np.array([self._done[tag]], np.int64)]
            arrays[0][:] = self._slice(self._weights, tag)
        self._pending.add(self._channel.send(arrays, worker, tag))

    def _answer(self, tag: int) -> None:
        """Give weights to the workers that wait for a piece and may go on."""
        clocks, bound = self._clocks[tag], self._consistency.bound
        for worker in list(self._waiting[tag]):
            lag = clocks[worker] - min(clocks)
            if bound is None or lag <= bound:
                self._waiting[tag].remove(worker)
                self._lags[min(lag, LAGS - 1)] += 1
                values = self._inbox[tag][worker]  # which a worker overwrites only after this
                values[:] = self._slice(self._weights, tag)
                self._pending.add(self._channel.send([values], worker, tag))
