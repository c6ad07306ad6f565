"""The prediction of iterations: the scripts of all ranks, overlapped with their messages.

Parameter servers with synchronous updates (for others see `drift.py`) sum the gradients that all
workers have pushed for a piece, update its weights and send them to all. Servers are the last
ranks, as in training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..comm.algorithms import Operation
from ..comm.tuning.table import Selection
from ..parallel.buckets import ITEM, Bucket
from ..parallel.choose import HookDesign, choose_hook
from ..parallel.config import ParallelConfig
from ..parallel.plan import (
    Average,
    Plan,
    Pull,
    Push,
    Send,
    ServerPlan,
    Update,
    UpdateAll,
    Wait,
)
from .cluster import Cluster
from .drift import Drift
from .messages import Pieces, Planner, Waves, with_servers
from .network import SLICES, Network
from .script import Ask, Compute, Script, plan_of, write
from .servers.shards import Consistency, Piece, divide_net
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
SYNC = Consistency.parse("sync")
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
    may be updated separately (see `Update`). consistency: of the servers.
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
        consistency: Consistency = SYNC,
    ) -> None:
        self.sketch, self._seconds, self._cluster, self._size = sketch, seconds, cluster, size
        self._planner = Planner(cluster, size, selection, hierarchical=hierarchical, narrow=narrow)
        self._passes, self._servers, self._separable = passes, servers, separable
        self._consistency = consistency

    def prepare(self, config: ParallelConfig) -> tuple[Script, Run]:
        """What each rank does, and what all of it takes. UserError where servers have no work."""
        sketch, pieces = self.sketch, list[Piece]()
        if self._servers:
            buckets, pieces = divide_net(sketch, config, len(self._servers))
            plan: Plan = ServerPlan(buckets, layerwise=config.aggregation == "layerwise")
        else:
            plan = plan_of(sketch, config, self._planner, separable=self._separable)
        return write(plan, sketch, self._passes), Run(
            self._planner,
            self._cluster,
            self._seconds,
            sketch,
            overlapped=config.overlaps or bool(self._servers),
            servers=self._servers,
            pieces=pieces,
            hook=choose_hook(config),
            records=self._passes * sketch.batch,
        )

    def predict(
        self, design: str, config: ParallelConfig, iterations: int = 1, seed: int = 1
    ) -> Prediction:
        """What iterations take; how much slower or faster each rank computes is drawn for each
        (`iterations` are all alike without stragglers)."""
        script, run = self.prepare(config)
        if self._servers and self._consistency != SYNC:
            return self._let_drift(design, script, run, iterations, seed)
        sigma = self._cluster.sigma
        # Where weights are averaged now and then, what counts is the mean of iterations until then.
        period = max(config.local_steps, 1)
        count = period * ((iterations if sigma else 1) + WARM_UP)
        factors = self._draw(count, seed)
        ends, waited = np.array([(run.iterate(script, f), run.waited) for f in factors]).T
        durations = np.diff(ends[period - 1 :: period])[WARM_UP - 1 :] * 1e3 / period
        exposed = float(waited[WARM_UP * period :].mean() * 1e3)
        return self._sum_up(design, run, durations, exposed, self._size)

    def _let_drift(
        self, design: str, script: Script, run: Run, iterations: int, seed: int
    ) -> Prediction:
        """The same of workers that need not wait for one another."""
        count = iterations + WARM_UP
        drift = Drift(
            self._cluster, self._size, self._servers, run.pieces, self._seconds, self._consistency
        )
        workers = drift.run(script, self._draw(count, seed))
        made, counted = [worker.ends for worker in workers], self._size
        if (backups := self._consistency.backups) is not None:
            counted -= backups
            last = [max(drift.updates[bucket, n] for bucket in run.pieces) for n in range(count)]
            made = [last]
        durations = np.concatenate([np.diff(ends)[WARM_UP - 1 :] for ends in made]) * 1e3
        waits = [worker.waited / max(len(worker.ends), 1) for worker in workers]
        return self._sum_up(design, run, durations, float(np.mean(waits) * 1e3), counted)

    def _draw(self, count: int, seed: int) -> np.ndarray:
        """How much longer or shorter each rank computes in each iteration: one in the mean."""
        sigma = self._cluster.sigma
        draw = np.random.default_rng(seed)
        return np.exp(draw.normal(-(sigma**2) / 2, sigma, (count, self._size)))

    def _sum_up(
        self, design: str, run: Run, durations: np.ndarray, exposed: float, counted: int
    ) -> Prediction:
        """counted: ranks whose gradients are in an iteration's update. Milliseconds."""
        low, median, high = np.percentile(durations, [10, 50, 90])
        computing = self._passes * sum(self._seconds.values()) * 1e3 + run.updating(
            len(self.sketch.arena)
        )
        images = self.sketch.batch * self._passes * counted / median * 1e3
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
        sketch: Sketch,
        *,
        overlapped: bool,
        servers: Sequence[int] = (),
        pieces: Sequence[Piece] = (),
        hook: HookDesign | None = None,
        records: int = 0,
    ) -> None:
        self._planner, self._seconds, self._overlapped = planner, seconds, overlapped
        self._sketch, self._hook = sketch, hook
        self.pieces: dict[int, Pieces] = {}
        """By bucket, (server from 0, elements) pairs."""
        for piece in pieces:
            here = piece.server, piece.stop - piece.start
            self.pieces[piece.bucket] = (*self.pieces.get(piece.bucket, ()), here)
        self._network = Network(cluster, planner.size)
        self._nap = cluster.device.nap_us / 1e6 if overlapped else 0.0
        self._stolen, self._held = cluster.device.stolen, cluster.device.held
        self._update, rate = cluster.device.updating, cluster.device.memory_gb_s
        self._moving = 1 / rate / 1e9 if rate else 0.0
        self._iterations = 0
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
        self._leaving: deque[tuple[int, Waves, np.ndarray]] = deque()
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
            match event:
                case Compute(direction, layer):
                    self._compute(self._seconds[direction, layer] * factors)
                case Ask(operation, elements):
                    self._wait(self._post([(operation, elements)]).end)
                case Send():
                    posted[event.number] = self._send(event)
                case Wait(number):
                    self._wait(posted[number].end)
                case Update(start, stop):
                    self._change(start, stop, factors)
                case UpdateAll():
                    self._change(0, self._sketch.arena.learned, factors)
                case Push(bucket):
                    self._push(bucket, self.pieces[bucket])
                case Pull(bucket):
                    self._pull(np.inf)
                    if bucket in self._pulled:
                        self._wait(self._pulled[bucket])
                case Average(elements=elements) if event.due(self._iterations + 1):
                    # The difference from the last common weights, and the step from there.
                    for _ in range(2):
                        self._change(0, elements, factors)
                    self._wait(self._send(Send(0, Operation.ALL_REDUCE, 0, elements)).end)
        self._iterations += 1
        return float(self._now.max())

    def _change(self, start: int, stop: int, factors: np.ndarray) -> None:
        """Ranks update these elements, as far as they are theirs."""
        owned = sum(last - first for first, last, _ in self._sketch.arena.owned(start, stop))
        self._compute(owned * self._update * factors)

    def _send(self, event: Send) -> Span:
        """Ranks begin an operation, or what the hook makes of it."""
        elements = event.stop - event.start
        if self._hook is None or event.weights:
            narrows = self._planner.narrows(event.operation) and not event.weights
            touched = NARROWING if narrows else 0.0
            return self._post([(event.operation, elements)], elements * touched)
        bucket = Bucket(event.start, event.stop, 0)
        size = self._planner.size
        messages = self._hook.messages(self._sketch, bucket, size)
        fixed, each = self._hook.kind.touched
        return self._post(messages, elements * ITEM * (fixed + size * each))

    def _post(self, messages: Sequence[tuple[Operation, int]], nbytes: float = 0.0) -> Span:
        """Operations on that many elements begin, one after the other; nbytes: that their caller
        reads and writes beside computation."""
        begin = end = np.maximum(self._now, self._last.end)
        for operation, elements in messages:
            plan, scale = self._planner.plan(operation, elements)
            end = self._network.run(plan, end, scale, self._nap)
        self._last = Span(begin, end + nbytes * self._moving)
        if self._overlapped:
            self._spans.append(self._last)
        else:
            self._wait(self._last.end)
        return self._last

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
        # In slices, as messages of several workers share a port.
        pushes, pulls = with_servers(range(workers), workers, servers, pieces, SLICES)
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
