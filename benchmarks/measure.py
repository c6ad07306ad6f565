"""Owns fair timing: worker processes that take turns, and the medians of what they report."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]


class Worker:
    """A process of `benchmarks.worker`; use it in a `with` statement.

    job: framework, model, batch, update, threads and layout, as `worker` reads them.
    notes: what the worker said about itself (version, FLOPs of an iteration).
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
        self.peak = self.growth = 0
        try:
            self.notes = self._answer()
        except BaseException:
            self._process.kill()
            raise

    def run(self, seconds: float) -> None:
        """Run for that long and add the durations (in seconds) to `times`, one list a run."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.times.append(answer["times"])
        self.peak, self.growth = answer["peak"], answer["growth"]

    @property
    def run_medians(self) -> list[float]:
        """The median duration of an iteration in each run, in seconds."""
        return [statistics.median(times) for times in self.times]

    @property
    def median(self) -> float:
        """The median over the runs, in seconds."""
        return statistics.median(self.run_medians)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker for {self.job} failed: its message stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def alternate(workers: Sequence[Worker], *, rounds: int, seconds: float) -> None:
    """Let the workers run in turn, A B A B ..., so that what disturbs one disturbs both."""
    for _ in range(rounds):
        for worker in workers:
            worker.run(seconds)
