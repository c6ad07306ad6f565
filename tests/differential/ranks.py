"""Random nets on two ranks: both have the same batch, so each half of a gradient is exact, and
so is their sum. Whatever travels, and when, weights come out as those of one rank, to the bit.

    mpiexec -n 2 python -m tests.differential.ranks SEED FIRST NETS
"""

from __future__ import annotations

import gc
import logging
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.algorithms import ALGORITHMS
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import Job, find_job
from osucaffe.comm.job.topology import discover
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.proto import SolverParameter, caffe_pb2
from osucaffe.solvers import Solver
from osucaffe.solvers.process_group import ProcessGroup

from .compare import Subject
from .random_nets.generate import generate

STEPS = 2


def draw_group(random: np.random.Generator, job: Job) -> DataParallel:
    """How gradients and weights travel."""
    config = ParallelConfig(
        str(random.choice(["blocking", "layerwise", "layerwise"])),
        str(random.choice(["none", "blocking", "overlapped", "sharded"])),
        int(random.choice([0, 64, 1 << 20])),
    )
    algorithm = str(random.choice([*ALGORITHMS["all_reduce"], "native"]))
    comm = CommConfig(algorithm=algorithm) if config.propagation == "none" else CommConfig()
    return DataParallel(job, discover(job), comm, config)


def train(
    net: caffe_pb2.NetParameter, group: ProcessGroup, iter_size: int
) -> dict[str, np.ndarray]:
    """What the parameters are after some iterations of a group of ranks."""
    subject = Subject(net)
    param = SolverParameter(
        base_lr=0.01, lr_policy="fixed", momentum=0.9, random_seed=7, iter_size=iter_size
    )
    param.net_param.CopyFrom(net)
    run = Solver(param, Cpu(), group=group)
    subject.learn(run.net)
    run.net.random.rank = 0  # the same elements are dropped
    values = subject.weights(0)
    for layer in run.net.layers:
        for index, blob in enumerate(layer.parameters):
            if (layer.name, index) in values:
                run.backend.write(blob.data, values[layer.name, index])
    run.net.refresh()
    for name, batch in subject.inputs(0, subject.shapes).items():
        run.net.write(name, batch)
    run.step(STEPS)
    run.group.synchronize_weights(history=True)
    parameters = {
        f"{layer.name}.{index}": run.backend.read(blob.data)
        for layer in run.net.layers
        for index, blob in enumerate(layer.parameters)
    }
    run.close()
    return parameters


def main() -> None:
    seed, first, nets = map(int, sys.argv[1:])
    gc.freeze()
    logging.disable()
    job = find_job()
    with job.together():
        for number in range(first, first + nets):
            random, net = np.random.default_rng([seed, number]), generate(seed, number)
            iter_size = int(random.choice([1, 2]))
            with np.errstate(all="ignore"):
                alone = train(net, ProcessGroup(), iter_size)
                group = draw_group(random, job)
                together = train(net, group, iter_size)
            for name, value in alone.items():
                np.testing.assert_array_equal(
                    together[name], value, f"net {number} of seed {seed}, {group._config}: {name}"
                )
    print(f"rank {job.rank}: {nets} nets alike\n", end="")


if __name__ == "__main__":
    main()
