"""Owns training with parameter servers: the ranks of a job that train, beside those that serve.

Gradients are pushed bucket by bucket beside backward, and the weights that come back are waited for
layer by layer ahead of the next forward.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...backends.backend import Backend
from ...backends.tensor import Step, sequence
from ...comm.channels.channel import Channel
from ...comm.channels.mpi import MpiChannel
from ...comm.create import CommConfig
from ...comm.job.job import MpiJob
from ...comm.job.subset import Subset
from ...comm.job.topology import Topology
from ...errors import UserError
from ...net import Net
from ...solvers.process_group import Trained
from ..buckets import ITEM, find_buckets
from ..config import ParallelConfig
from ..data_parallel import DataParallel
from .server import Server
from .shards import Consistency, describe_part, divide
from .worker import Pushing

logger = logging.getLogger("osucaffe")

AHEAD = 64
"""Iterations that a worker may be ahead of another with async: so late all agree on a stop."""


@dataclass(frozen=True)
class Roles:
    """A job whose last ranks serve and whose first ones train; a rank's own half is `part`."""

    part: Subset
    channel: Channel
    workers: int
    consistency: Consistency

    @property
    def servers(self) -> range:
        """Their ranks."""
        return range(self.workers, self.channel.size)

    @property
    def serves(self) -> bool:
        """Whether this rank does."""
        return self.channel.rank in self.servers

    def serve(self, backend: Backend) -> None:
        """What such a rank does, until all workers have ended."""
        world = self.part.world
        Server(self.channel, self.workers, self.consistency, backend, world.allreduce).serve()
        self.close()

    def close(self) -> None:
        """All ranks call it together."""
        self.channel.close()
        self.part.close()


def assign_roles(
    job: MpiJob, servers: int, consistency: Consistency, channel: Channel | None = None
) -> Roles:
    """Let the last ranks serve. All ranks call it together. channel: of all ranks (None: MPI's)."""
    workers = job.size - servers
    if workers < 1:
        raise UserError(f"--servers {servers} of {job.size} ranks leave none that trains")
    lag = 1 + (AHEAD if consistency.bound is None else consistency.bound)
    part = Subset(job, job.world.Split(int(job.rank >= workers)), lag=lag)
    return Roles(part, channel or MpiChannel(job.mpi, job.world), workers, consistency)


class Served(DataParallel):
    """The ranks that train, as a solver's process group."""

    def __init__(
        self, roles: Roles, topology: Topology, comm_config: CommConfig, config: ParallelConfig
    ) -> None:
        self._roles = roles
        self._pushing: Pushing | None = None
        self._lags = np.zeros(0, np.int64)
        if config.propagation not in ("auto", "none"):
            raise UserError(
                f"--propagation {config.propagation}: with --servers weights come from these: "
                "leave it out"
            )
        if comm_config.gradient_dtype != "float32":
            raise UserError(
                f"--gradient_type {comm_config.gradient_dtype}: servers take float32: leave it out"
            )
        if comm_config.kind == "auto":  # only the first weights go by it
            comm_config = replace(comm_config, kind="mpi")
        topology = replace(topology, ranks=topology.ranks[: roles.workers])
        super().__init__(roles.part, topology, comm_config, replace(config, propagation="none"))

    @property
    def lags(self) -> np.ndarray:
        """How many pieces of weights came with each lag: the iterations by which a worker was ahead
        of the slowest one then. After `close`."""
        return np.trim_zeros(self._lags, "b")

    # -- building --------------------------------------------------------------------------------

    def _plan(self, solver: Trained) -> None:
        net, optimizer = solver.net, solver.optimizer
        if solver.loss_scale is not None:
            raise UserError("--loss_scale: servers take gradients as they are: leave it out")
        if not (optimizer.separable or self._roles.consistency.together):
            raise UserError(
                "clip_gradients needs the sum over all gradients of an iteration, which only "
                "--consistency sync has: choose that, or leave it out"
            )
        self._divide(net)
        optimizer.steps = []  # the servers make the updates
        if self._pushing is not None:
            self._pushing.stop()
        data, diff = net.arena.data, net.arena.diff
        roles = self._roles
        self._pushing = Pushing(
            roles.channel, roles.servers, self._buckets, self._pieces, data, diff
        )
        self._parameters = [
            [
                parameter.blob.data
                for start, _, parameter in net.arena.segments
                if bucket.start <= start < bucket.stop
            ]
            for bucket in self._buckets
        ]
        self._weights_differ = self._history_differs = False

    def _divide(self, net: Net) -> None:
        """Cut the net's weights into buckets, and these into the servers' pieces. UserError where a
        server has none."""
        layerwise = self._config.aggregation == "layerwise"
        nbytes = self._config.bucket if layerwise else len(net.arena) * ITEM
        self._buckets = find_buckets(net, nbytes, frozen=False)
        servers = len(self._roles.servers)
        self._pieces = divide(self._buckets, servers)
        if (used := len({piece.server for piece in self._pieces})) < servers:
            raise UserError(
                f"--servers {servers}: this net's weights make work for only {used}: ask for so "
                "many"
            )
        self._pushed = 0

    def changed(self) -> None:
        super().changed()
        self._weights_differ = self._history_differs = False

    def begin(self) -> None:
        """And the servers get the weights and the history of worker 0."""
        if self._agreed:
            return
        super().begin()
        if self.rank == 0:
            net, optimizer = self._solver.net, self._solver.optimizer
            flats = [net.arena.data, *optimizer.flats]
            for server in range(len(self._roles.servers)):
                told = describe_part(net, optimizer.update, self._pieces, server)
                with self._job.watch(f"server {server} to begin"):
                    self._link.set_up(server, told, flats)
            held = ", ".join(
                f"{sum(p.stop - p.start for p in self._pieces if p.server == server) * ITEM:,}"
                for server in range(len(self._roles.servers))
            )
            logger.info("%d servers hold %s bytes of weights", len(self._roles.servers), held)
        self._job.barrier()

    # -- iterations ------------------------------------------------------------------------------

    @property
    def _link(self) -> Pushing:
        assert self._pushing is not None
        return self._pushing

    @property
    def _enqueues(self) -> bool:
        return False

    @property
    def _updates_weights(self) -> bool:
        return False

    def overlap_hooks(
        self, *, accumulate: bool, update: bool
    ) -> tuple[dict[int, Step], dict[int, Step]]:
        before: dict[int, Step] = {}
        after: dict[int, Step] = {}
        for index, bucket in enumerate(self._buckets):
            wait = partial(self._wait, index)
            before[bucket.layer] = sequence([*filter(None, [before.get(bucket.layer)]), wait])
            if update and self._config.aggregation == "layerwise":
                after[bucket.layer] = partial(self._push, bucket.layer)
        return {} if accumulate else before, after

    def _finish(self, after: dict[int, Step]) -> list[Step]:
        return [self._push_rest]

    def _push(self, layer: int) -> None:
        """Backward has run this layer and all above it."""
        count = len(self._buckets)
        while self._pushed < count and layer <= self._buckets[self._pushed].layer:
            solver = self._solver
            self._link.push(self._pushed, solver.optimizer.rate, solver.backend.current)
            self._pushed += 1

    def _push_rest(self) -> None:
        """Backward has run all layers."""
        self._push(0)
        self._pushed = 0
        self._weights_differ = self._history_differs = True

    def _wait(self, bucket: int) -> None:
        with self._job.watch(f"weights from the servers (ranks {self._roles.servers})"):
            backend = self._solver.backend
            if self._link.wait(bucket, backend.current):
                backend.follow(self._parameters[bucket])

    def exchange(self) -> None:
        self._push_rest()
        for bucket in range(len(self._buckets)):
            self._wait(bucket)

    def updated(self) -> None:
        pass  # `_push` knows

    def _synchronize_learned(self, *, history: bool = False) -> None:
        for bucket in range(len(self._buckets)):
            self._wait(bucket)
        net, optimizer = self._solver.net, self._solver.optimizer
        with self._job.watch("weights and history from the servers"):
            if self._weights_differ and not self._roles.consistency.together:
                self._job.barrier()  # all that was pushed is in what the servers have
                self._link.read(0, net.arena.data)
                for parameters in self._parameters:
                    net.backend.follow(parameters)
            self._weights_differ = False
            if history and self._history_differs and self.rank == 0:
                for number, flat in enumerate(optimizer.flats):
                    self._link.read(1 + number, flat)
                self._history_differs = False

    def close(self) -> None:
        """All workers are done; the servers end."""
        if self._pushing is not None:
            self._lags = self._pushing.end()
            lags = self.lags
            if len(lags) > 1 and self.rank == 0:
                mean = float(np.average(np.arange(len(lags)), weights=lags))
                logger.info(
                    "Weights came at most %d iterations ahead of the slowest worker (%.2g in the "
                    "mean)",
                    len(lags) - 1,
                    mean,
                )
        super().close()
        self._roles.close()
