"""The prediction of workers that need not wait for one another: --consistency ssp:N, async and
backup:B. Each goes through its script by itself, and the one that is least far goes on.

A server treats pushes in the order in which workers sent them: it updates from each by itself, or,
with backups, from the sum of all but that many, and drops the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from ..parallel.buckets import ITEM
from ..parallel.plan import Pull, Push
from .cluster import Cluster
from .messages import Pieces, Waves, with_servers
from .network import Network
from .script import Compute, Script
from .servers.shards import Consistency
from .times import Seconds


@dataclass
class Worker:
    """How far one is: its time, the next event of its script, and its iterations, those that it
    left out, too. ends: of those that it made. waited: seconds for weights."""

    now: float = 0.0
    event: int = 0
    done: int = 0
    ends: list[float] = field(default_factory=list)
    waited: float = 0.0


class Drift:
    """Workers and servers of a cluster. servers: their hosts. pieces: by bucket."""

    def __init__(
        self,
        cluster: Cluster,
        workers: int,
        servers: Sequence[int],
        pieces: dict[int, Pieces],
        seconds: Seconds,
        consistency: Consistency,
    ) -> None:
        self._links = Network(cluster, workers, servers)
        self._pieces, self._seconds, self._consistency = pieces, seconds, consistency
        device = cluster.server or cluster.device
        self._adding, self._updating = device.adding * ITEM, device.updating
        self._free = np.zeros(len(servers))
        self._workers = [Worker() for _ in range(workers)]
        self._treated: dict[int, list[list[float]]] = {
            bucket: [[] for _ in range(workers)] for bucket in pieces
        }
        """By bucket and worker, when each of its pushes had been treated."""
        self._sums: dict[tuple[int, int], int] = defaultdict(int)
        """By bucket and iteration, how many gradients servers have added."""
        self.updates: dict[tuple[int, int], float] = {}
        """With backups, by bucket and iteration, when it was complete."""

    def run(self, script: Script, factors: np.ndarray) -> list[Worker]:
        """The workers after as many iterations as there are rows: of how much longer or shorter
        each worker computes in one."""
        queue, held = [(0.0, rank) for rank in range(len(self._workers))], list[int]()
        while queue:
            _, rank = heappop(queue)
            worker = self._workers[rank]
            if worker.done == len(factors):
                continue
            event = script[worker.event]
            if not self._go_on(rank, worker, script, factors):
                held.append(rank)
                continue
            heappush(queue, (worker.now, rank))
            if isinstance(event, Push):  # others may have waited for it
                for each in held:
                    heappush(queue, (self._workers[each].now, each))
                held.clear()
        return self._workers

    def _go_on(self, rank: int, worker: Worker, script: Script, factors: np.ndarray) -> bool:
        """One event, or an iteration left out; False where others must push before."""
        if not worker.event and self._is_late(worker):
            worker.done += 1
            return True
        match script[worker.event]:
            case Compute(direction, layer):
                worker.now += self._seconds[direction, layer] * factors[worker.done, rank]
            case Push(bucket):
                self._push(rank, worker, bucket)
            case Pull(bucket) if worker.done:
                ready = self._ready(rank, worker, bucket)
                if ready is None:
                    return False
                begin = np.append(np.zeros(len(self._workers)), np.full(len(self._free), ready))
                _, back = self._messages(rank, bucket)
                came = max(worker.now, float(self._links.run(back, begin)[rank]))
                worker.waited += came - worker.now
                worker.now = came
        worker.event += 1
        if worker.event == len(script):
            worker.event, worker.done = 0, worker.done + 1
            worker.ends.append(worker.now)
        return True

    def _push(self, rank: int, worker: Worker, bucket: int) -> None:
        """Gradients leave now, and servers treat them when they have come."""
        workers, servers = len(self._workers), len(self._free)
        there, _ = self._messages(rank, bucket)
        begin = np.zeros(workers + servers)
        begin[rank] = worker.now
        came = self._links.run(there, begin)[workers:]
        key, backups = (bucket, worker.done), self._consistency.backups
        if backups is not None and key in self.updates:
            return
        self._sums[key] += 1
        updates = backups is None or self._sums[key] == workers - backups
        cost = self._adding + (self._updating if updates else 0.0)
        for server, elements in self._pieces[bucket]:
            self._free[server] = max(came[server], self._free[server]) + elements * cost
        done = max(float(self._free[server]) for server, _ in self._pieces[bucket])
        self._treated[bucket][rank].append(done)
        if backups is not None and updates:
            self.updates[key] = done

    def _messages(self, rank: int, bucket: int) -> tuple[Waves, Waves]:
        """A worker's, and what servers send back."""
        workers, servers = len(self._workers), len(self._free)
        return with_servers(range(rank, rank + 1), workers, servers, self._pieces[bucket])

    def _ready(self, rank: int, worker: Worker, bucket: int) -> float | None:
        """When servers have the weights that a worker's next iteration begins with; None: nobody
        knows yet."""
        if self._consistency.backups is not None:
            return self.updates.get((bucket, worker.done - 1))
        treated, bound = self._treated[bucket], self._consistency.bound
        ready = treated[rank][-1]
        least = 0 if bound is None else worker.done - bound
        if least <= 0:
            return ready
        if min(map(len, treated)) < least:
            return None
        return max(ready, *(times[least - 1] for times in treated))

    def _is_late(self, worker: Worker) -> bool:
        """With backups, whether an iteration's updates were made without this worker."""
        at = [self.updates.get((bucket, worker.done), np.inf) for bucket in self._pieces]
        return max(at) <= worker.now
