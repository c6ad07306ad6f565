"""A run of `osucaffe train`, which several ranks may be part of: how it begins and ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from ... import log, plugins
from ...comm.job.job import Job, find_job
from ...errors import UserError
from ...options.kinds import names
from ...parallel.batch import readers
from ...parallel.config import TUNED, ParallelConfig
from ...proto import SolverParameter, read_net, read_solver, read_weights, refuse_unread
from ...solvers.nets import testing_nets, training_net
from ...solvers.observer import Observer
from ...solvers.signals import Signals
from ...solvers.snapshots import snapshot
from ...solvers.snapshots.claim import claim
from ...solvers.solver import Solver
from ...solvers.tracer import Tracer
from ...solvers.update.policy import Policy
from ...solvers.update.rules import update_of
from .. import loading
from ..launch import ranks, ranks_per_gpu, restarts
from ..nets.summary import log_summary
from . import snapshot_options
from .agreement import check_alike
from .options import Train

logger = logging.getLogger("osucaffe")
_DIVERGED = 3
_STOPPED = 128
"""Its exit codes; a signal's number is added to the second, as shells do."""


def run(options: Train) -> int:
    """Train, alone or as one of the ranks of a job. Returns the exit code."""
    job = find_job()
    with job.together():
        ranks.check_size(options.ranks, job, options.servers.servers)
        ranks.join_parent(job)
        if options.find_lr:
            from . import find_lr  # with the report's drawing, which other runs start without

            find_lr.check(options, options.find_lr, job.size)
            find_lr.run(options, options.find_lr, _read(options))
            return 0
        if ranks_per_gpu.is_trial():
            return _try(options, job, _read(options))
        return _train(options, job)


def check(options: Train) -> None:
    """Check options and files, as far as possible before ranks start."""
    snapshot_options.check(options.keep)
    if options.find_lr:
        from . import find_lr

        find_lr.check(options, options.find_lr)
    restarts.check_elastic(options)
    _check_device(options)
    ranks.check_communication(options)
    param = _read(options)
    refuse_unread(param, f"{options.solver}: ")
    update_of(param, options.solver)
    Policy(param, options.solver)
    snapshot.check_prefix(param, options.solver)
    training_net(param, options.solver, read_net)
    testing_nets(param, options.solver, read_net)
    if options.snapshot and options.snapshot != "auto":
        snapshot.read(Path(options.snapshot))
    named = [name for text in param.weights for name in names(text)]
    for file in [*named, *options.weights]:
        read_weights(file)


def _check_device(options: Train) -> None:
    options.device.check()
    if options.device.gpu is None and options.data.decode == "gpu":
        raise UserError("--decode gpu is for GPUs only: add --gpu 0")


def _train(options: Train, job: Job) -> int:
    snapshot_options.check(options.keep)
    _check_device(options)
    first = job.rank == 0
    standard_error = log.start(options.log_dir if first else None)
    if not first:
        log.quieten()
    ranks_per_gpu.tell()
    restarts.check_elastic(options)
    options = restarts.begin(options, job)
    param = _read(options)
    check_alike(options, job, param)
    servers = options.servers
    device, topology = ranks.assign_devices(options.device, job, servers.servers)
    ranks.watch_links(options, job, topology)
    if options.comm_profile:
        device = plugins.need(plugins.DESIGNS, "comm_profile").prepare(options, device, job)
    backend = loading.make_backend(device)
    roles = ranks.assign_roles(servers, job, topology)
    if roles is not None and roles.serves:
        roles.serve(backend)
        return 0
    if first and device.gpu is None and param.HasField("solver_mode") and param.solver_mode:
        logger.warning(
            "%s: solver_mode is GPU, but only --gpu makes it so: training on the CPU; add --gpu %d",
            options.solver,
            param.device_id,
        )
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals(options.sigint_effect, options.sighup_effect))
        if first and (param.snapshot or param.snapshot_after_train or options.keep.best):
            stack.enter_context(claim(param.snapshot_prefix, options.solver))
        observers: list[Observer] = []
        board = None
        if options.tensorboard and first:
            from .tensorboard import TensorBoard

            board = stack.enter_context(TensorBoard(options.tensorboard))
            observers.append(board)
        solver = Solver(
            param,
            backend,
            file=options.solver,
            request=signals.request,
            observers=observers,
            group=ranks.make_process_group(options, job, topology, roles),
            loss_scale=options.loss_scale,
            resume=options.snapshot,
            check_interval=options.check,
            weights=options.weights,
            strict=options.strict,
            stop_on_nan=options.on_nan == "stop",
            data_config=ranks.configure_data(options, job, topology),
        )
        loading.check_fed(solver.net, options.solver)
        snapshot_options.watch(solver, options.keep, signals)
        if first:
            log_summary(solver)
        if board:
            board.watch(solver)
        if options.trace:
            solver.tracer = Tracer(options.trace, backend, job.rank)
            stack.callback(solver.tracer.write)
        if sys.stderr.isatty() and first and not (options.no_progress or log.quiet):
            from .live_display import Live

            solver.observers.append(stack.enter_context(Live(solver, standard_error)))
        if 0 < param.max_iter <= solver.iteration:  # as a snapshot says
            logger.info(
                "%s: already at iteration %d of max_iter %d: nothing left to train (raise "
                "max_iter to go on)",
                *(options.solver, solver.iteration, param.max_iter),
            )
        else:
            with np.errstate(all="ignore"):  # the log tells of nan
                solver.solve()
            snapshot_options.tell_how_to_go_on(solver, signals)
        solver.close()
        return _exit_code(solver, signals)


def _exit_code(solver: Solver, signals: Signals) -> int:
    """The exit code of the run. Divergence comes first: to resume would be to continue with
    useless weights."""
    if solver.losses.diverged:
        logger.error(
            "Training has diverged: the loss is %g at iteration %d (exit code %d)",
            *(solver.loss, solver.iteration, _DIVERGED),
        )
        return _DIVERGED
    return _STOPPED + signals.stopped_by if solver.stopped and signals.stopped_by else 0


def _read(options: Train) -> SolverParameter:
    """The solver's settings, with changes from the command line."""
    param = read_solver(options.solver)
    if options.max_iter:
        param.max_iter = options.max_iter
    options.state.add_to(param)
    return param


_TRIED = 1.5
"""Seconds of training that are measured, after the warm-up."""


def _try(options: Train, job: Job, param: SolverParameter) -> int:
    """Train for a short time, and let rank 0 write the rate of all ranks: nothing else is written
    (--ranks_per_gpu auto)."""
    from ...parallel.tuning import quieten, seconds_of_iteration

    log.start(None)
    log.quieten()
    device, topology = ranks.assign_devices(options.device, job)
    if options.parallel.bucket == TUNED:
        options = replace(options, parallel=replace(options.parallel, bucket=ParallelConfig.bucket))
    options = replace(options, comm_profile=None)
    solver = Solver(
        quieten(param),
        loading.make_backend(device),
        file=options.solver,
        group=ranks.make_process_group(options, job, topology),
        loss_scale=options.loss_scale,
        data_config=ranks.configure_data(options, job, topology),
    )
    took = seconds_of_iteration(job, solver, _TRIED)
    sizes = {message.batch_size for _, message in readers(solver.net.param)}
    batch, unit = (sizes.pop(), "images/s") if len(sizes) == 1 else (1, "batches/s")
    rate = batch * max(param.iter_size, 1) * job.size / took
    if job.rank == 0:
        result = {"rate": rate, "unit": unit}
        Path(os.environ[ranks_per_gpu.TRIAL]).write_text(json.dumps(result))
    solver.close()
    return 0
