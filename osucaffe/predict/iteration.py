"""Owns the prediction of iterations: the scripts of all ranks, overlapped with their messages.

Parameter servers are modelled with synchronous updates: a server sums the gradients that all
workers have pushed for a piece, updates its weights and sends them to all. Servers are the last
ranks, as in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..comm.tuning.table import Selection
from ..parallel.config import ParallelConfig
from .cluster import Cluster
from .network import Network
from .plan import ITEM, Plan, Planner, RankStep, waves
from .script import Compute, Pieces, Post, Push, Script, Update, Wait, record, record_served
from .sketch import Sketch
from .times import Seconds

DESIGNS = {
    "SC-B": ParallelConfig("blocking", "blocking"),
    "SC-OB": ParallelConfig("blocking", "overlapped"),
    "SC-OBR": ParallelConfig("layerwise", "overlapped"),
    "all-reduce behind": ParallelConfig("blocking", "none"),
    "all-reduce": ParallelConfig("layerwise", "none"),
    "sharded": ParallelConfig("layerwise", "sharded"),
}
"""Their names in docs/communication.md, and the settings they use."""
_PASSES_OVER_UPDATE = 5
"""An update reads gradient, weight and history, and writes two of them."""
SERVERS = "servers"
"""The name of the design with parameter servers."""
WARM_UP = 2
"""Iterations until the skew between ranks is stable."""


@dataclass(frozen=True)
class Prediction:
    """Milliseconds of iterations: the median, a tenth are below `low`, a tenth above `high`.

    computing: of the computation alone. images: per second, of all ranks.
    """

    design: str
    ranks: int
    ms: float
    low: float
    high: float
    computing: float
    images: float

    @property
    def efficiency(self) -> float:
        """The rate as a fraction of that of as many ranks without communication."""
        return self.computing / self.ms if self.ms else 1.0


class Simulation:
    """Iterations of `size` ranks of a cluster with a net that takes `seconds`.

    passes: the solver's iter_size. servers: the number of parameter servers, ranked last (0: none).
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
        servers: int = 0,
    ) -> None:
        self._sketch, self._seconds, self._cluster, self._size = sketch, seconds, cluster, size
        self._planner = Planner(cluster, size, selection, hierarchical=hierarchical)
        self._passes, self._servers = passes, servers

    def prepare(self, config: ParallelConfig) -> tuple[Script, Run]:
        """What each rank does, and what all of it takes. UserError where servers have no work."""
        if self._servers:
            script = record_served(self._sketch, config, self._size, self._servers, self._passes)
        else:
            script = record(self._sketch, config, self._size, self._planner.part, self._passes)
        return script, Run(
            self._planner,
            self._cluster,
            self._seconds,
            overlapped=config.overlaps or self._servers > 0,
            servers=self._servers,
        )

    def predict(
        self, design: str, config: ParallelConfig, iterations: int = 1, seed: int = 1
    ) -> Prediction:
        """What iterations take; how much each rank computes slower or faster is drawn anew for each
        (`iterations` are all alike without stragglers)."""
        script, run = self.prepare(config)
        draw = np.random.default_rng(seed)
        sigma = self._cluster.sigma
        count = (iterations if sigma else 1) + WARM_UP
        # The mean of what is drawn is one.
        factors = np.exp(draw.normal(-(sigma**2) / 2, sigma, (count, self._size)))
        ends = np.array([run.iterate(script, factor) for factor in factors])
        durations = np.diff(ends)[WARM_UP - 1 :] * 1e3
        low, median, high = np.percentile(durations, [10, 50, 90])
        computing = self._passes * sum(self._seconds.values()) * 1e3 + run.updating(
            len(self._sketch.arena)
        )
        images = self._sketch.batch * self._passes * self._size / median * 1e3
        return Prediction(design, self._size, median, low, high, computing, images)


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
        servers: int = 0,
    ) -> None:
        self._planner, self._seconds, self._overlapped = planner, seconds, overlapped
        self._network = Network(cluster, planner.size)
        self._nap = cluster.device.nap_us / 1e6 if overlapped else 0.0
        self._stolen, self._held = cluster.device.stolen, cluster.device.held
        rate = cluster.device.memory_gb_s
        self._update = _PASSES_OVER_UPDATE * ITEM / rate / 1e9 if rate else 0.0
        self._now = np.zeros(planner.size)
        self._last = Span(np.zeros(planner.size), np.zeros(planner.size))
        self._spans: list[Span] = []
        """Communication that overlaps with computation, in order."""
        self._links = Network(cluster, planner.size + servers)
        self._adding = cluster.device.adding * ITEM * planner.size
        self._free = np.zeros(servers)
        self._pulled: dict[int, np.ndarray] = {}
        """By bucket, when each worker has the weights for its last push."""

    def updating(self, elements: int) -> float:
        """Milliseconds of an update."""
        return elements * self._update * 1e3

    def iterate(self, script: Script, factors: np.ndarray) -> float:
        """Simulate the next iteration; returns when the last rank has ended it."""
        posted: dict[int, Span] = {}
        for event in script:
            if isinstance(event, Compute):
                self._compute(self._seconds[event.direction, event.layer] * factors)
            elif isinstance(event, Update):
                self._compute(event.elements * self._update * factors)
            elif isinstance(event, Post):
                plan, scale = self._planner.plan(event.operation, event.elements, event.root)
                begin = np.maximum(self._now, self._last.end)
                self._last = Span(begin, self._network.run(plan, begin, scale, self._nap))
                posted[event.number] = self._last
                if self._overlapped:
                    self._spans.append(self._last)
                else:
                    self._now = self._last.end
            elif isinstance(event, Wait):
                self._now = np.maximum(self._now, posted[event.number].end)
            elif isinstance(event, Push):
                self._pulled[event.bucket] = self._exchange(event.pieces)
            elif event.bucket in self._pulled:
                self._now = np.maximum(self._now, self._pulled[event.bucket])
        return float(self._now.max())

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
