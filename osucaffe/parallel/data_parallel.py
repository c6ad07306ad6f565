"""Owns data-parallel training: the group of ranks that a solver trains with.

Every rank has the whole net and its own part of the records; the gradient that updates the
weights is the mean of all ranks' gradients. So N ranks with batch B train as one with batch N·B.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from ..backends.tensor import Step, sequence
from ..comm.create import CommConfig, make_communicator
from ..comm.gpu.on_stream import OnStream
from ..comm.job.job import Job
from ..comm.job.topology import Topology
from ..errors import UserError
from ..layers.reading.feed import Feed
from ..proto import caffe_pb2
from ..solvers.process_group import ProcessGroup, Trained
from ..solvers.signals import NONE, SNAPSHOT, STOP
from .agreement import check_alike, check_weights, describe_layers, describe_solver, digest
from .batch import describe, divide_batches
from .buckets import ITEM, Bucket, align, find_buckets
from .config import ParallelConfig, choose_propagation
from .exchange import Aggregation, Propagation, sums_of
from .statistics import average_statistics

logger = logging.getLogger("osucaffe")

GRAIN = 64
"""Parts of a bucket begin at multiples of so many elements, as NCCL's long loads want it."""
_WISHES = (NONE, SNAPSHOT, STOP)

_Value = TypeVar("_Value")


class DataParallel(ProcessGroup):
    """The ranks of a job as a solver's group."""

    def __init__(
        self, job: Job, topology: Topology, comm_config: CommConfig, config: ParallelConfig
    ) -> None:
        self.rank, self.size = job.rank, job.size
        self._job = job
        self._topology = topology
        self._config = config
        beside = {config.aggregation, config.propagation} & {"layerwise", "overlapped", "sharded"}
        self.comm = make_communicator(
            job, topology, comm_config, background=bool(beside), persistent=True
        )
        self._agreed = False

    # -- building --------------------------------------------------------------------------------

    def divide(self, param: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
        """With strong scaling, the net with its batches divided."""
        if self._config.scaling == "weak":
            return param
        return divide_batches(param, self.size, of=self._config.of)

    def attach(self, solver: Trained) -> None:
        """Give each net its part of the data, and plan what travels."""
        self._solver = solver
        self._agreed = False
        if self._config.propagation == "auto":
            chosen = choose_propagation(self.comm, separable=solver.optimizer.separable)
            self._config = replace(self._config, propagation=chosen)
        if solver.loss_scale and solver.loss_scale.dynamic and self._config.propagation != "none":
            raise UserError(
                "a dynamic loss scale needs ranks that all update their weights: give --loss_scale "
                "a number, or leave out --propagation"
            )
        for net in (solver.net, *solver.test_nets):
            net.random.rank = self.rank
            for layer in net.layers:
                if isinstance(layer, Feed):
                    layer.split(self.rank, self.size)
        if self._config.propagation == "sharded" and not solver.optimizer.separable:
            raise UserError(
                "clipping, and a loss scale, need the sum over all gradients, which no rank has "
                "with --propagation sharded: leave it out"
            )
        self._plan(solver)
        self._losses = [name for name in solver.net.blobs if solver.net.loss_weight(name)]
        self._scale_gradients()

    def _plan(self, solver: Trained) -> None:
        """Cut gradients and weights into buckets, and the update with them."""
        net, config, arena = solver.net, self._config, solver.net.arena
        whole = len(arena) * ITEM
        nbytes = config.bucket if config.aggregation == "layerwise" else whole
        buckets = find_buckets(net, nbytes, frozen=False)
        if config.propagation == "sharded":
            buckets = align(buckets, GRAIN * self.size)
        operations = sums_of(buckets, config.propagation)
        gradients = Aggregation(self.comm, net.backend, arena.diff, buckets, operations)
        self._aggregation = gradients
        self._updates: list[tuple[int, Step]] = []
        """By bucket the layer that completes it, and what waits for its sums and updates it."""
        divided: list[Bucket] = []
        for index, (bucket, operation) in enumerate(zip(buckets, operations, strict=True)):
            first, last = 0, bucket.stop - bucket.start
            if operation == "reduce_scatter":
                first, last = self.comm.part(last)
                divided.append(bucket)
            if solver.optimizer.separable and self._updates_weights:
                change = solver.optimizer.part(bucket.start + first, bucket.start + last)
                arrive = partial(gradients.arrive, index)
                self._updates.append((bucket.layer, sequence([arrive, change])))
        travelling, operation = divided, "all_gather"
        if config.propagation != "sharded":
            nbytes = config.bucket if config.propagation == "overlapped" else whole
            travelling, operation = find_buckets(net, nbytes, frozen=True), "broadcast"
        copies = net.backend.low_precision_arena(arena.data)
        self._weights = Propagation(
            self.comm, net.backend, arena.data, copies, travelling, operation
        )

    @property
    def _updates_weights(self) -> bool:
        return self._config.propagation in ("none", "sharded") or self.rank == 0

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
        self.synchronize_weights(history=True)
        self._check_nets()
        solver = self._solver
        whole = solver.net.arena.data.array
        with self.watch():
            self.comm.broadcast(whole, 0, solver.backend.stream).wait()
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

    def step(self, solver: Trained, *, accumulate: bool, update: bool) -> Step:
        """One pass, and with `update` the exchange of gradients beside or behind it."""
        net = solver.net
        before, after = self.overlap_hooks(accumulate=accumulate, update=update)
        if update and self._updates_weights:
            before[0] = sequence(
                [solver.optimizer.take_rate, *([before[0]] if 0 in before else [])]
            )
        then = self._finish(after) if update else []
        if any(layer.reshapes for layer in net.layers):
            # The losses may have new memory.
            behind = filter(None, [before.get(len(net.layers)), self._scale_gradients])
            before[len(net.layers)] = sequence([*behind])
        run = net.whole(
            accumulate=accumulate,
            before=before,
            after=after,
            then=then,
            enqueues=self._enqueues,
        )

        def step() -> None:
            run()
            if update:
                self.updated()

        return step

    def overlap_hooks(
        self, *, accumulate: bool, update: bool
    ) -> tuple[dict[int, Step], dict[int, Step]]:
        config = self._config
        before: dict[int, Step] = {}
        if config.propagation != "none" and not accumulate:
            before = self._weights.hooks(overlapped=config.propagation != "blocking")
        layerwise = update and config.aggregation == "layerwise"
        return before, self._aggregation.hooks() if layerwise else {}

    @property
    def _enqueues(self) -> bool:
        """Whether the host waits for no operation: a stream does."""
        return isinstance(self.comm, OnStream)

    def _finish(self, after: dict[int, Step]) -> list[Step]:
        """Behind backward: the rest of the gradients, and the update, bucket by bucket if it may
        be cut. Where gradients leave beside backward, and a stream waits for them, not the host,
        so does the update."""
        gradients = self._aggregation
        if not self._updates:
            own = self._solver.optimizer.steps if self._updates_weights else []
            return [gradients.finish, *own]
        changes = [change for _, change in self._updates]
        if not (self._enqueues and after and len(changes) > 1):
            return [gradients.send_rest, *changes]
        backend = self._solver.backend
        for layer, change in self._updates[:-1]:
            after[layer] = sequence([after[layer], backend.low_priority(change)])
        return [gradients.send_rest, changes[-1], backend.join_low_priority]

    def watch(self) -> contextlib.AbstractContextManager[None]:
        if not self._enqueues:  # whatever waits for others watches itself
            return super().watch()
        return self._job.watch("this rank's GPU, and so perhaps for those of others")

    def exchange(self) -> None:
        self._aggregation.finish()

    def updated(self) -> None:
        if self._config.propagation != "none":
            self._weights.changed()

    def synchronize_weights(self, *, history: bool = False) -> None:
        self._synchronize_learned(history=history)
        with self.watch():
            average_statistics(self._solver.net, self._job)

    def _synchronize_learned(self, *, history: bool = False) -> None:
        """The same without statistics of batches, which are each rank's own meanwhile."""
        with self.watch():
            self._weights.synchronize(self._solver.optimizer.flats if history else ())

    def close(self) -> None:
        self.comm.close()

    # -- agreement -------------------------------------------------------------------------------

    def broadcast_object(self, value: _Value) -> _Value:
        shared: _Value = self._job.broadcast_object(value)
        return shared

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.sum(self._job.gather(values), axis=0)

    def agree(self, request: str) -> str:
        """The strongest request that any rank had when all asked last."""
        return _WISHES[self._job.agree(_WISHES.index(request))]

    def check(self, occasion: str) -> None:
        """UserError on every rank, naming those whose weights are not those of most, and layers."""
        self._synchronize_learned()
        where = f"{occasion} (iteration {self._solver.iteration})"
        check_weights(self._job, self._solver.net, where)

    def _check_nets(self) -> None:
        """UserError unless all ranks train the same net with the same settings."""
        solver = self._solver
        history = b"".join(each.tobytes() for each in solver.optimizer.read_history())
        parts = describe_layers(solver.net.param) | describe_solver(solver.param)
        parts["iteration to start from"] = str(solver.iteration)
        check_alike(self._job, parts | {"solver state": digest(history)})
