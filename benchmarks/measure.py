"""Fair timing: worker processes that take turns on a quiet machine, and their medians.

A busy machine does not slow two programs alike: threads that wait for one another in a loop lose
far more than others. So a round in which other processes ran is repeated.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

QUIET = 0.05
"""The share of the machine that other processes may take in a round that counts."""

_ROOT = Path(__file__).resolve().parents[1]
_PAUSE_SECONDS = 3.0


class Worker:
    """A process of `benchmarks.worker`; use it in a `with` statement.

    job: framework, model, batch, update, threads and layout, as `worker` reads them.
    notes: what the worker said about itself (version, FLOPs of an iteration).
    times: the durations of each run's iterations; processor: what one of them took of the
    processors on average, of all threads together (in seconds, both).
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(job["threads"])
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env=os.environ | threads,
        )
        self.times: list[list[float]] = []
        self.processor: list[float] = []
        self.peak = self.growth = 0
        try:
            self.notes = self._answer()
        except BaseException:
            self._process.kill()
            raise

    def run(self, seconds: float) -> float:
        """Run for that long and add the durations (in seconds) to `times`, one list a run.

        Returns the share of the machine's processors that others took meanwhile.
        """
        assert self._process.stdin is not None
        busy, start = _busy_seconds(), time.perf_counter()
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer = self._answer()
        busy, wall = _busy_seconds() - busy, time.perf_counter() - start
        self.times.append(answer["times"])
        self.processor.append(answer["cpu"] / len(answer["times"]))
        self.peak, self.growth = answer["peak"], answer["growth"]
        return max(0.0, busy - answer["cpu"]) / (wall * (os.cpu_count() or 1))

    @property
    def run_medians(self) -> list[float]:
        """The median duration of an iteration in each run, in seconds."""
        return [statistics.median(times) for times in self.times]

    @property
    def median(self) -> float:
        """The median over the runs, in seconds."""
        return statistics.median(self.run_medians)

    def ratios_to(self, ours: Worker) -> dict[str, Any]:
        """What this one took over what the other did, run by run: `ratios`; `ratio`, the median."""
        pairs = zip(self.run_medians, ours.run_medians, strict=True)
        ratios = sorted(round(theirs / mine, 2) for theirs, mine in pairs)
        return {"ratios": ratios, "ratio": round(statistics.median(ratios), 2)}

    def _answer(self) -> dict[str, Any]:
        """The next answer. Raises RuntimeError if it is an error's message, or there is none."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the worker ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def alternate(
    workers: Sequence[Worker],
    *,
    rounds: int,
    seconds: float,
    patience: int = 4,
    quiet: float = QUIET,
) -> float:
    """Let the workers run in turn, A B A B ..., and keep the times of so many quiet rounds.

    patience: how many rounds to try for each that is wanted; then the quietest are kept.
    quiet: the share of the processors that others may take (1: it does not matter).
    Returns the largest share of the machine that others took in a round that is kept.
    """
    shares: list[float] = []
    while sum(share <= quiet for share in shares) < rounds and len(shares) < patience * rounds:
        if shares and shares[-1] > quiet:
            time.sleep(_PAUSE_SECONDS)
        shares.append(max([worker.run(seconds) for worker in workers]))
    kept = sorted(sorted(range(len(shares)), key=shares.__getitem__)[:rounds])
    for worker in workers:
        worker.times = [worker.times[index] for index in kept]
        worker.processor = [worker.processor[index] for index in kept]
    return max(shares[index] for index in kept)


def _busy_seconds() -> float:
    """The time that all processors of the machine together have been busy since it started."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _wait, *other = map(int, stat.readline().split()[1:9])
    return (user + nice + system + sum(other)) / os.sysconf("SC_CLK_TCK")
