"""Owns data-parallel training: the team of ranks that a solver trains with.

Every rank has the whole net and its own part of the records; the gradient that updates the
weights is the mean of all ranks' gradients. So N ranks with batch B train as one with batch N·B.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..backends.tensor import Step
from ..comm.create import Wanted, make_communicator
from ..comm.job import Job
from ..comm.on_stream import OnStream
from ..comm.topology import Topology
from ..errors import UserError
from ..proto import caffe_pb2
from ..solvers.signals import NONE, SNAPSHOT, STOP
from ..solvers.solver import Solver
from ..solvers.team import Team
from .batch import describe, divide_batches
from .buckets import find_buckets
from .exchange import Aggregation, Propagation

logger = logging.getLogger("osucaffe")

AGGREGATIONS = ("blocking", "layerwise")
PROPAGATIONS = ("none", "blocking", "overlapped")
_WISHES = (NONE, SNAPSHOT, STOP)

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Design:
    """How gradients and weights travel.

    aggregation: all gradients after backward, or bucket by bucket beside it. propagation: "none",
    each rank updates its own weights; otherwise rank 0 alone updates, and the weights reach the
    others in one broadcast, or layer by layer beside forward. bucket: the bytes that a bucket has
    at least. scaling: whether batch_size is each rank's ("weak") or divided ("strong").
    """

    aggregation: str = "layerwise"
    propagation: str = "none"
    bucket: int = 4 << 20
    scaling: str = "weak"


class DataParallel(Team):
    """The ranks of a job as a solver's team."""

    def __init__(self, job: Job, topology: Topology, wanted: Wanted, design: Design) -> None:
        self.rank, self.size = job.rank, job.size
        self._job = job
        self._topology = topology
        self._design = design
        overlapped = design.aggregation == "layerwise" or design.propagation == "overlapped"
        self.comm = make_communicator(job, topology, wanted, background=overlapped)
        self._agreed = False

    # -- building --------------------------------------------------------------------------------

    def divide(self, param: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
        """With strong scaling, the net with its batches divided."""
        return divide_batches(param, self.size) if self._design.scaling == "strong" else param

    def attach(self, solver: Solver) -> None:
        """Give each net its part of the data, and plan what travels."""
        self._solver = solver
        self._agreed = False
        if solver.loss_scale and solver.loss_scale.dynamic and self._design.propagation != "none":
            raise UserError(
                "a dynamic loss scale needs ranks that all update their weights: give --loss_scale "
                "a number, or leave out --propagation"
            )
        for net in (solver.net, *solver.test_nets):
            net.random.rank = self.rank
            for layer in net.layers:
                if hasattr(layer, "split"):
                    layer.split(self.rank, self.size)
        net, design = solver.net, self._design
        stream = getattr(net.backend, "stream", None)
        nbytes = design.bucket if design.aggregation == "layerwise" else len(net.arena) * 4
        self._aggregation = Aggregation(
            self.comm,
            net.arena.diff,
            find_buckets(net, nbytes, frozen=False),
            to_root=design.propagation != "none",
            stream=stream,
        )
        nbytes = design.bucket if design.propagation == "overlapped" else len(net.arena) * 4
        self._weights = Propagation(
            self.comm, net.arena.data, find_buckets(net, nbytes, frozen=True), stream=stream
        )
        self._losses = [name for name in net.blobs if net.loss_weight(name)]
        self._scale_gradients()

    def _scale_gradients(self) -> None:
        """Let backward compute this rank's share of the mean: then a sum is all that it takes."""
        net = self._solver.net
        for name in self._losses:
            seed = net.seeds[name]
            if seed.array is not None:
                weight = net.loss_weight(name) / self.size
                net.backend.write(seed, np.full(seed.shape, weight, np.float32))

    def changed(self) -> None:
        self._agreed = False

    def begin(self) -> None:
        """Before the first iteration: the same net everywhere, and rank 0's weights in it."""
        if self._agreed:
            return
        self._check_nets()
        self._weights.send()
        self._weights.settle()
        solver = self._solver
        for parameter in solver.net.parameters:  # a backend may hold copies: this renews them
            data = parameter.blob.data
            solver.backend.write(data, solver.backend.read(data))
        self.check("at the start")
        for each in self._topology.ranks:
            where = f"{each.hostname}, {each.gpu_name}" if each.gpu else each.hostname
            logger.info("Rank %d is process %d on %s", each.rank, each.process, where)
        logger.info("%s", describe(solver.net.param, self.size, solver.param.iter_size))
        self._agreed = True

    # -- iterations ------------------------------------------------------------------------------

    def step(self, solver: Solver, *, accumulate: bool, update: bool) -> Step:
        """One pass, and with `update` the exchange of gradients beside or behind it."""
        net, gradients, weights = solver.net, self._aggregation, self._weights
        arrives = weights.after if self._design.propagation == "overlapped" else None
        leaves = gradients.after if self._design.aggregation == "layerwise" else None
        reshapes = any(layer.reshapes for layer in net.layers)
        if isinstance(self.comm, OnStream) and self._design.propagation == "none" and not reshapes:
            # Nothing needs the host: the backend may replay all of it as one.
            if not update:
                return net.whole(accumulate=accumulate)
            return net.whole(
                accumulate=accumulate,
                before=gradients.begin,
                after=gradients.marks() if leaves else {},
                then=[gradients.finish, *solver.optimizer.steps],
            )

        def run() -> None:
            weights.before_first()
            net.forward(after=arrives)
            if reshapes:
                self._scale_gradients()
            if not update:
                net.backward(accumulate=accumulate)
                return
            gradients.begin()
            net.backward(accumulate=accumulate, after=leaves)
            gradients.finish()
            self._update()

        return run

    def _update(self) -> None:
        """Everywhere, or on rank 0, whose weights then go to the others."""
        if self._design.propagation == "none" or self.rank == 0:
            for step in self._solver.optimizer.steps:
                step()
        self.updated()

    def exchange(self) -> None:
        self._aggregation.begin()
        self._aggregation.finish()

    def updated(self) -> None:
        if self._design.propagation != "none":
            self._weights.send()
            if self._design.propagation == "blocking":
                self._weights.settle()

    def settle(self) -> None:
        self._weights.settle()

    # -- agreement -------------------------------------------------------------------------------

    def share(self, value: _Value) -> _Value:
        shared: _Value = self._job.share(value)
        return shared

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.sum(self._job.gather(values), axis=0)

    def agree(self, request: str) -> str:
        """The strongest request that any rank had when all asked last."""
        return _WISHES[self._job.agree(_WISHES.index(request))]

    def check(self, occasion: str) -> None:
        """UserError on every rank, naming those whose weights are not those of rank 0."""
        self.settle()
        net = self._solver.net
        own = zlib.crc32(net.backend.read(net.arena.data).tobytes())
        sums = self._job.gather(own)
        wrong = [str(rank) for rank, found in enumerate(sums) if found != sums[0]]
        if wrong:
            raise UserError(
                f"{occasion} (iteration {self._solver.iteration}) the weights of rank "
                f"{', '.join(wrong)} are not those of rank 0: they have fallen out of step. Is it "
                "the same program, and the same libraries, on each host?"
            )

    def _check_nets(self) -> None:
        """UserError unless all ranks train the same net with the same settings."""
        described = self._job.gather(_describe(self._solver))
        for rank, other in enumerate(described):
            for (name, value), (_, mine) in zip(other.items(), described[0].items(), strict=False):
                if value != mine:
                    raise UserError(
                        f"rank {rank} has another {name} than rank 0: give all ranks the same files"
                    )
            if len(other) != len(described[0]):
                raise UserError(f"rank {rank} has another number of layers than rank 0")


def _describe(solver: Solver) -> dict[str, Any]:
    """What must be alike on all ranks: each part with the name that a message gives it."""
    parts: dict[str, Any] = {}
    for number, layer in enumerate(solver.net.param.layer):
        text = layer.SerializeToString(deterministic=True)
        parts[f'layer "{layer.name}" (number {number} of the net)'] = zlib.crc32(text)
    settings = caffe_pb2.SolverParameter()
    settings.CopyFrom(solver.param)
    for field in ("net", "train_net", "net_param", "train_net_param", "snapshot_prefix"):
        settings.ClearField(field)
    parts["solver"] = zlib.crc32(settings.SerializeToString(deterministic=True))
    parts["iteration to start from"] = solver.iteration
    history = [zlib.crc32(each.tobytes()) for each in solver.optimizer.read_history()]
    parts["solver state"] = history
    return parts
