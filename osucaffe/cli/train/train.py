"""Train a net as a solver file says.

  osucaffe train --solver solver.prototxt
  osucaffe train --solver solver.prototxt --weights pretrained.caffemodel    fine-tune
  osucaffe train --solver solver.prototxt --snapshot auto                    resume
  osucaffe train --solver solver.prototxt --best accuracy --keep 2           keep the best model
  osucaffe train --solver solver.prototxt --ranks 4                          four processes
  mpiexec -n 4 osucaffe train --solver solver.prototxt                       the same
  osucaffe train --solver solver.prototxt --ranks 4 --servers 1              a parameter server

Ctrl-C, like SIGTERM, finishes the current iteration, writes a snapshot and stops; a second Ctrl-C
stops at once. On a terminal a live display follows the log.

Exit codes: 0 done, or nothing left to train; 1 bad input; 2 wrong usage; 3 the loss is nan or
infinite at the end; 4 a rank failed, or waited too long, and ended the others; 128 + N stopped by
signal N with a snapshot (129 SIGHUP, 130 SIGINT, 143 SIGTERM): the end of the log has the command
that resumes. Each of several ranks has its own exit code."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .. import options
from ..launch import comm_profile, elastic, ranks, ranks_per_gpu, restarts, server_options
from . import snapshot_options
from .agreement import check_alike

if TYPE_CHECKING:
    from ...comm.job.job import Job
    from ...proto import SolverParameter
    from ...solvers.observer import Observer
    from ...solvers.signals import Signals
    from ...solvers.solver import Solver

_EFFECTS = ("stop", "snapshot", "none")
_DIVERGED = 3
_STOPPED = 128
"""The exit codes of its own; a signal's number is added to the second, as shells do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--solver", metavar="FILE", required=True, help="the solver's prototxt")
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--snapshot",
        metavar="FILE",
        help='resume from this .solverstate; "auto": from the newest complete one, if there is one',
    )
    options.add_weights(
        start, "start from the weights in these files, by layer name (separated by commas)"
    )
    options.add_strict(parser)
    parser.add_argument(
        "--max_iter",
        metavar="N",
        type=options.positive,
        help="train up to iteration N, instead of the solver's max_iter",
    )
    parser.add_argument(
        "--sigint_effect",
        choices=_EFFECTS,
        default="stop",
        help="what SIGINT (Ctrl-C) does (default: stop)",
    )
    parser.add_argument(
        "--sighup_effect",
        choices=_EFFECTS,
        default="snapshot",
        help="what SIGHUP does (default: snapshot)",
    )
    options.add_log(parser)
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write a Chrome trace (JSON) of a few iterations, layer by layer",
    )
    parser.add_argument("--tensorboard", metavar="DIR", help="write event files for TensorBoard")
    parser.add_argument(
        "--no_progress", action="store_true", help="show no live display on the terminal"
    )
    snapshot_options.add_arguments(parser)
    options.add_loss_scale(parser)
    options.add_state(parser)
    options.add_device(parser, 'the number of the GPU; "0,1" or "all": a rank on each')
    options.add_data(parser)
    ranks.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train, alone or as one of the ranks of a job. Returns the exit code."""
    from ...comm.job.job import find_job

    ranks.launch(args, lambda: _check(args))
    options.start_device(args)
    job = find_job()
    with job.together():
        ranks.check_size(args, job)
        ranks.take_terminal(job)
        if ranks_per_gpu.is_trial():
            from . import trial

            return trial.run(args, job, _read(args))
        return _train(args, job)


def _check(args: argparse.Namespace) -> None:
    """Find what is wrong with options and files, as far as it can be told before ranks start."""
    from ...proto import read_net, read_weights, refuse_unread
    from ...solvers.nets import testing_nets, training_net
    from ...solvers.snapshots import snapshot
    from ...solvers.update.policy import Policy
    from ...solvers.update.rules import update_of

    snapshot_options.check(args)
    elastic.check(args)
    options.check_device(args)
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
    named = [name for names in param.weights for name in options.names(names)]
    for file in [*named, *args.weights]:
        read_weights(file)


def _train(args: argparse.Namespace, job: Job) -> int:
    from ... import log

    snapshot_options.check(args)
    first = job.rank == 0
    standard_error = log.start(args.log_dir if first else None)
    if not first:
        log.quieten()
    ranks_per_gpu.tell()
    elastic.check(args)
    restarts.begin(args, job)
    param = _read(args)
    check_alike(args, job, param)
    args, topology = ranks.place(args, job)
    ranks.watch_links(args, job, topology)
    args = comm_profile.prepare(args, job)
    backend = options.make_backend(args)
    roles = server_options.assign_roles(args, job, topology)
    if roles is not None and roles.serves:
        roles.serve(backend)
        return 0
    sharers = sum(each.host == topology.own.host for each in topology.ranks)
    from ...solvers.signals import Signals
    from ...solvers.solver import Solver
    from ..nets.summary import log_summary

    if first and args.gpu is None and param.HasField("solver_mode") and param.solver_mode:
        logging.getLogger("osucaffe").warning(
            "%s: solver_mode is GPU, but only --gpu makes it so: training on the CPU; add --gpu %d",
            args.solver,
            param.device_id,
        )
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals(args.sigint_effect, args.sighup_effect))
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
            data_config=options.data_config(args, sharers, ranks.neighbours(args, job, topology)),
        )
        options.check_fed(solver.net, args.solver)
        snapshot_options.watch(solver, args, signals)
        if first:
            log_summary(solver)
        if board:
            board.watch(solver)
        if args.trace:
            from ...solvers.tracer import Tracer

            solver.tracer = Tracer(args.trace, backend, job.rank)
            stack.callback(solver.tracer.write)
        if sys.stderr.isatty() and first and not (args.no_progress or log.quiet):
            from .live_display import Live

            solver.observers.append(stack.enter_context(Live(solver, standard_error)))
        if 0 < param.max_iter <= solver.iteration:  # as a snapshot says
            logging.getLogger("osucaffe").info(
                "%s: already at iteration %d of max_iter %d: there is nothing left to train (raise "
                "max_iter to go on)",
                *(args.solver, solver.iteration, param.max_iter),
            )
        else:
            solver.solve()
            snapshot_options.tell_how_to_go_on(solver, signals)
        solver.close()
        return _exit_code(solver, signals)


def _exit_code(solver: Solver, signals: Signals) -> int:
    """What the run ends with. Divergence comes first: who goes on after a stop would go on with
    weights that are lost."""
    if solver.losses.diverged:
        logging.getLogger("osucaffe").error(
            "Training has diverged: the loss is %g at iteration %d (exit code %d)",
            *(solver.loss, solver.iteration, _DIVERGED),
        )
        return _DIVERGED
    return _STOPPED + signals.stopped_by if solver.stopped and signals.stopped_by else 0


def _read(args: argparse.Namespace) -> SolverParameter:
    """The solver's settings, with what the command line changes."""
    from ...proto import read_solver

    param = read_solver(args.solver)
    if args.max_iter:
        param.max_iter = args.max_iter
    if args.level:
        param.train_state.level = args.level
    param.train_state.stage.extend(args.stage)
    return param
