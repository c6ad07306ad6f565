"""What `osucaffe train --comm_profile` costs: processor time of iterations with it and without.

  python -m benchmarks.communication.bench_comm_profile [--ranks 2]        needs mpiexec

Each rank has two solvers of one net, whose groups differ in nothing but the profile. They train in
turns, and the turns are compared in pairs: others' work changes processor time by far less than
the time that passes, and both of a pair alike. Results go to benchmarks/results.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import find_job
from osucaffe.comm.job.topology import Topology, discover
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.proto import caffe_pb2, read_net
from osucaffe.solvers import Solver
from osucaffe.study.profiling.passes import MAX_ITERATIONS, WARM_UP, Profiled
from osucaffe.study.sketch import Sketch

from .. import results
from ..prediction.bench_predict_training import net_param
from ..ranks import mpiexec
from ..rows import rows_of

NETS: dict[str, Callable[[], caffe_pb2.NetParameter]] = {
    "LeNet, 64 images": lambda: Sketch(read_net("models/lenet/train_val.prototxt")).param,
    "five inner products, 1 record": net_param,
}
"""The second computes next to nothing: what a profile costs at most."""
CONFIG = ParallelConfig(propagation="sharded", bucket=256 << 10)
TURN = 5
TURNS = (MAX_ITERATIONS + WARM_UP) // TURN - 1
"""All of them are noted."""
ABOUT = """Milliseconds of processor time of an iteration, all ranks together, {ranks} ranks of one
thread each on {cpu}, which others use too (a load of {load}): medians of {turns} turns of {length}
iterations, and the median ratio of the pairs, with half of them between the last two.
"""


def solver_of(param: caffe_pb2.NetParameter, group: DataParallel) -> Solver:
    """One that trains on invented records."""
    solver = caffe_pb2.SolverParameter(base_lr=0.001, lr_policy="fixed", net_param=param)
    solver.snapshot_after_train = False
    return Solver(solver, Cpu(threads=1), group=group)


def turns(job: Any, topology: Topology, param: caffe_pb2.NetParameter) -> list[list[float]]:
    """Milliseconds of processor time of an iteration in each turn, without and with a profile."""

    given = job, topology, CommConfig("mpi"), CONFIG
    groups = DataParallel(*given), Profiled(lambda records: None, *given)
    solvers = [solver_of(param, group) for group in groups]
    found: list[list[float]] = []
    for turn in range(TURNS):
        pair = [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            job.barrier()
            start = time.process_time()
            solvers[which].step(TURN)
            pair[which] = (time.process_time() - start) / TURN * 1e3
        found.append(np.sum(job.gather(pair), axis=0).tolist())
    for solver in solvers:
        solver.close()
    return found[1:]


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    rows = []
    for net, found in record["nets"].items():
        without, noted = np.array(found).T
        low, middle, high = np.percentile(noted / without, [25, 50, 75])
        cells = [f"{np.median(each):.2f}" for each in (without, noted)]
        rows.append([net, *cells, f"{middle:.4f}", f"{low:.4f}", f"{high:.4f}"])
    heads = ["net", "without", "with", "ratio", "a quarter below", "a quarter above"]
    about = ABOUT.format(**record["machine"], ranks=record["ranks"], turns=TURNS - 1, length=TURN)
    title = f"# What --comm_profile costs, {record['date']}"
    return f"{title}\n\n{about}\n{results.table(heads, rows)}\n"


def rank() -> None:
    """What each rank runs; rank 0 prints a line of JSON."""
    job = find_job()
    with job.together():
        topology = discover(job)
        found = {name: turns(job, topology, make()) for name, make in NETS.items()}
        if job.rank == 0:
            print(json.dumps(found))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = results.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args(arguments)
    program = "from benchmarks.communication.bench_comm_profile import rank; rank()"
    found = rows_of(mpiexec(args.ranks, "-c", program, timeout=600))
    record = results.begin(ranks=args.ranks, nets=found)
    record["machine"]["load"] = round(os.getloadavg()[1], 1)
    results.show("comm-profile-cpu", record, render(record), args.out)


if __name__ == "__main__":
    main()
