"""Solver: the nets of a training run and the loop that trains them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ..backends.backend import Backend
from ..backends.random import new_seed
from ..backends.tensor import Run
from ..data.config import DataConfig
from ..errors import UserError
from ..files import remove_leftovers
from ..loading import NOT_STRICT, Model, load_weights
from ..proto import caffe_pb2, read_net, read_weights, refuse_unread
from . import debug
from .detection import check_evaluation
from .losses import Losses, mean
from .nets import testing_nets, training_net
from .observer import Display, Observer, Snapshot, TestResult
from .process_group import ProcessGroup
from .report import epochs_of, log_display, name_outputs, read_outputs
from .signals import NONE, SNAPSHOT, STOP, Request
from .snapshots import snapshot
from .snapshots.resume_position import RunPosition
from .snapshots.snapshot import Restored, SnapshotWriter
from .testing import Tester
from .tracer import Tracer
from .update.loss_scaling import make_loss_scale
from .update.optimizer import Optimizer
from .update.policy import Policy
from .update.rules import update_of

logger = logging.getLogger("osucaffe")


class Solver:
    """Trains a net as configured by a SolverParameter.

    net, test_nets: the nets that are trained and tested. iteration: the number of updates so far.
    file: the source of the settings, for messages. request: polled between iterations for a
    stop or a snapshot (see `signals.py`). inspectable: every blob of the nets can be read
    (`debug_info` needs it and sets it). loss_scale: "dynamic", "none" or a factor of the loss
    (default: dynamic in fp16); see `loss_scaling.py`. resume: a snapshot to begin from, as
    `restore` takes it. check_interval: the iterations after which the ranks of a group compare
    their weights (0: never). weights: model files to begin from, after those that the solver
    names; strict: they must have exactly the layers with weights. stop_on_nan: stop, without a
    snapshot, when a displayed loss is not finite. data_config: how the nets read.

    Raises UserError for fields that contradict each other, for bad nets, and before the nets are
    built for files of weights that cannot be read.
    """

    def __init__(
        self,
        param: caffe_pb2.SolverParameter,
        backend: Backend,
        *,
        file: str = "the solver",
        request: Request = lambda: NONE,
        observers: Iterable[Observer] = (),
        inspectable: bool = False,
        group: ProcessGroup | None = None,
        loss_scale: str | float | None = None,
        resume: str | Path | None = None,
        check_interval: int = 0,
        weights: Iterable[str] = (),
        strict: bool = False,
        stop_on_nan: bool = False,
        data_config: DataConfig = DataConfig(),
    ) -> None:
        self.param = param
        self.group = group or ProcessGroup()
        self.backend, self._data_config = backend, data_config
        self.file = file
        self.observers = list(observers)
        self.iteration = 0
        self.tracer: Tracer | None = None
        self.request = request
        self._inspectable = inspectable or param.debug_info
        self.loss_scale = make_loss_scale(backend, loss_scale)
        refuse_unread(param, f"{file}: ")
        self._update = update_of(param, file, scaled=self.loss_scale is not None)
        self.policy = Policy(param, file, self._smoothed)
        snapshot.check_prefix(param, file)
        if param.average_loss < 1:
            raise UserError(f"{file}: average_loss must be at least 1, not {param.average_loss}")
        choice = training_net(param, file, read_net)
        self._choice = replace(choice, param=self.group.divide(choice.chosen("TRAIN")))
        self._test_choices = testing_nets(param, file, read_net)
        if param.test_interval > 0 and not self._test_choices:
            logger.warning("%s: test_interval is set, test_iter is not: nothing is tested", file)
        restored = self._find(resume) if resume else None
        named = [file.strip() for files in param.weights for file in files.split(",")]
        models: list[Model] = [(file, read_weights(file)) for file in [*named, *weights]]
        self.losses = Losses(backend, self.group, param.average_loss, param.iter_size)
        self._before_test: RunPosition | None = None
        self._writer = SnapshotWriter()
        self._check_interval, self._stop_on_nan = check_interval, stop_on_nan
        self.stopped = False
        seed = param.random_seed if param.random_seed >= 0 else new_seed()
        if restored and restored.position:
            seed = restored.position.seed
        self._build(self.group.broadcast_object(seed))
        self._load(models, strict)
        if restored:
            self._go_on(restored)

    def _build(self, seed: int) -> None:
        self.seed = seed
        common = {
            "backend": self.backend,
            "seed": seed,
            "inspectable": self._inspectable,
            "data_config": self._data_config,
        }
        self.net = self._choice.build(
            phase="TRAIN",
            gradients=True,
            accumulate=self.param.iter_size > 1,
            loss_scale=self.loss_scale and self.loss_scale.factor,
            splitter=self.group.splitter(self.param.iter_size),
            **common,
        )
        self.test_nets = [
            choice.build(phase="TEST", share=self.net, **common) for choice in self._test_choices
        ]
        self.epochs = epochs_of(self.net, self.param.iter_size * self.group.size)
        self.optimizer = Optimizer(self.net, self._update, self.backend, self.loss_scale)
        self._steps: dict[tuple[bool, bool], Run] = {}
        """The replayed steps, by (pass accumulates, pass is followed by the update)."""
        check_evaluation(self.param, self.test_nets)
        self._testers = [
            Tester(net, index, self.param, self.group) for index, net in enumerate(self.test_nets)
        ]
        self.group.attach(self)

    def close(self) -> None:
        """Close the group: the solver makes no more iterations."""
        self._steps.clear()
        self._testers.clear()
        self.group.close()

    # -- training --------------------------------------------------------------------------------

    def solve(self) -> None:
        """Train up to max_iter, with tests and snapshots, or until a stop is requested."""
        if self.param.max_iter <= 0:
            raise UserError(f"{self.file}: max_iter, how many iterations to train, is not given")
        if self.iteration >= self.param.max_iter:
            raise UserError(
                f"{self.file}: already at iteration {self.iteration} of max_iter "
                f"{self.param.max_iter}: nothing left to train; raise max_iter"
            )
        if (self.param.snapshot or self.param.snapshot_after_train) and not self.group.rank:
            snapshot.check_net(self.param, self.net, self.file)
            remove_leftovers(Path(self.param.snapshot_prefix).parent)
        logger.info("Solving %s", self.net.name)
        logger.info("Learning Rate Policy: %s", self.param.lr_policy)
        self.step(self.param.max_iter - self.iteration)
        interval = self.param.snapshot if not self._lost else 1
        if self.param.snapshot_after_train and (not interval or self.iteration % interval):
            self.snapshot()
        if not self.stopped:
            self._finish()
        logger.info("Optimization stopped early." if self.stopped else "Optimization Done.")
        for observer in self.observers:
            observer.on_end(self.iteration, self.stopped)

    def _finish(self) -> None:
        """Show the loss and test once more with the weights of the last update."""
        if self.due(self.param.display):
            self.net.forward()
            self.losses.append(np.array([self.net.loss()]))
            logger.info("Iteration %d, loss = %g", self.iteration, self.loss)
        if self._tests():
            self.test_all()

    def step(self, iterations: int) -> None:
        """Make this many updates, or fewer when a stop is requested (then `stopped` is true)."""
        self.stopped = False
        self.group.begin()
        self._displayed = (self.iteration, time.perf_counter())
        end = self.iteration + iterations
        if self.tracer:
            self.tracer.plan(self.iteration, end)
        while self.iteration < end:
            begun = self.iteration > 0 or self.param.test_initialization
            if begun and self._tests():
                self.test_all()
                if self.stopped:
                    self._writer.wait()
                    return
            self._before_test = None
            if self.tracer and self.tracer.due(self.iteration):
                with self.tracer.iteration(self.iteration):
                    self._iterate(self.tracer)
            else:
                with self.group.watch():
                    self._iterate()
            request = self.group.agree(STOP if self._lost else self.request())
            self.iteration += 1
            if self._lost:
                self.stopped = True
                break
            self._writer.look()
            if self.due(self._check_interval):
                self.group.check("at --check")
            if self.due(self.param.snapshot) or request == SNAPSHOT:
                self.snapshot(wait=False)
            if request == STOP:
                self.stopped = True
                break
        self.group.synchronize_weights()
        self.losses.read()
        self._writer.wait()

    def _iterate(self, tracer: Tracer | None = None) -> None:
        """iter_size times forward and backward, then the update.

        All of it runs as steps that the backend may replay, but for a trace or `debug_info`: then
        layer by layer.
        """
        param, net, group = self.param, self.net, self.group
        display = self.due(param.display)
        show = display and param.debug_info
        # Only losses that a display shows or the policy needs are recorded.
        noted = self.policy.watches_loss or (
            param.display > 0 and (-self.iteration % param.display < param.average_loss)
        )
        rate = self.policy.rate(self.iteration)
        self.optimizer.set_rate(rate, self.iteration, self.policy.ahead)
        for part in range(param.iter_size):
            accumulate = part > 0 and group.accumulates
            update = part == param.iter_size - 1
            if show:
                group.synchronize_weights()
                debug.forward_and_backward(net, accumulate=accumulate)
            elif tracer:
                before, after = group.overlap_hooks(accumulate=accumulate, update=update)
                tracer.forward_and_backward(net, before, after, accumulate=accumulate)
            else:
                if (accumulate, update) not in self._steps:
                    step = group.step(self, accumulate=accumulate, update=update)
                    self._steps[accumulate, update] = step
                self._steps[accumulate, update]()
            if noted:
                self.losses.note(net, part)
        if tracer and not show:
            tracer.update(self._update_weights)
        if display:
            self.losses.read()
            self._display(rate)
        if show:
            shown = debug.parameter_values(net)
            self._update_weights()
            debug.show_update(net, shown)
        if param.clip_gradients >= 0 and display:
            self.optimizer.log_clipping(param.clip_gradients)
        if self.loss_scale and display:
            self.loss_scale.log()

    def _update_weights(self) -> None:
        """Exchange gradients and update, where this is not part of a step."""
        self.group.exchange()
        self.optimizer.run()
        self.group.updated()

    def _display(self, rate: float) -> None:
        """Log the iteration, and notify the observers."""
        (since, start), now = self._displayed, time.perf_counter()
        self._displayed = (self.iteration, now)
        outputs = self.group.sum(read_outputs(self.net)) / self.group.size
        event = Display(
            self.iteration,
            self.param.max_iter,
            self.loss,
            rate,
            speed=(self.iteration - since) / (now - start),
            seconds=now - start,
            outputs=name_outputs(self.net, outputs),
            records=self.epochs.records(self.iteration) if self.epochs else 0,
            epoch=self.epochs.epoch(self.iteration) if self.epochs else None,
        )
        log_display(event, self.param.display)
        for observer in self.observers:
            observer.on_display(event)

    @property
    def _lost(self) -> bool:
        """Whether to stop because the run has diverged."""
        return self._stop_on_nan and self.losses.lost

    def due(self, interval: int, first: int = 0) -> bool:
        """Whether something with this interval (0: never) is due in this iteration, as in first."""
        return interval > 0 and (self.iteration - first) % interval == 0

    def _tests(self) -> bool:
        return self.due(self.param.test_interval, self.param.test_offset)

    @property
    def loss(self) -> float:
        """The mean loss of the last `average_loss` iterations; NaN before there is any."""
        return mean(self.losses.shown)

    def _smoothed(self) -> float:
        """The same, whatever is shown, with all that has been enqueued: the host waits for it."""
        self.losses.read()
        return mean(self.losses.recent)

    # -- testing ---------------------------------------------------------------------------------

    def test_all(self) -> list[TestResult]:
        """Test every test net, unless a stop is requested: then `stopped` is true."""
        # A snapshot on the way must resume before the tests, or their data would be elsewhere.
        self.group.synchronize_weights()
        self.losses.read()
        self._before_test = self._position()
        results: list[TestResult] = []
        for tester in self._testers:
            result = tester.run(self.iteration, self._interrupted)
            if result is None:
                logger.info("Test interrupted.")
                self.stopped = True
                return results
            results.append(result)
            for observer in self.observers:
                observer.on_test(result)
        self._before_test = None
        return results

    def _interrupted(self) -> bool:
        """Handle a request in the middle of a test. Returns whether the test must end."""
        request = self.group.agree(self.request())
        if request == SNAPSHOT:
            self.snapshot(wait=False)
        return request == STOP

    # -- weights and snapshots -------------------------------------------------------------------

    def _load(self, models: list[Model], strict: bool) -> None:
        """Begin from the weights of model files."""
        for file, _ in models:
            logger.info("Finetuning from %s", file)
        # Test nets may have parameters that the training net does not have.
        nets = [self.net, *(net for net in self.test_nets if net.arena.segments)]
        mismatch = load_weights(nets, models) if models else ""
        if mismatch and strict:
            raise UserError(f"{self.file}: {mismatch}: {NOT_STRICT}")

    def snapshot(self, *, wait: bool = True) -> Snapshot:
        """Write the model and the solver's state under snapshot_prefix. Raises UserError.

        Of several ranks, rank 0 writes. wait: until both files are written; otherwise training goes
        on, and errors are raised by the next iteration, or when `step` ends.
        """
        self.group.synchronize_weights(history=True)
        self.losses.read()
        self.group.check("at a snapshot")
        event = snapshot.named(self.param, self.iteration)
        if self.group.rank:
            return event
        snapshot.check_writable(self.param, self.file)
        model, state = snapshot.contents(
            event,
            self.net,
            self.optimizer.read_history(),
            self.policy.current_step,
            self._before_test or self._position(),
            self.group.read_buffers(),
            diff=self.param.snapshot_diff,
        )
        snapshot.announce(event)
        self._writer.start(
            partial(snapshot.write, event, model, state), partial(self._tell_snapshot, event)
        )
        if wait:
            self._writer.wait()
        return event

    def _tell_snapshot(self, event: Snapshot) -> None:
        for observer in self.observers:
            observer.on_snapshot(event)

    def restore(self, path: str | Path) -> None:
        """Go on from a snapshot, as if training had not stopped.

        path: a solver state, binary or HDF5, of this or another Caffe; or "auto": the newest
        complete one with this solver's prefix; if there is none the run starts again. Raises
        UserError.
        """
        if restored := self._find(path):
            self._go_on(restored)

    def _find(self, path: str | Path) -> Restored | None:
        return snapshot.find(path, self.param.snapshot_prefix, self.group)

    def _go_on(self, restored: Restored) -> None:
        parameters, position = self.net.parameters * self._update.histories, restored.position
        history = restored.history(parameters, self.param.type)
        if position and position.seed != self.seed:
            self._build(position.seed)
        if mismatch := load_weights([self.net], [(restored.model, restored.weights)]):
            raise UserError(
                f"{restored.path}: {mismatch}: it belongs to another net; go on with the net that "
                "it was made with"
            )
        self.optimizer.write_history(history)
        self.group.write_buffers(restored.buffers(self.net.parameters))
        self.iteration = restored.state.iter
        self.policy.current_step = restored.state.current_step
        self.losses.reset(position.losses if position else [])
        if position:
            self.policy.best = list(position.plateau or self.policy.best)
            position.apply([self.net, *self.test_nets], self.loss_scale)
        self.group.changed()

    def _position(self) -> RunPosition:
        nets = [self.net, *self.test_nets]
        plateau = self.policy.best if self.policy.watches_loss else None
        return RunPosition.of(self.seed, nets, self.losses.recent, self.loss_scale, plateau)
