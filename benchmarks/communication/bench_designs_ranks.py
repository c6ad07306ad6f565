"""What the ranks run that bench_designs starts: LeNet by designs in turn, tested or timed."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.cli import parse
from osucaffe.cli.launch import ranks
from osucaffe.comm.job.job import Job, find_job
from osucaffe.comm.job.topology import Topology, discover
from osucaffe.parallel.tuning import quieten
from osucaffe.proto import SolverParameter, parse_text, read_solver
from osucaffe.solvers import Solver

SOLVER = "models/lenet/solver.prototxt"
TURNS = 3


def make_solver(job: Job, topology: Topology, options: str, settings: str) -> Solver | None:
    """A solver that trains by these options; None on a rank that has served, after it."""
    words = ["train", "--solver", SOLVER, "--scal", "strong", "--threads", "1", *options.split()]
    _, args = parse(words)
    ranks.check_communication(args)
    roles = ranks.assign_roles(args.servers, job, topology)
    backend = Cpu(threads=1)
    if roles is not None and roles.serves:
        roles.serve(backend)
        return None
    param = quieten(read_solver(SOLVER))
    param.ClearField("max_iter")
    text = f"random_seed: 1 test_iter: 100 test_interval: 1000000 {settings}"
    param.MergeFrom(parse_text(text, SolverParameter))
    group = ranks.make_process_group(args, job, topology, roles)
    return Solver(param, backend, file=SOLVER, group=group)


def reach(solver: Solver, accuracy: float, every: int, most: int) -> list[float]:
    """Train until a test, one every so often, gives this accuracy; all that they gave."""
    found: list[float] = []
    while len(found) * every < most and max(found, default=0.0) < accuracy:
        solver.step(every)
        [result] = solver.test_all()
        values = {each.name: each.value for each in result.outputs}
        found.append(values["accuracy"] if math.isfinite(values["loss"]) else 0.0)
    return found


def seconds_of_iteration(solver: Solver, multiple: int, seconds: float) -> float:
    """How long an iteration takes, in rounds of a multiple of iterations that take so long."""

    def timed(rounds: int) -> float:
        begun = time.perf_counter()
        solver.step(rounds * multiple)
        solver.group.sum(np.zeros(1))  # all ranks are there
        return time.perf_counter() - begun

    timed(1)
    count = solver.group.broadcast_object(max(1, round(seconds / TURNS / timed(1))))
    return min(timed(count) for _ in range(TURNS)) / count / multiple


def main() -> None:
    """Arguments: JSON of what to do, a list of designs."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    job = find_job()
    with job.together():
        topology = discover(job)
        for design in given["designs"]:
            row: dict[str, Any] = {"name": design["name"]}
            multiple = design["multiple"]
            solver = make_solver(job, topology, design["options"], given["settings"])
            if solver is not None:
                if "accuracy" in given:
                    every = max(given["every"] // multiple, 1) * multiple
                    row["accuracies"] = reach(solver, given["accuracy"], every, given["most"])
                    row["iterations"] = solver.iteration
                if "seconds" in given:
                    row["ms"] = 1e3 * seconds_of_iteration(solver, multiple, given["seconds"])
                solver.close()
            if job.rank == 0:
                print("ROW " + json.dumps(row), flush=True)
            job.barrier()


if __name__ == "__main__":
    main()
