"""Owns the prediction of training with parameter servers whose updates are of all workers' sum.

What a worker pushes and waits for, and when, is noted while the code that trains runs; pieces are
as it divides them. A server adds what all workers have pushed of a piece, updates its weights and
sends them to all. Servers are the ranks behind the workers', as in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..backends.tensor import Tensor
from ..comm.job.job import Job
from ..parallel.config import ParallelConfig
from ..parallel.servers.shards import Piece, divide_net
from ..parallel.servers.training import ServerExchange
from .cluster import Cluster
from .iteration import Run, Simulation
from .network import Network
from .plan import ITEM, Plan, Planner, RankStep, waves
from .script import NotedUpdate, Script, play
from .sketch import Sketch
from .times import Seconds

SERVERS = "servers"
"""What the design is called."""

Pieces = tuple[tuple[int, int], ...]
"""By server (from 0) the elements of a bucket that are its."""


class Push(NamedTuple):
    """A bucket's gradients leave."""

    bucket: int
    pieces: Pieces


class Pull(NamedTuple):
    """The caller waits for the weights of a bucket that was pushed last."""

    bucket: int


class NotedLink:
    """Notes what a worker pushes and waits for. pieces: of all buckets."""

    def __init__(self, pieces: Sequence[Piece], script: Script) -> None:
        self._pieces, self._script = pieces, script

    def push(self, bucket: int, rate: float, stream: Any = None) -> None:
        own = [each for each in self._pieces if each.bucket == bucket]
        pieces = tuple((each.server, each.stop - each.start) for each in own)
        self._script.append(Push(bucket, pieces))

    def wait(self, bucket: int, stream: Any = None) -> bool:
        self._script.append(Pull(bucket))
        return False

    def read(self, which: int, flat: Tensor) -> None:
        """Nothing is asked for between iterations."""


def record(
    sketch: Sketch, config: ParallelConfig, workers: int, servers: int, passes: int = 1
) -> Script:
    """The script of a worker. UserError where servers have no work."""
    script: Script = []
    buckets, pieces = divide_net(sketch, config, servers)
    exchange = ServerExchange(
        Job(),
        sketch,
        NotedUpdate(0, script),
        NotedLink(pieces, script),
        buckets,
        range(workers, workers + servers),
        layerwise=config.aggregation == "layerwise",
        together=True,
    )
    return play(sketch, exchange, script, passes)


class ServedRun(Run):
    """All workers' times, and when each server has done what it was given."""

    def __init__(self, planner: Planner, cluster: Cluster, seconds: Seconds, servers: int) -> None:
        super().__init__(planner, cluster, seconds, beside=True)
        self._links = Network(cluster, planner.size + servers)
        self._adding = cluster.device.adding * ITEM * planner.size
        self._free = np.zeros(servers)
        self._here: dict[int, np.ndarray] = {}

    def do(self, event: Any) -> None:
        """A push, or a pull."""
        if isinstance(event, Push):
            self._here[event.bucket] = self._exchange(event.pieces)
        elif event.bucket in self._here:
            self._now = np.maximum(self._now, self._here[event.bucket])

    def _exchange(self, pieces: Pieces) -> np.ndarray:
        """When the weights of pieces, whose gradients leave now, are with each worker."""
        workers, servers = len(self._now), len(self._free)
        pushes, pulls = _plans(workers, servers, pieces)
        came = self._links.run(pushes, np.append(self._now, np.zeros(servers)))[workers:]
        for server, elements in pieces:
            begin = max(came[server], self._free[server])
            self._free[server] = begin + elements * (self._adding + self._update)
        gone = self._links.run(pulls, np.append(np.zeros(workers), self._free))
        here: np.ndarray = gone[:workers]
        return here


@lru_cache(maxsize=1024)
def _plans(workers: int, servers: int, pieces: Pieces) -> tuple[Plan, Plan]:
    """All workers' messages to the servers of some pieces, and what these send back."""
    every = range(workers)
    there: list[RankStep] = [
        ([(workers + server, elements * ITEM) for server, elements in pieces], [], 0)
    ] * workers
    back: list[RankStep] = [(receives, sends, 0) for sends, receives, _ in there]
    sizes = dict(pieces)
    nobody: list[list[RankStep]] = [[] for _ in range(servers)]
    into, out = [*nobody], [*nobody]
    for server, elements in sizes.items():
        messages = [(worker, elements * ITEM) for worker in every]
        into[server], out[server] = [([], messages, 0)], [(messages, [], 0)]
    return waves([[step] for step in there] + into), waves([[step] for step in back] + out)


class ServedSimulation(Simulation):
    """Iterations of `size` ranks of a cluster, with so many servers behind them."""

    def __init__(self, *arguments: Any, servers: int, passes: int = 1) -> None:
        """arguments: a Simulation's."""
        super().__init__(*arguments, passes=passes)
        self._servers = servers

    def prepare(self, config: ParallelConfig) -> tuple[Script, Run]:
        """What each worker does, and what all of it takes. UserError where servers have no work."""
        script = record(self._sketch, config, self._size, self._servers, self._passes)
        return script, ServedRun(self._planner, self._cluster, self._seconds, self._servers)
