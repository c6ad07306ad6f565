"""Owns `train --max_restarts N`: a run of which a process died begins again from its newest
snapshot.

The command stays beside the run that it starts, and tells it by a variable of the environment what
to go on from.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import UserError
from .. import options

if TYPE_CHECKING:
    from ...comm.job.job import Job
    from ...solvers.snapshots.snapshot import Stamp

logger = logging.getLogger("osucaffe")
_VARIABLE = "OSUCAFFE_RESTART"
"""In which a run that is watched over finds {number, most, code, state}, and what it is told
besides."""
_STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_FINAL = (0, 1, 2, 3, *(128 + number for number in _STOPS))
"""Exit codes of runs that are done, were stopped, or would end so again (see train.py)."""


class Attempt(NamedTuple):
    """A command, and what its run is told besides."""

    command: Sequence[str]
    told: dict[str, int]


def add_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the option."""
    group.add_argument(
        "--max_restarts",
        metavar="N",
        type=options.positive,
        default=0,
        help="when a process of the run dies, restart it from its newest complete snapshot, "
        "at most N times",
    )


def watched() -> bool:
    """Whether this process belongs to a run that `watch_over` has started."""
    return _VARIABLE in os.environ


def watch_over(attempts: Iterable[Attempt], most: int, prefix: str) -> int:
    """Run a training, and again up to `most` times where a process of it dies.

    attempts: what to run each time. prefix: of its snapshots. Signals that ask it to stop are
    passed on. Returns its exit code.
    """
    import json

    from ...solvers.snapshots import snapshot

    before = snapshot.stamps(prefix)
    code, state = 0, ""
    for number, attempt in zip(range(most + 1), attempts, strict=False):
        told = {"number": number, "most": most, "code": code, "state": state} | attempt.told
        code, stopped = run(attempt.command, {_VARIABLE: json.dumps(told)})
        if stopped or code in _FINAL:
            return code
        state = _newest(prefix, before)
    print(
        f"osucaffe: the run ended with exit code {code} after {most} restarts (--max_restarts)",
        file=sys.stderr,
    )
    return code


def _newest(prefix: str, before: frozenset[Stamp]) -> str:
    """The newest whole snapshot that was not there before; "" if there is none."""
    from ...solvers.snapshots import snapshot

    found = snapshot.newest(prefix, but=before)
    return str(found.path) if found else ""


def run(command: Sequence[str], told: dict[str, str], stderr: Any = None) -> tuple[int, bool]:
    """Run a command to its end, with variables of the environment; stderr: a file for what it says
    there. Returns its exit code, and whether this process was to stop it."""
    import subprocess

    from ...parent import end_with_parent

    parent, stopped = os.getpid(), False
    # A group of its own: of a terminal's signals it gets one, which is passed on.
    child = subprocess.Popen(
        command,
        env=os.environ | told,
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        process_group=0,
        preexec_fn=lambda: end_with_parent(parent),
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = stopped or number != signal.SIGHUP
        child.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in _STOPS}
    try:
        code = child.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return (128 - code if code < 0 else code), stopped


def begin(args: argparse.Namespace, job: Job) -> None:
    """Let a rank of a run that was started again go on from what it is told, and as so many.
    UserError where something else started it, which would have to start it again."""
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        if args.max_restarts:
            raise UserError(
                "--max_restarts is for ranks that this command starts itself: give --ranks N, or "
                "leave it out"
            )
        return
    import json

    told = json.loads(text)
    if told["number"] and not job.rank:
        source = f"from {told['state']}" if told["state"] else "from the beginning: no snapshot yet"
        if "ranks" in told:
            source += f", with ranks that remain (--elastic): {told['ranks']}"
        logger.warning(
            "Restart %d of %d (--max_restarts), %s: a process of the run died (exit code %d)",
            *(told["number"], told["most"], source, told["code"]),
        )
    if "ranks" in told:
        args.scal, args.batches_of = "strong", told["batches_of"]
    if told["state"]:
        args.snapshot, args.weights = told["state"], []


def prefix_of(file: str) -> str:
    """Where the snapshots of a solver go."""
    from ...proto import read_solver

    return read_solver(Path(file)).snapshot_prefix
