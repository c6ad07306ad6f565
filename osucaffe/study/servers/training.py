"""Training with parameter servers: the roles of ranks, and the ranks that train.

Gradients are pushed bucket by bucket during backward; the next forward waits for the new weights
layer by layer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...backends.backend import Backend
from ...backends.tensor import Run
from ...comm.channels.channel import Channel, MpiChannel
from ...comm.config import CommConfig
from ...comm.job.job import Job, MpiJob, Subset
from ...comm.job.topology import Topology
from ...errors import UserError
from ...parallel.buckets import ITEM, Bucket, NetLayout
from ...parallel.config import ParallelConfig
from ...parallel.data_parallel import DataParallel
from ...parallel.exchange import Exchange, Optimizer
from ...parallel.plan import Event, Pull, Push, ServerPlan
from ...solvers.process_group import SolverView
from .server import Server
from .shards import Consistency, describe_part, divide_net
from .worker import ServerClient

logger = logging.getLogger("osucaffe")

AHEAD = 64
"""Iterations that a worker may be ahead of another with async: the lag of agreeing on a stop."""


@dataclass(frozen=True)
class Roles:
    """A job whose last ranks serve and whose first ones train; `part`: those of this role."""

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
        """Serve until all workers have ended."""
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
        raise UserError(f"--servers {servers} of {job.size} ranks leave none to train")
    if (consistency.backups or 0) >= workers:
        raise UserError(
            f"--consistency backup:{consistency.backups} would ignore all {workers} workers: "
            "choose a smaller B"
        )
    lag = 1 + (AHEAD if consistency.bound is None else consistency.bound)
    part = Subset(job, job.world.Split(int(job.rank >= workers)), lag=lag)
    return Roles(part, channel or MpiChannel(job.mpi, job.world), workers, consistency)


class ServerExchange(Exchange):
    """By servers: see `ServerPlan`. skipped: iterations without this rank."""

    def __init__(
        self,
        job: Job,
        net: NetLayout,
        optimizer: Optimizer,
        pushing: ServerClient,
        buckets: Sequence[Bucket],
        servers: range,
        *,
        layerwise: bool,
        consistency: Consistency,
    ) -> None:
        """servers: their ranks. layerwise: pushes during backward."""
        super().__init__(net, optimizer, ServerPlan(buckets, layerwise=layerwise))
        self.missing, self.skipped = consistency.backups or 0, 0
        self._job, self._net, self._pushing = job, net, pushing
        self._servers, self._consistency, self._late = servers, consistency, False
        self._pushed: set[int] = set()
        self._parameters = [
            [
                parameter.blob.data
                for start, _, parameter in net.arena.segments
                if bucket.start <= start < bucket.stop
            ]
            for bucket in buckets
        ]
        self.agreed()

    def agreed(self) -> None:
        """All workers have been given the same weights and history."""
        self._weights_differ = self._history_differs = False

    def carry_out(self, event: Event) -> Run:
        match event:
            case Push(bucket):
                return partial(self._push, bucket)
            case Pull(bucket):
                return partial(self._pull, bucket)
        return super().carry_out(event)

    def skips(self, *, accumulate: bool, update: bool) -> bool:
        """With backups, all of an iteration whose update was made without this rank."""
        if self._consistency.backups is None:
            return False
        pushing = self._pushing
        if not accumulate:
            self.wait_all()
            self._late = bool(pushing.updates.min() > pushing.iterations)
        if self._late and update:
            pushing.iterations += 1
            self.skipped += 1
        return self._late

    def exchange(self) -> None:
        for bucket in range(len(self._parameters)):
            if bucket not in self._pushed:
                self._push(bucket)
        self.wait_all()

    def updated(self) -> None:
        self._pushed.clear()
        self._weights_differ = self._history_differs = True

    def synchronize(self, *, history: bool) -> None:
        self.wait_all()
        with self._job.watch("weights and history from the servers"):
            if self._weights_differ and not self._consistency.together:
                self._job.barrier()  # all that was pushed is in what the servers have
                self._pushing.read(0, self._net.arena.data)
                for parameters in self._parameters:
                    self._backend.refresh_copies(parameters)
            self._weights_differ = False
            if history and self._history_differs and self._job.rank == 0:
                for number, flat in enumerate(self._optimizer.flats):
                    self._pushing.read(1 + number, flat)
                self._history_differs = False

    def _push(self, bucket: int) -> None:
        self._pushed.add(bucket)
        self._pushing.push(bucket, self._optimizer.rate, self._backend.current)

    def _pull(self, bucket: int) -> None:
        with self._job.watch(f"weights from the servers (ranks {self._servers})"):
            if self._pushing.wait(bucket, self._backend.current):
                self._backend.refresh_copies(self._parameters[bucket])

    def wait_all(self) -> None:
        """Return when the weights of all that was pushed are here."""
        for bucket in range(len(self._parameters)):
            self._pull(bucket)


class ServerDataParallel(DataParallel):
    """The ranks that train, as a solver's process group.

    lags: how many pieces of weights came with each lag, the iterations by which a worker was ahead
    of the slowest one then. After `close`.
    """

    _exchange: ServerExchange
    _make_pushing: Callable[..., ServerClient] = ServerClient

    def __init__(
        self, roles: Roles, topology: Topology, comm_config: CommConfig, config: ParallelConfig
    ) -> None:
        self._roles = roles
        self._pushing: ServerClient | None = None
        self.lags = np.zeros(0, np.int64)
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

    def _make_exchange(self, solver: SolverView) -> ServerExchange:
        net, optimizer, roles = solver.net, solver.optimizer, self._roles
        if solver.loss_scale is not None:
            raise UserError("--loss_scale: servers do not unscale gradients: remove it")
        if optimizer.update.sums:
            raise UserError(
                "LAMB, larc and local_lr_auto need the norms of whole parameters, but each server "
                "holds only a slice: remove --servers"
            )
        if not (optimizer.separable or roles.consistency.together):
            raise UserError(
                "clip_gradients needs the sum over all gradients of an iteration, which only "
                "--consistency sync has: choose that, or remove it"
            )
        buckets, self._pieces = divide_net(net, self._config, len(roles.servers))
        optimizer.steps = []  # the servers make the updates
        if self._pushing is not None:
            self._pushing.stop()
        data, diff = net.arena.data, net.arena.diff
        made = roles.channel, roles.servers, buckets, self._pieces, data, diff
        backups = roles.consistency.backups is not None
        self._pushing = self._make_pushing(*made, backups=backups)
        layerwise = self._config.aggregation == "layerwise"
        return ServerExchange(
            self._job, net, optimizer, self._pushing, buckets, roles.servers,
            layerwise=layerwise, consistency=roles.consistency,
        )  # fmt: skip

    def changed(self) -> None:
        super().changed()
        self._exchange.agreed()

    def begin(self) -> None:
        """Also send the weights and the history of worker 0 to the servers."""
        if self._agreed:
            return
        super().begin()
        assert self._pushing is not None
        self._pushing.iterations, self._pushing.updates[:] = 0, 0
        if self.rank == 0:
            net, optimizer = self._solver.net, self._solver.optimizer
            servers = range(len(self._roles.servers))
            for server in servers:
                part = describe_part(net, optimizer.update, self._pieces, server)
                with self._job.watch(f"server {server} to begin"):
                    self._pushing.set_up(server, part, [net.arena.data, *optimizer.flats])
            held = ", ".join(
                f"{sum(p.stop - p.start for p in self._pieces if p.server == server) * ITEM:,}"
                for server in servers
            )
            logger.info("%d servers hold %s bytes of weights", len(servers), held)
        self._job.barrier()

    def close(self) -> None:
        """All workers are done; the servers end."""
        if self._roles.consistency.backups is not None:
            skipped = self._job.gather(self._exchange.skipped)
            logger.info("Iterations that slow workers skipped: %s", skipped)
        if self._pushing is not None:
            self.lags = lags = np.trim_zeros(self._pushing.end(), "b")
            if len(lags) > 1 and self.rank == 0:
                logger.info(
                    "Weights came at most %d iterations ahead of the slowest worker (%.2g in the "
                    "mean)",
                    len(lags) - 1,
                    float(np.average(np.arange(len(lags)), weights=lags)),
                )
        super().close()
        self._roles.close()
