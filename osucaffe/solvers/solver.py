"""Owns Solver: the nets of a training run and the loop that trains them."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.tensor import Step
from ..errors import UserError, naming
from ..net import Net
from ..proto import caffe_pb2, read_net, read_weights
from . import debug, snapshot
from .losses import Losses
from .nets import Choice, testing_nets, training_net
from .observer import Display, Observer, Snapshot, TestResult
from .optimizer import Optimizer
from .policy import Policy
from .report import log_display, log_test, name_outputs, read_outputs
from .rules import update_of
from .scaling import make_loss_scale
from .signals import NONE, SNAPSHOT, STOP, Request
from .snapshot import NetProgress, Progress
from .team import Team
from .tracer import Tracer

logger = logging.getLogger("osucaffe")


class Solver:
    """Trains a net as a SolverParameter says.

    net, test_nets: what is trained and tested. iteration: how many updates were made.
    file: where the settings come from, for messages. request: asked between iterations whether
    to stop or to snapshot (see `signals.py`). inspectable: every blob of the nets can be looked
    at (`debug_info` needs it and sets it). loss_scale: "dynamic", "none" or a factor of the loss
    (default: dynamic in fp16); see `scaling.py`.

    Raises UserError for fields that contradict each other, and for bad nets.
    """

    def __init__(
        self,
        param: caffe_pb2.SolverParameter,
        backend: Any,
        *,
        file: str = "the solver",
        request: Request = lambda: NONE,
        observers: Iterable[Observer] = (),
        inspectable: bool = False,
        team: Team | None = None,
        loss_scale: str | float | None = None,
    ) -> None:
        self.param = param
        self.team = team or Team()
        self.backend = backend
        self.file = file
        self.observers = list(observers)
        self.iteration = 0
        self.tracer: Tracer | None = None
        self._request = request
        self._inspectable = inspectable or param.debug_info
        self.loss_scale = make_loss_scale(backend, loss_scale)
        self._update = update_of(param, file, scaled=self.loss_scale is not None)
        self.policy = Policy(param, file)
        snapshot.check_prefix(param, file)
        if param.average_loss < 1:
            raise UserError(f"{file}: average_loss must be at least 1, not {param.average_loss}")
        choice = training_net(param, file, read_net)
        self._choice = replace(choice, param=self.team.divide(choice.param))
        self._test_choices = testing_nets(param, file, read_net)
        self._losses = Losses(backend, self.team, param.average_loss, param.iter_size)
        self._displayed = (0, time.perf_counter())
        self._before_test: Progress | None = None
        self.stopped = False
        seed = param.random_seed
        self._build(self.team.share(seed if seed >= 0 else int.from_bytes(os.urandom(4), "little")))
        for files in param.weights:
            self.load(files)

    def _build(self, seed: int) -> None:
        self.seed = seed
        self.net = self._new_net(
            self._choice,
            phase="TRAIN",
            gradients=True,
            accumulate=self.param.iter_size > 1,
            loss_scale=self.loss_scale and self.loss_scale.factor,
        )
        self.test_nets = [
            self._new_net(choice, phase="TEST", share=self.net) for choice in self._test_choices
        ]
        self.optimizer = Optimizer(self.net, self._update, self.backend, self.loss_scale)
        self._parts: dict[tuple[bool, bool], Step] = {}
        self._tests = [net.whole(backward=False) for net in self.test_nets]
        self.team.attach(self)

    def _new_net(self, choice: Choice, **settings: Any) -> Net:
        return Net(
            choice.param,
            backend=self.backend,
            level=choice.level,
            stages=choice.stages,
            seed=self.seed,
            inspectable=self._inspectable,
            **settings,
        )

    def close(self) -> None:
        """End the team: the solver makes no more iterations.

        Captured graphs go first, as NCCL waits for those that hold its operations.
        """
        self._parts.clear()
        self._tests.clear()
        gc.collect()
        self.team.close()

    # -- training --------------------------------------------------------------------------------

    def solve(self) -> None:
        """Train up to max_iter, with tests and snapshots on the way, or until asked to stop."""
        if self.iteration >= self.param.max_iter:
            raise UserError(
                f"{self.file}: already at iteration {self.iteration} of max_iter "
                f"{self.param.max_iter}: there is nothing left to train; raise max_iter"
            )
        if self.param.snapshot or self.param.snapshot_after_train:
            self._check_writable()
        logger.info("Solving %s", self.net.name)
        logger.info("Learning Rate Policy: %s", self.param.lr_policy)
        self.step(self.param.max_iter - self.iteration)
        interval = self.param.snapshot
        if self.param.snapshot_after_train and (not interval or self.iteration % interval):
            self.snapshot()
        if not self.stopped:
            self._finish()
        logger.info("Optimization stopped early." if self.stopped else "Optimization Done.")
        for observer in self.observers:
            observer.on_end(self.iteration, self.stopped)

    def _finish(self) -> None:
        """Show the loss and test once more with the weights of the last update."""
        if self._due(self.param.display):
            self.net.forward()
            self._losses.append(np.array([self.net.loss()]))
            logger.info("Iteration %d, loss = %g", self.iteration, self.loss)
        if self._due(self.param.test_interval):
            self.test_all()

    def step(self, iterations: int) -> None:
        """Make this many updates, or fewer when asked to stop (then `stopped` is true)."""
        self.stopped = False
        self.team.begin()
        self._displayed = (self.iteration, time.perf_counter())
        end = self.iteration + iterations
        if self.tracer:
            self.tracer.plan(self.iteration, end)
        while self.iteration < end:
            begun = self.iteration > 0 or self.param.test_initialization
            if begun and self._due(self.param.test_interval):
                self.test_all()
                if self.stopped:
                    return
            if self.tracer and self.tracer.due(self.iteration):
                with self.tracer.iteration(self.iteration):
                    self._iterate(self.tracer)
            else:
                with self.team.watch():
                    self._iterate()
            request = self.team.agree(self._request())
            self.iteration += 1
            if self._due(self.param.snapshot) or request == SNAPSHOT:
                self.snapshot()
            if request == STOP:
                self.stopped = True
                break
        self.team.settle()
        self._losses.read()

    def _due(self, interval: int) -> bool:
        return interval > 0 and self.iteration % interval == 0

    def _iterate(self, tracer: Tracer | None = None) -> None:
        """One iteration: iter_size times forward and backward, then the update."""
        self._before_test = None
        display = self._due(self.param.display)
        show = display and self.param.debug_info
        # Only what a display shows is noted.
        wanted = self.param.display > 0 and (
            -self.iteration % self.param.display < self.param.average_loss
        )
        rate = self.policy.rate(self.iteration)
        self.optimizer.set_rate(rate, self.iteration)
        for part in range(self.param.iter_size):
            if show:
                self.team.settle()
                debug.forward_and_backward(self.net, accumulate=part > 0)
            elif tracer:
                last = part == self.param.iter_size - 1
                before, after = self.team.beside(accumulate=part > 0, update=last)
                tracer.forward_and_backward(self.net, before, after, accumulate=part > 0)
            else:
                self._part(accumulate=part > 0, update=part == self.param.iter_size - 1)()
            if wanted:
                self._losses.note(self.net, part)
        if tracer and not show:
            tracer.update(lambda: self._update_apart(rate))
        if display:
            self._losses.read()
            self._display(rate)
        if show:
            shown = debug.parameter_values(self.net)
            self._update_apart(rate)
            debug.show_update(self.net, shown)
        if self.param.clip_gradients >= 0 and display:
            self.optimizer.log_clipping(self.param.clip_gradients)
        if self.loss_scale and display:
            self.loss_scale.log()

    def _update_apart(self, rate: float) -> None:
        """The update, outside a step that the backend may replay."""
        self.team.exchange()
        self.optimizer.step(rate, self.iteration)
        self.team.updated()

    def _part(self, *, accumulate: bool, update: bool) -> Step:
        """One forward and backward pass, and the update, as a step that the backend may replay."""
        key = accumulate, update
        if key not in self._parts:
            self._parts[key] = self.team.step(self, accumulate=accumulate, update=update)
        return self._parts[key]

    @property
    def loss(self) -> float:
        """The mean loss of the last `average_loss` iterations; NaN before there is any."""
        return self._losses.mean

    def _display(self, rate: float) -> None:
        since, start = self._displayed
        now = time.perf_counter()
        self._displayed = (self.iteration, now)
        event = Display(
            self.iteration,
            self.param.max_iter,
            self.loss,
            rate,
            speed=(self.iteration - since) / (now - start),
            seconds=now - start,
            outputs=name_outputs(self.net, self.team.sum(read_outputs(self.net)) / self.team.size),
        )
        log_display(event, self.param.display)
        for observer in self.observers:
            observer.on_display(event)

    # -- testing ---------------------------------------------------------------------------------

    def test_all(self) -> list[TestResult]:
        """Test every test net, unless asked to stop: then `stopped` is true."""
        # A snapshot on the way must resume before the tests, or their data would be elsewhere.
        self.team.settle()
        self._losses.read()
        self._before_test = self._progress()
        results: list[TestResult] = []
        for index in range(len(self.test_nets)):
            result = self._test(index)
            if result is None:
                logger.info("Test interrupted.")
                self.stopped = True
                return results
            results.append(result)
            for observer in self.observers:
                observer.on_test(result)
        self._before_test = None
        return results

    def _test(self, index: int) -> TestResult | None:
        """The mean outputs of a test net; None if interrupted. Several ranks share its batches."""
        logger.info("Iteration %d, Testing net (#%d)", self.iteration, index)
        net, batches = self.test_nets[index], self.param.test_iter[index]
        total, loss = np.zeros(sum(net.blobs[name].data.count for name in net.outputs)), 0.0
        before = NetProgress.of(net)
        for first in range(0, batches, self.team.size):
            request = self.team.agree(self._request())
            if request == SNAPSHOT:
                self.snapshot()
            elif request == STOP:
                return None
            if first + self.team.rank >= batches:
                continue
            self._tests[index]()
            total += read_outputs(net)
            if self.param.test_compute_loss:
                loss += net.loss()
        if batches % self.team.size:
            turns = -(-batches // self.team.size) * self.team.size
            self.team.share(NetProgress.of(net).part(before, batches, turns)).apply(net)
        total, [loss] = np.split(self.team.sum(np.append(total, loss)), [-1])
        mean_loss = loss / batches if self.param.test_compute_loss else None
        result = TestResult(self.iteration, index, name_outputs(net, total / batches), mean_loss)
        log_test(result)
        return result

    # -- weights and snapshots -------------------------------------------------------------------

    def load(self, files: str) -> None:
        """Copy the weights of layers with the same names from model files, given with commas."""
        for file in map(str.strip, files.split(",")):
            logger.info("Finetuning from %s", file)
            weights = read_weights(file)
            with naming(file):
                self.net.load(weights)
                for net in self.test_nets:
                    if net.arena.segments:  # it has parameters that the training net does not have
                        net.load(weights)
        self.team.changed()

    def snapshot(self) -> Snapshot:
        """Write the model and the solver's state under snapshot_prefix. Raises UserError.

        Of several ranks, rank 0 writes.
        """
        self.team.settle(history=True)
        self._losses.read()
        self.team.check("at a snapshot")
        if self.team.rank:
            hdf5 = self.param.snapshot_format == caffe_pb2.SolverParameter.HDF5
            return Snapshot(
                self.iteration, *snapshot.names(self.param.snapshot_prefix, self.iteration, hdf5)
            )
        self._check_writable()
        state = caffe_pb2.SolverState(iter=self.iteration, current_step=self.policy.current_step)
        history = self.optimizer.read_history()
        progress = self._before_test or self._progress()
        model, path = snapshot.write(self.net, state, history, progress, self.param)
        event = Snapshot(self.iteration, model, path)
        for observer in self.observers:
            observer.on_snapshot(event)
        return event

    def _check_writable(self) -> None:
        if not self.team.rank:
            snapshot.check_writable(self.param.snapshot_prefix, self.file)

    def restore(self, path: str | Path) -> None:
        """Go on from a snapshot, as if training had not stopped.

        path: a solver state, binary or HDF5, of this or another Caffe; or "auto": the newest whole
        one with this solver's prefix, and without any the run begins afresh. Raises UserError.
        """
        if path == "auto":
            found = self.team.share(snapshot.newest(self.param.snapshot_prefix))
            if found is None:
                logger.info(
                    "No snapshot %s_iter_*: training begins afresh", self.param.snapshot_prefix
                )
                return
            path = found
        logger.info("Restoring previous solver status from %s", path)
        parameters = self.net.parameters * self._update.histories
        restored = snapshot.read(Path(path), parameters, self.param.type)
        progress, weights = restored.progress, read_weights(restored.model)
        if progress is not None and progress.seed != self.seed:
            self._build(progress.seed)
        with naming(restored.model):
            self.net.load(weights)
        self.optimizer.write_history(restored.history)
        self.iteration = restored.iteration
        self.policy.current_step = restored.current_step
        self._losses.reset([])
        self.team.changed()
        if progress is not None:
            nets = [self.net, *self.test_nets]
            for net, reached in zip(nets, progress.nets, strict=False):
                reached.apply(net)
            self._losses.reset(progress.losses)
            if self.loss_scale and progress.loss_scale:
                self.loss_scale.write(progress.loss_scale)

    def _progress(self) -> Progress:
        nets = [NetProgress.of(net) for net in (self.net, *self.test_nets)]
        scale = self.loss_scale.read() if self.loss_scale else None
        return Progress(self.seed, nets, list(self._losses.recent), scale)
