"""Owns the prediction of iterations: the scripts of all ranks, overlapped with their messages.

Parameter servers are modelled with synchronous updates: a server sums the gradients that all
workers have pushed for a piece, updates its weights and sends them to all. Servers are the last
ranks, as in training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..comm.tuning.table import Selection
from ..parallel.buckets import ITEM
from ..parallel.config import ParallelConfig
from .cluster import Cluster
from .network import SLICES, Network
from .plan import Plan, Planner, RankStep, waves
from .script import Compute, Pieces, Post, Push, Script, Update, Wait, record, record_served
from .sketch import Sketch
from .times import Seconds

SPLIT, SHARDED = "split", "sharded"
"""The designs whose sketch has split inner products; that divides the update among ranks."""
DESIGNS = {
    "SC-B": ParallelConfig("blocking", "blocking"),
    "SC-OB": ParallelConfig("blocking", "overlapped"),
    "SC-OBR": ParallelConfig("layerwise", "overlapped"),
    "all-reduce behind": ParallelConfig("blocking", "none"),
    "all-reduce": ParallelConfig("layerwise", "none"),
    SHARDED: ParallelConfig("layerwise", "sharded"),
    SPLIT: ParallelConfig("layerwise", "none", split_inner_products="auto"),
    "Horovod": ParallelConfig("buckets", "none", bucket=64 << 20),
    "servers": ParallelConfig("layerwise"),
    "servers behind": ParallelConfig("blocking"),
}
"""Their names in docs/communication.md, and the settings they use. Horovod's buffers have a size of
their own; servers push behind backward, as TensorFlow's did in 2018, or beside it."""
SERVED = "servers", "servers behind"
NARROWING = 12
"""Bytes that move for each gradient that travels in 16 bits: it is read and written twice."""
WARM_UP = 2
"""Iterations until the skew between ranks is stable."""


@dataclass(frozen=True)
class Prediction:
    """Milliseconds of iterations: the median, a tenth are below `low`, a tenth above `high`.

    computing: of the computation alone. exposed: what a rank only waits for others, the mean of the
    ranks. images: per second, of all ranks.
    """

    design: str
    ranks: int
    ms: float
    low: float
    high: float
    computing: float
    exposed: float
    images: float

    @property
    def efficiency(self) -> float:
        """The rate as a fraction of that of as many ranks without communication."""
        return self.computing / self.ms if self.ms else 1.0


class Simulation:
    """Iterations of `size` ranks of a cluster with a net that takes `seconds`.

    passes: the solver's iter_size. servers: the hosts of parameter servers, which the designs of
    `SERVED` have; they are ranked last. narrow: gradients travel in 16 bits. separable: parameters
    may be updated separately (see `Update`).
    """

    def __init__(
        self,
        sketch: Sketch,
        seconds: Seconds,
        cluster: Cluster,
        size: int,
        selection: Selection,
        *,
        hierarchical: bool = True,
        passes: int = 1,
        servers: Sequence[int] = (),
        narrow: bool = False,
        separable: bool = True,
    ) -> None:
        self.sketch, self._seconds, self._cluster, self._size = sketch, seconds, cluster, size
        self._planner = Planner(cluster, size, selection, hierarchical=hierarchical, narrow=narrow)
        self._passes, self._servers, self._separable = passes, servers, separable

    def prepare(self, config: ParallelConfig) -> tuple[Script, Run]:
        """What each rank does, and what all of it takes. UserError where servers have no work."""
        if self._servers:
            count = len(self._servers)
            script = record_served(
                self.sketch, config, self._size, count, self._passes, separable=self._separable
            )
        else:
            script = record(
                self.sketch, config, self._size, self._planner.part, self._passes,
                separable=self._separable,
            )  # fmt: skip
        return script, Run(
            self._planner,
            self._cluster,
            self._seconds,
            overlapped=config.overlaps or bool(self._servers),
            servers=self._servers,
            records=self._passes * self.sketch.batch,
        )

    def predict(
        self, design: str, config: ParallelConfig, iterations: int = 1, seed: int = 1
    ) -> Prediction:
        """What iterations take; how much slower or faster each rank computes is drawn for each
        (`iterations` are all alike without stragglers)."""
        script, run = self.prepare(config)
        draw = np.random.default_rng(seed)
        sigma = self._cluster.sigma
        count = (iterations if sigma else 1) + WARM_UP
        # The mean of what is drawn is one.
        factors = np.exp(draw.normal(-(sigma**2) / 2, sigma, (count, self._size)))
        ends, waited = np.array([(run.iterate(script, f), run.waited) for f in factors]).T
        durations = np.diff(ends)[WARM_UP - 1 :] * 1e3
        exposed = float(waited[WARM_UP:].mean() * 1e3)
        low, median, high = np.percentile(durations, [10, 50, 90])
        computing = self._passes * sum(self._seconds.values()) * 1e3 + run.updating(
            len(self.sketch.arena)
        )
        images = self.sketch.batch * self._passes * self._size / median * 1e3
        return Prediction(design, self._size, median, low, high, computing, exposed, images)


@dataclass
class Span:
    """When each rank begins and ends an operation."""

    begin: np.ndarray
    end: np.ndarray


class Run:
    """All ranks' times: of what computes, and of what communicates (one operation at a time); and
    when each server has done what it was given."""

    def __init__(
        self,
        planner: Planner,
        cluster: Cluster,
        seconds: Seconds,
        *,
        overlapped: bool,
        servers: Sequence[int] = (),
        records: int = 0,
    ) -> None:
        self._planner, self._seconds, self._overlapped = planner, seconds, overlapped
        self._network = Network(cluster, planner.size)
        self._nap = cluster.device.nap_us / 1e6 if overlapped else 0.0
        self._stolen, self._held = cluster.device.stolen, cluster.device.held
        self._update, rate = cluster.device.updating, cluster.device.memory_gb_s
        self._narrowing = NARROWING / rate / 1e9 if rate else 0.0
        self._reading, self._read = 0.0, 0.0
        """Seconds to read the records of an iteration; when those of the next one are there."""
        if cluster.reading:
            self._reading = cluster.reading.seconds(records, planner.size)
        self._now = np.zeros(planner.size)
        self.waited = 0.0
        """Seconds that a rank only waited for others in the last iteration, the mean of all."""
        self._last = Span(np.zeros(planner.size), np.zeros(planner.size))
        self._spans: list[Span] = []
        """Communication that overlaps with computation, in order."""
        self._links = Network(cluster, planner.size, servers)
        server = cluster.server or cluster.device
        self._serving = server.adding * ITEM * planner.size + server.updating
        """Seconds that a server takes for an element."""
        self._free = np.zeros(len(servers))
        self._leaving: deque[tuple[int, Plan, np.ndarray]] = deque()
        """Buckets whose weights servers are going to send, and when each server is."""
        self._pulled: dict[int, np.ndarray] = {}
        """By bucket, when each worker has the weights for its last push."""

    def updating(self, elements: int) -> float:
        """Milliseconds of an update."""
        return elements * self._update * 1e3

    def iterate(self, script: Script, factors: np.ndarray) -> float:
        """Simulate the next iteration; returns when the last rank has ended it."""
        posted: dict[int, Span] = {}
        self.waited = 0.0
        self._read += self._reading
        self._now = np.maximum(self._now, self._read)
        for event in script:
            if isinstance(event, Compute):
                self._compute(self._seconds[event.direction, event.layer] * factors)
            elif isinstance(event, Update):
                self._compute(event.elements * self._update * factors)
            elif isinstance(event, Post):
                plan, scale = self._planner.plan(event.operation, event.elements, event.root)
                begin = np.maximum(self._now, self._last.end)
                end = self._network.run(plan, begin, scale, self._nap)
                if self._planner.narrows(event.operation):
                    end += event.elements * self._narrowing
                self._last = Span(begin, end)
                posted[event.number] = self._last
                if self._overlapped:
                    self._spans.append(self._last)
                else:
                    self._wait(self._last.end)
            elif isinstance(event, Wait):
                self._wait(posted[event.number].end)
            elif isinstance(event, Push):
                self._push(event.bucket, event.pieces)
            else:
                self._pull(np.inf)
                if event.bucket in self._pulled:
                    self._wait(self._pulled[event.bucket])
        return float(self._now.max())

    def _wait(self, until: np.ndarray) -> None:
        """Each rank does nothing until then."""
        until = np.maximum(self._now, until)
        self.waited += float((until - self._now).mean())
        self._now = until

    def _compute(self, seconds: np.ndarray) -> None:
        """Ranks compute for these times; overlapping communication slows both."""
        now, left = self._now, seconds
        if self._stolen or self._held:
            self._spans = [span for span in self._spans if (span.end > now).any()]
            end = np.zeros_like(now)
            for span in self._spans:
                late = np.maximum(end - span.begin, 0.0)  # the previous one has been prolonged
                span.begin, span.end = span.begin + late, span.end + late
                alone = np.clip(span.begin - now, 0.0, left)
                now, left = now + alone, left - alone
                travels = np.maximum(span.end - now, 0.0)
                both = np.minimum(left / (1 - self._stolen), travels / (1 - self._held))
                now, left = now + both, left - (1 - self._stolen) * both
                end = span.end = span.end + self._held * both
        self._now = now + left

    def _push(self, bucket: int, pieces: Pieces) -> None:
        """The gradients of a bucket leave now; its weights come when the servers have them."""
        self._pull(self._now.max())
        workers, servers = len(self._now), len(self._free)
        pushes, pulls = _plans(workers, servers, pieces)
        came = self._links.run(pushes, np.append(self._now, np.zeros(servers)))[workers:]
        for server, elements in pieces:
            begin = max(came[server], self._free[server])
            self._free[server] = begin + elements * self._serving
        self._leaving.append((bucket, pulls, self._free.copy()))

    def _pull(self, now: float) -> None:
        """Weights that leave the servers by then travel. (Not before: ports that servers share with
        workers carry what these have pushed meanwhile.)"""
        workers = len(self._now)
        while self._leaving and self._leaving[0][2].max() <= now:
            bucket, pulls, begin = self._leaving.popleft()
            gone = self._links.run(pulls, np.append(np.zeros(workers), begin))
            self._pulled[bucket] = gone[:workers]


@lru_cache(maxsize=1024)
def _plans(workers: int, servers: int, pieces: Pieces) -> tuple[Plan, Plan]:
    """All workers' messages to the servers of some pieces, and what these send back, cut into
    slices: messages of several peers share a port."""
    every = range(workers)
    with_servers = [(workers + server, elements * ITEM // SLICES) for server, elements in pieces]
    ranks: list[list[RankStep]] = [[(with_servers * SLICES, [], 0)] for _ in every]
    ranks += [[] for _ in range(servers)]
    for server, nbytes in with_servers:
        ranks[server] = [([], [(worker, nbytes) for worker in every] * SLICES, 0)]
    back = [[(receives, sends, 0) for sends, receives, _ in steps] for steps in ranks]
    return waves(ranks), waves(back)
