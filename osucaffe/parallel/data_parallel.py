"""Data-parallel training: the group of ranks that a solver trains with.

Every rank has a copy of the net and its shard of the records; the gradient that updates the
weights is the mean of all ranks' gradients. So N ranks with batch B train as one with batch N·B.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from .. import plugins
from ..backends.tensor import Run
from ..comm.communicator import Wrapper
from ..comm.config import CommConfig
from ..comm.create import make_communicator
from ..comm.job.job import Job
from ..comm.job.topology import Topology
from ..errors import UserError
from ..layers.base import Splitter
from ..layers.reading.feed import Feed
from ..proto import caffe_pb2
from ..solvers.process_group import ProcessGroup, SolverView
from ..solvers.signals import NONE, SNAPSHOT, STOP
from .agreement import (
    average_statistics,
    check_alike,
    check_weights,
    describe_layers,
    describe_solver,
    digest,
)
from .batch import describe, divide_batches
from .choose import choose_hook
from .config import SPLIT, ParallelConfig, choose_propagation
from .exchange import Exchange, Hooks, choose_exchange
from .plan import Note, Pass

logger = logging.getLogger("osucaffe")

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
        config.check(comm_config.gradient_dtype)
        self._hook = choose_hook(config)
        hooked = self._hook is not None
        split = config.split_inner_products != "none"
        self.comm = made = make_communicator(
            job,
            topology,
            comm_config,
            background=config.overlaps and not hooked,
            persistent=not (hooked or split or config.brought),
            yields_core=config.overlaps,
        )
        if hooked:
            self.comm = Wrapper(made, background=config.overlaps)
        self._inner = made
        self._agreed = False
        self._made: dict[tuple[bool, bool], Run] = {}
        """What runs in a pass, by whether it accumulates and updates."""

    # -- building --------------------------------------------------------------------------------

    def divide(self, param: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
        """With strong scaling, the net with its batches divided."""
        if self._config.scaling == "weak":
            return param
        return divide_batches(param, self.size, of=self._config.of)

    def splitter(self, passes: int) -> Splitter | None:
        """What divides the inner products of the training net, if any are to be."""
        wanted = self._config.split_inner_products
        if wanted == "none":
            return None
        made: Splitter = plugins.need(plugins.DESIGNS, "split")(self.comm, wanted, passes)
        return made

    def attach(self, solver: SolverView) -> None:
        """Give each net its part of the data, and plan what travels."""
        self._solver = solver
        self._agreed = False
        self._made.clear()
        self._check_loss_scale(solver)
        if self._hook is not None:
            self._hook.kind.check(solver.param, self.size)
        if solver.net.splitter is not None:
            solver.net.splitter.report(solver.net)
            for given, text in (
                (solver.optimizer.update.sums, "larc, local_lr_auto and LAMB need norms of"),
                (solver.param.debug_info, "debug_info shows"),
                (solver.param.snapshot_diff, "snapshot_diff saves gradients of"),
            ):
                if given and solver.net.arena.is_split:
                    raise UserError(
                        f"{SPLIT}: {text} whole parameters, but each rank holds only a slice: "
                        "remove it"
                    )
        if self._config.hooked or solver.net.splitter is not None:
            self._config = replace(self._config, propagation="none")
        if self._config.propagation == "auto":
            chosen = choose_propagation(self.comm, separable=solver.optimizer.separable)
            self._config = replace(self._config, propagation=chosen)
        for net in (solver.net, *solver.test_nets):
            net.random.rank = self.rank
            for layer in net.layers:
                if isinstance(layer, Feed):
                    layer.split(self.rank, self.size)
        if self._config.propagation == "sharded" and not solver.optimizer.separable:
            raise UserError(
                "clipping, LAMB, larc, local_lr_auto and a loss scale need sums over all "
                "gradients, but with --propagation sharded each rank holds only a slice: remove it"
            )
        self._exchange = self._make_exchange(solver)
        self._losses = [name for name in solver.net.blobs if solver.net.loss_weight(name)]
        self._scale_gradients()

    def _check_loss_scale(self, solver: SolverView) -> None:
        """UserError if it cannot be combined with the design."""
        scale, config = solver.loss_scale, self._config
        if scale and config.compression != "none":
            raise UserError(
                f"--compression {config.compression} adds up gradients of several iterations, "
                "which a loss scale may change or discard: give --loss_scale none"
            )
        if scale and scale.dynamic and config.local_steps:
            raise UserError(
                "--local_steps: each rank would have its own dynamic loss scale: give "
                "--loss_scale a number"
            )
        if scale and scale.dynamic and config.propagation not in ("auto", "none"):
            raise UserError(
                "a dynamic loss scale needs ranks that all update their weights: give --loss_scale "
                "a number, or leave out --propagation"
            )

    def _make_exchange(self, solver: SolverView) -> Exchange:
        """What travels, in buckets, and the update that is cut with them."""
        net, optimizer, config = solver.net, solver.optimizer, self._config

        def iteration() -> int:
            return solver.iteration

        hook = self._hook.make(self._inner, net, iteration) if self._hook else None
        if config.local_steps:
            for field in ("test_interval", "snapshot"):
                if getattr(solver.param, field) % config.local_steps:
                    logger.warning(
                        "%s is not a multiple of --local_steps %d: weights are averaged early",
                        *(field, config.local_steps),
                    )
        make: Any = choose_exchange(config)
        made: Exchange = make(self.comm, net, optimizer, config, iteration, hook)
        return made

    def _scale_gradients(self) -> None:
        """Let backward compute this rank's share of the mean: then a sum is all that it takes."""
        net, exchange = self._solver.net, self._exchange
        share = 1 / (self.size - exchange.missing if exchange.plan.divides else 1)
        factors = [(net.seeds[name], net.loss_weight(name) * share) for name in self._losses]
        factors += [(layer.share, share) for layer in net.layers if layer.share is not None]
        for tensor, value in factors:
            if tensor.array is not None:
                net.backend.write(tensor, np.full(tensor.shape, value, np.float32))

    def changed(self) -> None:
        self._agreed = False

    def begin(self) -> None:
        """Before the first iteration: the same net everywhere, and rank 0's weights in it."""
        if self._agreed:
            return
        self.synchronize_weights(history=True)
        self._check_nets()
        solver = self._solver
        weights = solver.net.arena.data.array
        with self.watch():
            self.comm.broadcast(weights, 0, solver.backend.stream).wait()
            for parameter in solver.net.parameters:  # a backend may hold copies: this renews them
                data = parameter.blob.data
                solver.backend.write(data, solver.backend.read(data))
            self._exchange.agreed()
        self.check("at the start")
        for peer in self._topology.ranks:
            where = f"{peer.hostname}, {peer.gpu_name}" if peer.gpu else peer.hostname
            logger.info("Rank %d is process %d on %s", peer.rank, peer.process, where)
        logger.info("%s", describe(solver.net.param, self.size, solver.param.iter_size))
        self._agreed = True

    # -- iterations ------------------------------------------------------------------------------

    @property
    def accumulates(self) -> bool:  # type: ignore[override]
        return self._exchange.plan.accumulates

    def step(self, solver: SolverView, *, accumulate: bool, update: bool) -> Run:
        """One pass, and with `update` the exchange of gradients, overlapped with it or after it."""
        key = accumulate, update

        def step() -> None:
            if self._exchange.skips(accumulate=accumulate, update=update):
                return
            self._pass_begins(accumulate=accumulate, update=update)
            if key not in self._made:
                self._made[key] = self._bind(accumulate=accumulate, update=update)
            self._made[key]()
            if update:
                self.updated()
            self._pass_ends(update=update)

        return step

    def _bind(self, *, accumulate: bool, update: bool) -> Run:
        """What runs for the plan of a pass."""
        net, exchange = self._solver.net, self._exchange
        plan = self._plan_pass(accumulate=accumulate, update=update)
        return net.as_step(
            accumulate=accumulate,
            before=exchange.bind(plan.before),
            after=exchange.bind(plan.after),
            last=[exchange.carry_out(event) for event in plan.then],
            enqueues=exchange.enqueues,
        )

    def _plan_pass(self, *, accumulate: bool, update: bool) -> Pass:
        """The exchange's plan, and what this rank does besides."""
        solver, plan = self._solver, self._exchange.plan
        made = plan.of_pass(accumulate=accumulate, update=update)
        if update and plan.updates_weights:
            made.before.setdefault(0, []).insert(0, Note(solver.optimizer.take_rate))
        if any(layer.reshapes for layer in solver.net.layers):
            # The losses may have new memory.
            end = made.before.setdefault(len(solver.net.layers), [])
            end.append(Note(self._scale_gradients))
        return made

    def _pass_begins(self, *, accumulate: bool, update: bool) -> None:
        """For who measures passes."""

    def _pass_ends(self, *, update: bool) -> None:
        """The same."""

    def overlap_hooks(self, *, accumulate: bool, update: bool) -> tuple[Hooks, Hooks]:
        exchange = self._exchange
        made = exchange.plan.of_pass(accumulate=accumulate, update=update, finish=False)
        return exchange.bind(made.before), exchange.bind(made.after)

    def watch(self) -> contextlib.AbstractContextManager[None]:
        if not self._exchange.enqueues:  # whatever waits for others watches itself
            return super().watch()
        return self._job.watch("this rank's GPU, and so perhaps for those of others")

    def exchange(self) -> None:
        self._exchange.exchange()

    def updated(self) -> None:
        self._exchange.updated()

    def synchronize_weights(self, *, history: bool = False) -> None:
        self._synchronize_learned(history=history)
        with self.watch():
            average_statistics(self._solver.net, self._job)

    def _synchronize_learned(self, *, history: bool = False) -> None:
        """The same without batch statistics, which stay local to each rank meanwhile."""
        with self.watch():
            self._exchange.synchronize(history=history)

    def read_buffers(self) -> dict[str, list[np.ndarray]]:
        return {buffer.name: buffer.read() for buffer in self._exchange.buffers}

    def write_buffers(self, values: dict[str, list[np.ndarray]]) -> None:
        buffers = {buffer.name: buffer for buffer in self._exchange.buffers}
        for name in sorted(values.keys() ^ buffers.keys()):
            what = "left out" if name in values else "not in the snapshot: it begins with zeros"
            logger.warning("The %s of the exchange between ranks is %s", name, what)
        for name in values.keys() & buffers.keys():
            # What all ranks have not sent is with rank 0.
            first = self.rank == 0 or name != "residual"
            buffers[name].write(values[name] if first else [0 * array for array in values[name]])

    def close(self) -> None:
        """Captured graphs go first, as NCCL waits for those that hold its operations."""
        self._made.clear()
        gc.collect()
        self.comm.close()

    # -- agreement -------------------------------------------------------------------------------

    def broadcast_object(self, value: _Value) -> _Value:
        shared: _Value = self._job.broadcast_object(value)
        return shared

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.sum(self._job.gather(values), axis=0)

    def agree(self, request: str) -> str:
        """The strongest request of any rank at the time of the last call."""
        return _WISHES[self._job.agree(_WISHES.index(request))]

    def check(self, occasion: str) -> None:
        """UserError on every rank, naming those whose weights are not those of most, and layers."""
        self._synchronize_learned()
        where = f"{occasion} (iteration {self._solver.iteration})"
        check_weights(self._job, self._solver.net, where)

    def _check_nets(self) -> None:
        """UserError unless all ranks train the same net with the same settings."""
        solver = self._solver
        history = b"".join(array.tobytes() for array in solver.optimizer.read_history())
        parts = describe_layers(solver.net.param) | describe_solver(solver.param)
        parts["iteration to start from"] = str(solver.iteration)
        check_alike(self._job, parts | {"solver state": digest(history)})
