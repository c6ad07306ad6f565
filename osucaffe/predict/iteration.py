"""Owns the prediction of iterations: scripts, carried out by all ranks beside their messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..comm.tuning.table import Selection
from ..parallel.config import ParallelConfig
from .cluster import Cluster
from .network import Network
from .plan import ITEM, Planner
from .script import Compute, Post, Script, Update, Wait, record
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
"""What docs/communication.md calls them, and the flags that they are."""
_PASSES_OVER_UPDATE = 5
"""An update reads gradient, weight and history, and writes two of them."""
WARM_UP = 2
"""Iterations until ranks are as far apart as they will be."""


@dataclass(frozen=True)
class Prediction:
    """Milliseconds of iterations: the median, a tenth are below `low`, a tenth above `high`.

    computing: what an iteration computes, without communication. images: a second, all ranks.
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
        """What is left of the rate of as many ranks that need not communicate."""
        return self.computing / self.ms if self.ms else 1.0


class Simulation:
    """Iterations of `size` ranks of a cluster with a net that takes `seconds`.

    passes: the solver's iter_size.
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
    ) -> None:
        self._sketch, self._seconds, self._cluster, self._size = sketch, seconds, cluster, size
        self._planner = Planner(cluster, size, selection, hierarchical=hierarchical)
        self._passes = passes

    def prepare(self, config: ParallelConfig) -> tuple[Script, Run]:
        """What each rank does, and what all of it takes."""
        script = record(self._sketch, config, self._size, self._planner.part, self._passes)
        run = Run(self._planner, self._cluster, self._seconds, beside=config.overlaps)
        return script, run

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
        ends = np.array([run.iterate(script, each) for each in factors])
        taken = np.diff(ends)[WARM_UP - 1 :] * 1e3
        low, median, high = np.percentile(taken, [10, 50, 90])
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
    """All ranks' times: of what computes, and of what communicates (one operation at a time)."""

    def __init__(
        self, planner: Planner, cluster: Cluster, seconds: Seconds, *, beside: bool
    ) -> None:
        self._planner, self._seconds, self._beside = planner, seconds, beside
        self._network = Network(cluster, planner.size)
        self._nap = cluster.device.nap_us / 1e6 if beside else 0.0
        self._stolen, self._held = cluster.device.stolen, cluster.device.held
        rate = cluster.device.memory_gb_s
        self._update = _PASSES_OVER_UPDATE * ITEM / rate / 1e9 if rate else 0.0
        self._now = np.zeros(planner.size)
        self._last = Span(np.zeros(planner.size), np.zeros(planner.size))
        self._spans: list[Span] = []
        """What travels beside computation, one behind the other."""

    def updating(self, elements: int) -> float:
        """Milliseconds of an update."""
        return elements * self._update * 1e3

    def iterate(self, script: Script, factors: np.ndarray) -> float:
        """One iteration behind those before; when the last rank has ended it."""
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
                if self._beside:
                    self._spans.append(self._last)
                else:
                    self._now = self._last.end
            elif isinstance(event, Wait):
                self._now = np.maximum(self._now, posted[event.number].end)
            else:
                self.do(event)
        return float(self._now.max())

    def do(self, event: Any) -> None:
        """What is neither computation nor a collective operation."""
        raise NotImplementedError

    def _compute(self, seconds: np.ndarray) -> None:
        """Ranks compute so long; while anything travels beside it, both are slower."""
        now, left = self._now, seconds
        if self._stolen or self._held:
            self._spans = [span for span in self._spans if (span.end > now).any()]
            end = np.zeros_like(now)
            for span in self._spans:
                late = np.maximum(end - span.begin, 0.0)  # the one before has become longer
                span.begin, span.end = span.begin + late, span.end + late
                alone = np.clip(span.begin - now, 0.0, left)
                now, left = now + alone, left - alone
                travels = np.maximum(span.end - now, 0.0)
                both = np.minimum(left / (1 - self._stolen), travels / (1 - self._held))
                now, left = now + both, left - (1 - self._stolen) * both
                end = span.end = span.end + self._held * both
        self._now = now + left
