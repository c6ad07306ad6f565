"""The measured part of a study: short trainings on this machine, by each design in turn.

`osucaffe train` runs them, with made-up data where the net's own is not needed to know its shapes.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from ..backends.cores import computing_threads
from ..backends.cpu import Cpu
from ..cli import output
from ..cli.launch.ranks_per_gpu import reason
from ..errors import UserError
from ..parallel.config import ParallelConfig
from ..parallel.tuning import quieten
from ..proto import SolverParameter, format_text
from ..solvers.solver import Solver
from .compare import ROUNDS
from .iteration import SERVED, Prediction
from .predict import ALONE, Case, row
from .profiling.passes import MAX_ITERATIONS, WARM_UP

logger = logging.getLogger("osucaffe")
_MIN_ITERATIONS = 3
"""Iterations that are measured at least."""


def flags(design: str, config: ParallelConfig, servers: str = "K") -> str:
    """The options of `osucaffe train` for a design; "" where it is only predicted."""
    if design in SERVED:
        return f"--servers {servers} --aggregation {config.aggregation}"
    if config.brought:
        return f"--aggregation {config.aggregation}"
    if config.aggregation == "buckets":
        return ""
    if config.hooked:
        return config.hooked
    split = config.split_inner_products
    how = "" if split == "none" else f" --split_inner_products {split}"
    return f"--aggregation {config.aggregation} --propagation {config.propagation}{how}"


class LocalRuns:
    """The trainings of a case with at most that many processes, each of about that many seconds.

    failed: why designs could not be trained, one line each.
    """

    def __init__(self, case: Case, most: int, seconds: float) -> None:
        self._case, self._most, self._seconds = case, most, seconds / ROUNDS
        self.threads = case.args.threads or computing_threads(most)
        self.failed: list[str] = []
        self._sketch = cache(case.sketch)

    def measure(self) -> Iterator[Prediction]:
        """By numbers of ranks and designs, those that fit; prints rows. Designs take turns, and the
        fastest turn of each counts, as other load on the machine only slows it down."""
        for size in (size for size in self._case.ranks if size <= self._most):
            designs = [design for design in self._case.designs if self._fits(design, size)]
            with output.progress(f"{size} ranks", ROUNDS * (1 + len(designs))) as advance:
                fastest = self._take_turns(designs, size, advance)
            for design, one in fastest.items():
                if design != ALONE or size == 1:
                    result = replace(one, computing=fastest[ALONE].ms)
                    print(row(result), flush=True)
                    yield result

    def _take_turns(
        self, designs: list[str], size: int, advance: Callable[[], None]
    ) -> dict[str, Prediction]:
        """One rank alone, then each design; the fastest turn of each that trains."""
        fastest: dict[str, Prediction] = {}
        for _ in range(ROUNDS):
            for design in (ALONE, *designs):
                advance()
                try:
                    if design == ALONE:
                        one = self._train_alone(size)
                    else:
                        one = self._train(design, size, fastest[ALONE].ms)
                except UserError as error:
                    self.failed.append(f"{design} on {size} ranks: {error}")
                    logger.warning("%s is not measured", self.failed[-1])
                    if design == ALONE:
                        return {}
                    designs.remove(design)
                    continue
                fastest[design] = min(one, fastest.get(design, one), key=lambda each: each.ms)
        return fastest

    def _fits(self, design: str, size: int) -> bool:
        """Whether a design can be trained by that many ranks here."""
        return (
            bool(flags(design, self._case.configs[design]))
            and 1 < size + self._serving(design) <= self._most
        )

    def _serving(self, design: str) -> int:
        """How many ranks are servers."""
        return int((self._case.args.servers or "").partition("/")[0]) if design in SERVED else 0

    def _images(self, size: int, ranks: int, ms: float) -> float:
        """A second, of these ranks, each with the batch that one of `size` has."""
        passes = max(self._case.solver.iter_size, 1)
        return ranks * self._sketch(size).batch * passes / ms * 1e3

    def _param(self, size: int) -> SolverParameter:
        """The solver's settings for one of these ranks, without tests, displays and snapshots."""
        sketch, param = self._sketch(size), quieten(self._case.solver)
        for field in ("net", "net_param", "train_net", "train_net_param"):
            param.ClearField(field)
        param.net_param.CopyFrom(sketch.param)
        param.snapshot_after_train, param.solver_mode = False, SolverParameter.CPU
        return param

    def _train_alone(self, size: int) -> Prediction:
        """One rank alone, with the batch that one of that many has."""
        solver = Solver(self._param(size), Cpu(threads=self.threads), file=self._case.args.solver)
        solver.step(WARM_UP)
        times: list[float] = []
        while len(times) < _MIN_ITERATIONS or (
            sum(times) < self._seconds and len(times) < MAX_ITERATIONS
        ):
            begun = time.perf_counter()
            solver.step(1)
            times.append(time.perf_counter() - begun)
        solver.close()
        low, median, high = (float(ms) for ms in np.percentile(1e3 * np.array(times), (10, 50, 90)))
        return Prediction(ALONE, 1, median, low, high, median, 0.0, self._images(size, 1, median))

    def _train(self, design: str, size: int, alone: float) -> Prediction:
        """A design on several ranks. alone: milliseconds of one. UserError with what it said."""
        args, serving = self._case.args, self._serving(design)
        count = WARM_UP + min(
            max(_MIN_ITERATIONS, round(1e3 * self._seconds / alone)), MAX_ITERATIONS
        )
        with tempfile.TemporaryDirectory(prefix="osucaffe-study-") as folder:
            solver, profile = Path(folder) / "solver.prototxt", Path(folder) / "profile.json"
            param = self._param(size)
            param.snapshot_prefix = f"{folder}/run"
            solver.write_text(format_text(param))
            command = [sys.executable, "-P", "-m", "osucaffe", "train", "--quiet"]
            command += ["--solver", str(solver), "--comm_profile", str(profile)]
            command += ["--ranks", str(size + serving), "--threads", str(self.threads)]
            command += ["--max_iter", str(count), "--on_nan", "continue"]
            command += ["--bucket_mb", str(args.bucket / 2**20), "--algorithm", args.algorithm]
            command += ["--tuning", args.tuning] if args.tuning else []
            own = serving or self._case.configs[design].hooked
            command += ["--consistency", args.consistency] if serving else []
            command += [] if own else ["--gradient_type", args.gradient_type]
            command += flags(design, self._case.configs[design], str(serving)).split()
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            if done.returncode:
                raise UserError(reason(done.stderr, done.returncode))
            found = json.loads(profile.read_text())
        median, low, high = (found[f"{which}_ms"] for which in ("median", "low", "high"))
        images, waiting = self._images(size, size, median), found["parts_ms"]["waiting"]
        return Prediction(design, size, median, low, high, alone, waiting, images)
