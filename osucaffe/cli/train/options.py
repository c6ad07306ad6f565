"""The options of `osucaffe fit` and `train`."""

from __future__ import annotations

from dataclasses import dataclass

from ...comm.config import CommConfig
from ...data.config import DataConfig
from ...options.flags import OneOf, field_of, flag, group, like
from ...options.kinds import COUNT, Kind, auto_or, positive
from ...parallel.config import ParallelConfig, ServerConfig
from .. import options as common
from ..options import LOG_DIR, NO_PYTHON_LAYERS, STRICT, WEIGHTS, Devices, Ranks, State

_EFFECTS = ("stop", "snapshot", "none")
_START = OneOf("start")
_LONG_RUNS = ("--find_lr",)
"""What options of runs that are to last cannot be combined with."""


@dataclass(frozen=True)
class TrainRanks(Ranks):
    """How several ranks are started."""

    ranks: int | None = like(field_of(Ranks, "ranks"), "start N ranks on this machine")
    ranks_per_gpu: int | str | None = flag(
        "start N ranks on each GPU of --gpu, under MPS if it can be started; auto: try 1, 2, "
        "4 .. and use what trains most images per second. batch_size is per rank, unless --scal "
        "strong divides it",
        Kind("N", auto_or(positive)),
        excluded_by=(*_LONG_RUNS, "--elastic"),
    )
    max_restarts: int = flag(
        "when a process of the run dies, restart it from its newest complete snapshot, "
        "at most N times",
        COUNT,
        0,
        excluded_by=_LONG_RUNS,
    )
    elastic: bool = flag(
        "with --max_restarts: restart on the ranks that are left, on as many as divide the "
        "global batch, which stays the same"
    )


@dataclass(frozen=True)
class Keep:
    """Which models to keep."""

    best: str | None = flag(
        "keep the model with the best test value of this output (of accuracy the highest, of "
        "loss the lowest) as PREFIX_best.caffemodel",
        "OUTPUT",
        often=True,
        excluded_by=_LONG_RUNS,
    )
    keep: int | None = flag(
        "keep only the newest N snapshots of this run", COUNT, excluded_by=_LONG_RUNS
    )
    patience: int | None = flag(
        "early stopping: end after N tests without a better value of --best",
        COUNT,
        excluded_by=_LONG_RUNS,
    )


@dataclass(frozen=True, kw_only=True)
class Train:
    """
      osucaffe train --solver solver.prototxt
      osucaffe train --solver solver.prototxt --weights pretrained.caffemodel    fine-tune
      osucaffe train --solver solver.prototxt --snapshot auto                    resume
      osucaffe train --solver solver.prototxt --best accuracy --keep 2           keep the best
      osucaffe train --solver solver.prototxt --ranks 4                          four processes
      mpiexec -n 4 osucaffe train --solver solver.prototxt                       the same
      osucaffe train --solver solver.prototxt --ranks 4 --servers 1              a parameter server

    Ctrl-C, like SIGTERM, finishes the current iteration, writes a snapshot and stops; a second
    Ctrl-C stops at once, and leaves nothing half-written. SIGHUP writes a snapshot and goes on.
    That is so with several ranks, too, if this command starts them. Where mpiexec or srun does,
    send SIGHUP to a rank (`scancel --signal=HUP JOB.0`), as mpiexec itself would end.
    On a terminal a live display follows the log.

    Exit codes: 0 done, or nothing left to train; 1 bad input; 2 wrong usage; 3 the loss is nan or
    infinite; 4 a rank failed, or waited too long, and ended the others; 128 + N stopped
    by signal N with a snapshot (129 SIGHUP, 130 SIGINT, 143 SIGTERM): the end of the log has the
    command that resumes. Each of several ranks has its own exit code."""

    solver: str = like(common.SOLVER)
    weights: list[str] = like(
        WEIGHTS,
        "start from the weights in these files, by layer name (separated by commas)",
        one_of=_START,
    )
    snapshot: str | None = flag(
        'resume from this .solverstate; "auto": from the newest complete one, if there is one',
        "FILE",
        one_of=_START,
        ranks="name",
        excluded_by=_LONG_RUNS,
    )
    max_iter: int | None = flag("train up to iteration N, instead of the solver's max_iter", COUNT)
    log_dir: str | None = like(LOG_DIR)
    tensorboard: str | None = flag(
        "write event files for TensorBoard", "DIR", ranks="own", excluded_by=_LONG_RUNS
    )
    strict: bool = like(STRICT)
    find_lr: str | None = flag(
        "propose a learning rate: train a little (--max_iter: number of iterations) with growing "
        "ones, and draw the losses in PAGE (default: find_lr.html)",
        "PAGE",
        nargs="?",
        const="find_lr.html",
    )
    loss_scale: str | None = flag(
        'loss scaling: "dynamic", "none" or a factor (default: dynamic in fp16, else none)', "SCALE"
    )
    on_nan: str = flag(
        "when a displayed loss is nan or infinite: stop without a snapshot (default), or go on, "
        "as Caffe does",
        ("stop", "continue"),
        "stop",
    )
    sigint_effect: str = flag("what SIGINT (Ctrl-C) does", _EFFECTS, "stop")
    sighup_effect: str = flag("what SIGHUP does", _EFFECTS, "snapshot")
    trace: str | None = flag(
        "write a Chrome trace (JSON) of a few iterations, layer by layer",
        "FILE",
        ranks="own",
        excluded_by=_LONG_RUNS,
    )
    no_progress: bool = flag("show no live display on the terminal", ranks="own")
    check: int = flag(
        "compare the ranks' weights every N iterations, and stop if they differ", COUNT, 0
    )
    comm_profile: str | None = flag(
        "profile communication: print a table at the end, and write FILE (JSON), a picture "
        "(.png) and a Chrome trace (.trace.json)",
        "FILE",
    )
    no_python_layers: bool = like(NO_PYTHON_LAYERS)
    device: Devices = group(Devices, "where it runs")
    ranks: TrainRanks = group(
        TrainRanks,
        "several ranks",
        "Started by mpiexec or srun, by --ranks, or by --gpu with several numbers.",
    )
    keep: Keep = group(Keep)
    data: DataConfig = group(DataConfig, "how data are read")
    state: State = group(State)
    parallel: ParallelConfig = group(ParallelConfig)
    servers: ServerConfig = group(ServerConfig, "parameter servers")
    comm: CommConfig = group(CommConfig, "how ranks communicate")
