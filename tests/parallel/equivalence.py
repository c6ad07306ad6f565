"""What the ranks run that test_exchange.py starts: N ranks with batch B against one with N·B.

Rank 0 trains the reference as well: alone, with the whole batch.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.backends.backend import Backend
from osucaffe.backends.cpu import Cpu
from osucaffe.comm.algorithms import ALGORITHMS
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import Job, find_job
from osucaffe.comm.job.topology import discover
from osucaffe.data.databases.database import record_key, write_database
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.proto import Datum, NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver

BATCH = 4
RECORDS = 23  # a prime: batches cross the end of the data, those of tests as well

NET = """
name: "small"  # layers share names, or have none: they are told apart by their places
layer {{ name: "data" type: "Data" top: "x" top: "label" include {{ phase: TRAIN }}
  transform_param {{ mirror: true crop_size: 7 scale: 0.01 }}
  data_param {{ source: "{source}" batch_size: {batch} backend: LMDB }} }}
layer {{ name: "data" type: "Data" top: "x" top: "label" include {{ phase: TEST }}
  transform_param {{ crop_size: 7 scale: 0.01 }}
  data_param {{ source: "{source}" batch_size: 5 backend: LMDB }} }}
layer {{ name: "frozen" type: "Convolution" bottom: "x" top: "frozen" param {{ lr_mult: 0 }}
  param {{ lr_mult: 0 }} convolution_param {{ num_output: 4 kernel_size: 1
  weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "frozen" top: "conv" param {{ lr_mult: 1 }}
  param {{ lr_mult: 2 decay_mult: 0 }} convolution_param {{ num_output: 6 kernel_size: 3
  weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ type: "InnerProduct" bottom: "conv" top: "first"
  inner_product_param {{ num_output: 12 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "drop" type: "Dropout" bottom: "first" top: "first" }}
layer {{ name: "twice" type: "InnerProduct" bottom: "first" top: "once" param {{ name: "w" }}
  param {{ name: "b" }} inner_product_param {{ num_output: 12
  weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "once" top: "once" }}
layer {{ name: "twice" type: "InnerProduct" bottom: "once" top: "twice" param {{ name: "w" }}
  param {{ name: "b" }} inner_product_param {{ num_output: 12
  weight_filler {{ type: "xavier" }} }} }}
layer {{ type: "InnerProduct" bottom: "twice" top: "score"
  inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }}
layer {{ name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy"
  include {{ phase: TEST }} }}
"""
SPLIT = (  # AlexNet's fc6, ReLU, Dropout, fc7; the outputs of fc8 cannot be divided among 3 or 4
    NET.partition('layer {{ type: "InnerProduct"')[0].replace("num_output: 6", "num_output: 8")
    + """
layer {{ name: "fc6" type: "InnerProduct" bottom: "conv" top: "fc6" param {{ lr_mult: 1 }}
  param {{ lr_mult: 2 decay_mult: 0 }}
  inner_product_param {{ num_output: 384 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu6" type: "ReLU" bottom: "fc6" top: "fc6" }}
layer {{ name: "drop6" type: "Dropout" bottom: "fc6" top: "fc6" }}
layer {{ name: "fc7" type: "InnerProduct" bottom: "fc6" top: "fc7"
  inner_product_param {{ num_output: 384 bias_term: false weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "fc8" type: "InnerProduct" bottom: "fc7" top: "fc8"
  inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "fc8" bottom: "label" top: "loss" }}
layer {{ name: "accuracy" type: "Accuracy" bottom: "fc8" bottom: "label" top: "accuracy"
  include {{ phase: TEST }} }}
"""
)
SGD = 'type: "SGD" momentum: 0.9 weight_decay: 0.01 base_lr: 0.05 lr_policy: "fixed"'
ADAM = 'type: "Adam" momentum: 0.9 momentum2: 0.999 delta: 1e-3 base_lr: 0.01 lr_policy: "fixed"'
# With this seed no ReLU is near its kink: weights that differ by 1e-7 stay within 1e-6. With seed 3
# every second such difference made 2e-3 after 20 iterations, on one rank.
OTHER = "random_seed: 5 snapshot_after_train: false test_iter: 3 test_interval: 1000 "


@dataclass(frozen=True)
class Case:
    """One way of training, number of iterations, and how near it must come to the reference: each
    parameter, or with gradients in 16 bits, which round biases most, all of them taken together.
    """

    config: ParallelConfig = field(default_factory=ParallelConfig)
    comm_config: CommConfig = field(default_factory=CommConfig)
    settings: str = SGD
    tolerance: float = 1e-5
    iterations: int = 6
    net: str = NET


ROUNDING = {"float32": 1e-5, "float16": 2**-11, "bfloat16": 2**-8}
"""The tolerance by the type in which gradients travel."""
FEW = 4
"""Iterations with gradients in 16 bits: after twenty, a ReLU that has switched elsewhere makes more
of a difference than all rounding (up to 2 % in a fifth of all seeds)."""


def cases(size: int) -> Iterator[Case]:
    """Designs with settings; every algorithm; every communicator."""
    settings = itertools.cycle(
        [
            SGD,
            SGD + " iter_size: 2",
            SGD + " clip_gradients: 0.5",
            SGD + " local_lr_auto: true",
            ADAM + " clip_gradients: 0.3",
            SGD + " iter_size: 3 clip_gradients: 0.5",
        ]
    )
    for aggregation in ("blocking", "layerwise"):
        for propagation in ("none", "blocking", "overlapped", "sharded"):
            for bucket in (0, 1 << 20) if aggregation == "layerwise" else (0,):
                given = next(settings)
                if propagation == "sharded":  # it refuses clipping
                    given = SGD + " iter_size: 2" if bucket else ADAM
                yield Case(ParallelConfig(aggregation, propagation, bucket), settings=given)
    every = SGD + " iter_size: 2 clip_gradients: 0.5"
    for name in [*ALGORITHMS["all_reduce"], "native"]:
        yield Case(ParallelConfig(bucket=1024), CommConfig(algorithm=name, chunk=256), every)
    for name in [*ALGORITHMS["reduce"], "native"]:
        config = ParallelConfig(propagation="overlapped", bucket=1024)
        yield Case(config, CommConfig(algorithm=name, chunk=256), every)
    for name in ALGORITHMS["reduce_scatter"]:
        config = ParallelConfig(propagation="sharded", bucket=1024)
        yield Case(config, CommConfig(algorithm=name), SGD)
    for kind in ("mpi", "hierarchical"):
        for aggregation in ("blocking", "layerwise"):
            yield Case(ParallelConfig(aggregation, bucket=512), CommConfig(kind, group=2), every)
    yield Case(
        ParallelConfig(propagation="sharded", bucket=512), CommConfig("hierarchical", group=2)
    )
    yield Case(ParallelConfig("blocking", scaling="strong"), settings=every)
    for given in SGD, every, ADAM + " clip_gradients: 0.3", SGD + " iter_size: 3":
        for design, comm in (
            (ParallelConfig(bucket=512), CommConfig()),
            (ParallelConfig("blocking"), CommConfig("hierarchical", group=2)),
        ):
            config = replace(design, split_inner_products="fc6,fc7")
            yield Case(config, comm, given, net=SPLIT)
    for bits in "bfloat16", "float16":
        for propagation in "none", "sharded":
            config = ParallelConfig(propagation=propagation, bucket=512)
            yield Case(
                config, CommConfig(gradient_dtype=bits), tolerance=ROUNDING[bits], iterations=FEW
            )


def make_data(folder: Path) -> Path:
    """Random images of 8 x 8 with three channels, and labels."""
    generator = np.random.default_rng(5)
    records = []
    for index in range(RECORDS):
        image = generator.integers(0, 256, (3, 8, 8), np.uint8)
        datum = Datum(channels=3, height=8, width=8, data=image.tobytes(), label=index % 10)
        records.append((record_key(index), datum.SerializeToString()))
    write_database(folder / "lmdb", records)
    return folder / "lmdb"


@lru_cache
def read_net(source: Path, batch: int, net: str = NET) -> NetParameter:
    return parse_text(net.format(source=source, batch=batch), NetParameter)


def make_solver(
    source: Path,
    batch: int,
    settings: str,
    backend: Backend | None = None,
    net: str = NET,
    **options: Any,
) -> Solver:
    """A solver on that data; by default with NumPy."""
    param = parse_text(OTHER + settings, SolverParameter)
    param.net_param.CopyFrom(read_net(source, batch, net))
    backend = backend or Cpu(threads=1, onednn=False)
    return Solver(param, backend, file="solver.prototxt", **options)


def weights(solver: Solver) -> list[np.ndarray]:
    return [solver.backend.read(each.blob.data) for each in solver.net.parameters]


def flatten(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])


def assert_near(
    names: list[str], found: list[np.ndarray], wanted: list[np.ndarray], tolerance: float = 1e-5
) -> None:
    """Each array differs from the one that is wanted by at most so much of its norm."""
    for name, got, want in zip(names, found, wanted, strict=True):
        error, size = np.linalg.norm(got - want), np.linalg.norm(want)
        assert error <= tolerance * size, f"{name}: off by {error / size:.2g}"


def check(case: Case, job: Job, source: Path, references: dict[Any, Any]) -> None:
    """Train both ways and compare weights, losses and test scores."""
    key = case.settings, case.iterations, case.net
    if key not in references:
        made = None
        if job.rank == 0:
            alone = make_solver(source, BATCH * job.size, case.settings, net=case.net)
            alone.step(case.iterations)
            first, second = alone.test_all()[0], alone.test_all()[0]
            made = weights(alone), first.outputs, second.outputs
        references[key], *_ = job.gather(made)
    group = DataParallel(job, discover(job), case.comm_config, case.config)
    batch = BATCH * job.size if case.config.scaling == "strong" else BATCH
    together = make_solver(source, batch, case.settings, net=case.net, group=group)
    assert together.net.arena.is_split == (case.net is SPLIT)
    together.step(case.iterations)
    found = weights(together)
    tests = [together.test_all()[0].outputs for _ in range(2)]
    group.check("in the test")
    wanted, *scores = references[key]
    names = [each.name for each in together.net.parameters]
    if case.comm_config.gradient_dtype != "float32":
        names, found, wanted = ["all"], [flatten(found)], [flatten(wanted)]
    assert_near(names, found, wanted, case.tolerance)
    for outputs, expected in zip(tests, scores, strict=True):
        for output, other in zip(outputs, expected, strict=True):
            assert abs(output.value - other.value) <= max(1e-5, 4 * case.tolerance), output
    together.close()


@contextlib.contextmanager
def job_with_data() -> Iterator[tuple[Job, Path]]:
    """The job that this process is a rank of, and the folder that the command line names, in which
    rank 0 has made the data."""
    folder = Path(sys.argv[1])
    job = find_job()
    with job.together():
        if job.rank == 0:
            make_data(folder)
        job.barrier()
        yield job, folder


def main() -> None:
    gc.freeze()  # each solver's end looks for what is gone: not among the modules
    with job_with_data() as (job, folder):
        references: dict[Any, Any] = {}
        count = 0
        for case in cases(job.size):
            try:
                check(case, job, folder / "lmdb", references)
            except AssertionError as error:
                raise AssertionError(f"{case}") from error
            count += 1
    print(f"rank {job.rank}: {count} cases alike\n", end="")


if __name__ == "__main__":
    main()
