"""`train --ranks_per_gpu`: how many ranks share a GPU, found by trials, and MPS for them.

The command stays the parent of the ranks that it starts, and configures them by environment
variables. A trial is the same command, limited to a short training that writes nothing.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ... import log
from ...comm.job.job import launched_by
from ...errors import UserError
from ...options.flags import excluded
from ..early_exit import Ended
from ..train.options import Train
from . import mps, restarts

logger = logging.getLogger("osucaffe")

TRIAL = "OSUCAFFE_TRIAL"
"""The environment variable with the file for a trial's result: {"rate", "unit"}."""
_STARTED = "OSUCAFFE_RANKS_PER_GPU"
"""The environment variable with the line for the ranks' log."""
AUTO = "auto"
MAX_RANKS = 16
WORTH = 1.03
"""The least speed-up for which more ranks are used."""

Command = Callable[[int], Sequence[str]]
"""Makes the command that starts this many ranks."""


class Trial(NamedTuple):
    """The training rate of this many ranks on each GPU, or why they fail. unit: of the rate."""

    ranks: int
    rate: float = 0.0
    unit: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.ranks}: {self.why or f'{self.rate:,.0f} {self.unit}'}"


def is_requested(options: Train) -> bool:
    """Whether this process must start ranks for this option. UserError for invalid combinations."""
    value = options.ranks.ranks_per_gpu
    if value is None or _STARTED in os.environ:
        return False
    if options.device.gpu is None:
        raise UserError(f"--ranks_per_gpu {value}: add --gpu, with a number or all")
    if other := excluded(options, "--ranks_per_gpu"):
        raise UserError(f"--ranks_per_gpu {value} cannot be combined with {other}")
    if launched_by():
        raise UserError(
            f"--ranks_per_gpu {value} starts the ranks itself: leave out mpiexec (or srun), or "
            "start more ranks with it and leave out this option"
        )
    return True


def started() -> bool:
    """Whether `run` has started this process."""
    return _STARTED in os.environ


def is_trial() -> bool:
    """Whether this process is a rank of a trial."""
    return TRIAL in os.environ


def tell() -> None:
    """Log the result of the trials."""
    if line := os.environ.get(_STARTED):
        logger.info("%s", line)


def run(options: Train, gpus: int, command: Command) -> int:
    """Start the ranks, after trials if requested, under MPS if several share a GPU.
    Returns the exit code."""
    value = options.ranks.ranks_per_gpu
    requested = 0 if value == AUTO else int(value or 0)
    if requested == 1:
        return _finish(options, command(gpus), "--ranks_per_gpu 1: one rank on each GPU", {})
    with mps.served() as service:
        if requested:
            line = f"--ranks_per_gpu {requested}: {service.status}"
        else:
            if not log.quiet:
                print("osucaffe: --ranks_per_gpu auto: trying 1, 2, 4 ..", file=sys.stderr)
            requested, line = find(
                lambda count: attempt(command(count * gpus), count, service), service
            )
        if requested > 1:
            return _finish(options, command(requested * gpus), line, dict(service.variables))
    return _finish(options, command(gpus), line, {})


def find(
    trial: Callable[[int], Trial], service: mps.Service, most: int = MAX_RANKS
) -> tuple[int, str]:
    """The number of ranks that trains fastest, the smallest of about equal ones; and a line that
    reports it. One, two and four are tried, and doubles of these as long as they gain."""
    trials = [trial(1)]
    if not trials[0].rate:
        raise UserError(f"--ranks_per_gpu auto: one rank does not train: {trials[0].why}")
    count = 2
    while count <= most:
        best = max(trial.rate for trial in trials)
        trials.append(trial(count))
        if trials[-1].why or (count >= 4 and trials[-1].rate <= WORTH * best):
            break
        count *= 2
    best = max(trial.rate for trial in trials)
    chosen = next(trial for trial in trials if WORTH * trial.rate >= best)
    tried = "; ".join(map(str, trials))
    if chosen.ranks == 1:
        words = f"1 rank, as no number is over {WORTH - 1:.0%} faster"
    else:
        words = f"{chosen.ranks} ranks, {chosen.rate / trials[0].rate:.2f} times as fast as 1"
    return chosen.ranks, f"--ranks_per_gpu auto: {words} ({tried}; more than 1 {service.status})"


def attempt(command: Sequence[str], count: int, service: mps.Service) -> Trial:
    """One trial. One rank runs as it would run without the option."""
    variables = dict(service.variables) if count > 1 else {}
    with tempfile.TemporaryDirectory(prefix="osucaffe-trial-") as folder:
        result, log = Path(folder) / "rate.json", Path(folder) / "said"
        with log.open("w") as file:
            environment = {_STARTED: "", TRIAL: str(result)} | variables
            code, stopped = restarts.run(command, environment, stderr=file)
        if stopped:
            raise Ended(code)
        if code == 0 and result.exists():
            measured = json.loads(result.read_text())
            return Trial(count, measured["rate"], measured["unit"])
        return Trial(count, why=f"does not run ({reason(log.read_text(errors='replace'), code)})")


def reason(said: str, code: int) -> str:
    """Why a training failed, from what it wrote to its error stream and its exit code."""
    lines = [line for line in said.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("osucaffe: ")] or lines[-1:]
    return named[0].removeprefix("osucaffe: ")[:200] if named else f"exit code {code}"


def _finish(options: Train, command: Sequence[str], line: str, variables: dict[str, str]) -> int:
    """Run the training itself to its end."""
    os.environ.update(variables | {_STARTED: line})
    if options.ranks.max_restarts:
        return restarts.watch_over(options, itertools.repeat(restarts.Attempt(command, {})))
    return restarts.run(command, {})[0]
