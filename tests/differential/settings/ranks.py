"""What the ranks run that test_solvers.py starts: so many ranks' batches train as one batch of all.

mpiexec -n 2 python -m tests.differential.settings.ranks FOLDER SEED CASES
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np

from osucaffe.comm.algorithms import ALGORITHMS
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import Job, find_job
from osucaffe.comm.job.topology import discover
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from tests.solvers.runs import assert_same

from ..search import Case
from .solver_cases import DEFAULTS, draw, read_data, show, write_data
from .solver_reference import ROUNDING, compare, courses, diverges
from .solvers import Notes, make_solver, read_weights


def draw_group(random: np.random.Generator, case: Case) -> tuple[CommConfig, ParallelConfig]:
    """How gradients and weights travel."""

    def one(*values: str | int) -> str | int:
        return values[random.integers(len(values))]

    propagation = one("none", "blocking", "overlapped", "sharded")
    sums = case["clip_gradients"] >= 0 or {"larc", "local_lr_auto"} & set(case)
    if (propagation == "sharded" and sums) or case.get("run.loss_scale"):
        propagation = "none"  # the others are refused
    config = ParallelConfig(one("blocking", "layerwise"), propagation, one(0, 64, 1 << 20))
    if propagation != "none":
        return CommConfig(), config
    return CommConfig(algorithm=one(*ALGORITHMS["all_reduce"], "native"), chunk=64), config


def check(case: Case, job: Job, folder: Path, random: np.random.Generator) -> None:
    """Train on all ranks, compare with the reference, and go on from a snapshot on the way."""
    notes = Notes()
    comm, config = draw_group(random, case)
    if job.rank == 0:
        folder.mkdir()
        write_data(case, folder)
    job.barrier()
    run = make_solver(case, folder, notes, group=DataParallel(job, discover(job), comm, config))
    references = list(courses(case, read_data(folder), read_weights(run), job.size))
    if not diverges(references[0]):
        run.step(case["run.stop"])
        state = run.snapshot().state
        job.barrier()  # it is written
        run.step(case["run.iterations"] - case["run.stop"])
        run.group.synchronize_weights(history=True)
        notes.course.weights, notes.course.history = read_weights(run), run.optimizer.read_history()
        compare(notes.course, references, ROUNDING[case["run.dtype"]])
        group = DataParallel(job, discover(job), comm, config)
        again = make_solver(case, folder, group=group, resume=state)
        again.step(case["run.iterations"] - case["run.stop"])
        group.synchronize_weights(history=True)
        assert_same(again, run)
        again.close()
    run.close()


def main() -> None:
    folder, seed, cases = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    gc.freeze()  # each solver's end looks for what is gone: not among the modules
    job = find_job()
    with job.together():
        for number in range(cases):
            random = np.random.default_rng([seed, number])
            # Ranks exchange gradients in float32.
            case = DEFAULTS | draw(random) | {"run.dtype": "float32"}
            try:
                check(case, job, folder / str(number), random)
            except Exception as error:
                raise AssertionError(f"case {number} of seed {seed}:\n{show(case)}") from error
    print(f"rank {job.rank}: {cases} cases alike\n", end="")


if __name__ == "__main__":
    main()
