"""Owns a run of `osucaffe train`, which several ranks may be part of: how it begins and ends."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from pathlib import Path

import numpy as np

from ... import log
from ...comm.job.job import Job, find_job
from ...parallel.batch import readers
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
from .. import options
from ..arguments.options import names
from ..launch import comm_profile, ranks, ranks_per_gpu, restarts
from ..launch.start import check_device
from ..nets.summary import log_summary
from . import snapshot_options
from .agreement import check_alike

logger = logging.getLogger("osucaffe")
_DIVERGED = 3
_STOPPED = 128
"""Its exit codes; a signal's number is added to the second, as shells do."""


def run(args: argparse.Namespace) -> int:
    """Train, alone or as one of the ranks of a job. Returns the exit code."""
    job = find_job()
    with job.together():
        ranks.check_size(args, job)
        ranks.join_parent(job)
        if args.find_lr:
            from . import find_lr  # with the report's drawing, which other runs start without

            find_lr.check(args, job.size)
            find_lr.run(args, _read(args))
            return 0
        if ranks_per_gpu.is_trial():
            return _try(args, job, _read(args))
        return _train(args, job)


def check(args: argparse.Namespace) -> None:
    """Check options and files, as far as possible before ranks start."""
    snapshot_options.check(args)
    if args.find_lr:
        from . import find_lr

        find_lr.check(args)
    restarts.check_elastic(args)
    check_device(args)
    ranks.check_communication(args)
    param = _read(args)
    refuse_unread(param, f"{args.solver}: ")
    update_of(param, args.solver)
    Policy(param, args.solver)
    snapshot.check_prefix(param, args.solver)
    training_net(param, args.solver, read_net)
    testing_nets(param, args.solver, read_net)
    if args.snapshot and args.snapshot != "auto":
        snapshot.read(Path(args.snapshot))
    named = [name for text in param.weights for name in names(text)]
    for file in [*named, *args.weights]:
        read_weights(file)


def _train(args: argparse.Namespace, job: Job) -> int:
    snapshot_options.check(args)
    first = job.rank == 0
    standard_error = log.start(args.log_dir if first else None)
    if not first:
        log.quieten()
    ranks_per_gpu.tell()
    restarts.check_elastic(args)
    restarts.begin(args, job)
    param = _read(args)
    check_alike(args, job, param)
    args, topology = ranks.assign_devices(args, job)
    ranks.watch_links(args, job, topology)
    args = comm_profile.prepare(args, job)
    backend = options.make_backend(args)
    roles = ranks.assign_roles(args, job, topology)
    if roles is not None and roles.serves:
        roles.serve(backend)
        return 0
    sharers = sum(peer.host == topology.local.host for peer in topology.ranks)
    if first and args.gpu is None and param.HasField("solver_mode") and param.solver_mode:
        logger.warning(
            "%s: solver_mode is GPU, but only --gpu makes it so: training on the CPU; add --gpu %d",
            args.solver,
            param.device_id,
        )
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals(args.sigint_effect, args.sighup_effect))
        if first and (param.snapshot or param.snapshot_after_train or args.best):
            stack.enter_context(claim(param.snapshot_prefix, args.solver))
        observers: list[Observer] = []
        board = None
        if args.tensorboard and first:
            from .tensorboard import TensorBoard

            board = stack.enter_context(TensorBoard(args.tensorboard))
            observers.append(board)
        solver = Solver(
            param,
            backend,
            file=args.solver,
            request=signals.request,
            observers=observers,
            group=ranks.make_process_group(args, job, topology, roles),
            loss_scale=args.loss_scale,
            resume=args.snapshot,
            check_interval=args.check,
            weights=args.weights,
            strict=args.strict,
            stop_on_nan=args.on_nan == "stop",
            data_config=options.data_config(args, sharers, ranks.neighbours(args, job, topology)),
        )
        options.check_fed(solver.net, args.solver)
        snapshot_options.watch(solver, args, signals)
        if first:
            log_summary(solver)
        if board:
            board.watch(solver)
        if args.trace:
            solver.tracer = Tracer(args.trace, backend, job.rank)
            stack.callback(solver.tracer.write)
        if sys.stderr.isatty() and first and not (args.no_progress or log.quiet):
            from .live_display import Live

            solver.observers.append(stack.enter_context(Live(solver, standard_error)))
        if 0 < param.max_iter <= solver.iteration:  # as a snapshot says
            logger.info(
                "%s: already at iteration %d of max_iter %d: there is nothing left to train (raise "
                "max_iter to go on)",
                *(args.solver, solver.iteration, param.max_iter),
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


def _read(args: argparse.Namespace) -> SolverParameter:
    """The solver's settings, with changes from the command line."""
    param = read_solver(args.solver)
    if args.max_iter:
        param.max_iter = args.max_iter
    if args.level:
        param.train_state.level = args.level
    param.train_state.stage.extend(args.stage)
    return param


_TRIED = 1.5
"""Seconds of training that are measured, after the warm-up."""


def _try(args: argparse.Namespace, job: Job, param: SolverParameter) -> int:
    """Train for a short time, and let rank 0 write the rate of all ranks: nothing else is written
    (--ranks_per_gpu auto)."""
    from ...parallel.tuning import quieten, seconds_of_iteration

    log.start(None)
    log.quieten()
    bucket = options.bucket_nbytes(args) / 2**20
    args = argparse.Namespace(**vars(args) | {"comm_profile": None, "bucket_mb": bucket})
    args, topology = ranks.assign_devices(args, job)
    sharers = sum(peer.host == topology.local.host for peer in topology.ranks)
    solver = Solver(
        quieten(param),
        options.make_backend(args),
        file=args.solver,
        group=ranks.make_process_group(args, job, topology),
        loss_scale=args.loss_scale,
        data_config=options.data_config(args, sharers),
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
