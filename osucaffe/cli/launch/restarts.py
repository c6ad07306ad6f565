"""`train --max_restarts N`: a run with a dead process is restarted from its newest
snapshot; with --elastic on the ranks that remain, with the same global batch.

The command stays the parent of the run that it starts, as of every mpiexec, whose ranks so get
its signals; it passes the state to resume from in an environment variable.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import UserError
from ...options.flags import excluded
from ...parent import end_with_parent
from ..train.options import Train

if TYPE_CHECKING:
    from ...comm.job.job import Job

logger = logging.getLogger("osucaffe")
_VARIABLE = "OSUCAFFE_RESTART"
"""The environment variable with {number, most, code, state} and further info for a supervised
run."""
_PARENT = "OSUCAFFE_PARENT"
"""The environment variable with HOST:PATH of the pipe in which `run` learns of rank 0."""
_ENOUGH = 2
"""Interrupts that rank 0 gets; it may hang, so further ones are the launcher's."""
_STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_FINAL = (0, 1, 2, 3, *(128 + number for number in _STOPS))
"""Exit codes of runs that are done, were stopped, or would fail again (see train.py)."""


class Attempt(NamedTuple):
    """A command, and what its process is given in the environment besides."""

    command: Sequence[str]
    info: dict[str, int]


def watched() -> bool:
    """Whether this process belongs to a run that `watch_over` has started."""
    return _VARIABLE in os.environ


def watch_over(options: Train, attempts: Iterable[Attempt]) -> int:
    """Run a training, and again up to --max_restarts times if one of its processes dies.

    attempts: what to run each time. Signals that request a stop are passed on. Returns its exit
    code.
    """
    from ...proto import read_solver
    from ...solvers.snapshots import snapshot

    most, prefix = options.ranks.max_restarts, read_solver(Path(options.solver)).snapshot_prefix
    before = snapshot.stamps(prefix)
    code, state = 0, ""
    for number, attempt in zip(range(most + 1), attempts, strict=False):
        info = {"number": number, "most": most, "code": code, "state": state} | attempt.info
        code, stopped = run(attempt.command, {_VARIABLE: json.dumps(info)})
        if stopped or code in _FINAL:
            return code
        newest = snapshot.newest(prefix, but=before)
        state = str(newest.path) if newest else ""
    print(
        f"osucaffe: the run ended with exit code {code} after {most} restarts (--max_restarts)",
        file=sys.stderr,
    )
    return code


def run(command: Sequence[str], variables: dict[str, str], stderr: Any = None) -> tuple[int, bool]:
    """Run a command to its end, with further environment variables; stderr: a file for its standard
    error. Returns its exit code, and whether this process was signalled to stop it.

    Signals are passed on to rank 0 itself once it has said where it is (`tell_parent`): of
    launchers, some end all ranks at a SIGHUP, and all at a second Ctrl-C.
    """
    parent, stopped, rank, interrupts = os.getpid(), False, 0, 0
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    where = {_PARENT: f"{platform.node()}:/proc/{parent}/fd/{writing}"}
    # A separate process group: of a terminal's signals it only gets the one passed on.
    child = subprocess.Popen(
        command,
        env=os.environ | variables | where,
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        process_group=0,
        preexec_fn=lambda: end_with_parent(parent),
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal stopped, rank, interrupts
        stopped = stopped or number != signal.SIGHUP
        interrupts += number == signal.SIGINT
        with contextlib.suppress(BlockingIOError):
            rank = int.from_bytes(os.read(reading, 8), "little")
        try:
            if not rank or interrupts > _ENOUGH:
                raise ProcessLookupError
            os.kill(rank, number)
        except ProcessLookupError:
            child.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in _STOPS}
    try:
        code = child.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
    return (128 - code if code < 0 else code), stopped


def tell_parent(job: Job) -> None:
    """Let the process that has started this job's launcher know where its rank 0 is."""
    host, _, path = os.environ.pop(_PARENT, "").partition(":")
    if path and not job.rank and host == platform.node():
        with contextlib.suppress(OSError), open(path, "wb", buffering=0) as pipe:
            pipe.write(os.getpid().to_bytes(8, "little"))


def begin(options: Train, job: Job) -> Train:
    """The options of a rank, which after a restart resumes from the given state, with the given
    number of ranks. UserError if another launcher started it, which would have to restart it."""
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        if options.ranks.max_restarts:
            raise UserError(
                "--max_restarts is for ranks that this command starts itself: give --ranks N, or "
                "leave it out"
            )
        return options
    info = json.loads(text)
    if info["number"] and not job.rank:
        source = f"from {info['state']}" if info["state"] else "from the beginning: no snapshot yet"
        if "ranks" in info:
            source += f", with ranks that remain (--elastic): {info['ranks']}"
        logger.warning(
            "Restart %d of %d (--max_restarts), %s: a process of the run died (exit code %d)",
            *(info["number"], info["most"], source, info["code"]),
        )
    if "ranks" in info:
        parallel = replace(options.parallel, scaling="strong", of=info["batches_of"])
        options = replace(options, parallel=parallel)
    return replace(options, snapshot=info["state"], weights=[]) if info["state"] else options


def check_elastic(options: Train) -> None:
    """UserError if other options conflict with --elastic, or one that it needs is missing."""
    if not options.ranks.elastic:
        return
    if not options.ranks.max_restarts:
        raise UserError("--elastic is for runs that begin again: give --max_restarts N, too")
    if other := excluded(options, "--elastic"):
        raise UserError(f"--elastic cannot be combined with {other}")


def attempts(
    options: Train, ranks: int, gpus: Sequence[str], command: Callable[..., list[str]]
) -> Iterator[Attempt]:
    """The runs, the first on this many ranks, each further one on those remaining from the last.

    command: makes the command from a number of ranks and more options. UserError.
    """
    of = ranks if options.parallel.scaling == "weak" else 1
    sizes = _global_batches(options, ranks, of)
    yield Attempt(command(ranks), {})
    while True:
        ranks = remaining(ranks, sizes)
        more = ["--ranks", str(ranks)]
        if options.device.gpu not in (None, "all"):
            more += ["--gpu", ",".join(gpus[:ranks])]
        yield Attempt(command(ranks, *more), {"ranks": ranks, "batches_of": of})


def remaining(ranks: int, sizes: Sequence[int]) -> int:
    """How many ranks go on when one has died: the most that divide each of the global batches."""
    fewer = range(max(ranks - 1, 1), 0, -1)
    return next(count for count in fewer if all(size % count == 0 for size in sizes))


def _global_batches(options: Train, ranks: int, of: int) -> list[int]:
    """One a layer that reads data. UserError where one has no batch size to divide."""
    from ...parallel.batch import divide_batches, readers
    from ...proto import read_net, read_solver
    from ...solvers.nets import training_net

    param = read_solver(Path(options.solver))
    options.state.add_to(param)
    net = training_net(param, options.solver, read_net).chosen("TRAIN")
    divided = divide_batches(net, ranks, of=of)
    return [message.batch_size * ranks for _, message in readers(divided)]
