"""What the ranks run that test_agreement.py starts: BatchNorm's statistics are all ranks' mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import Job
from osucaffe.comm.job.topology import discover
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers import Solver

from .equivalence import job_with_data

FRACTION = 0.9

SOLVER = """
lr_policy: "fixed" base_lr: 0.1 max_iter: 9 random_seed: 3
snapshot_prefix: "{folder}/normalized" net_param {{
  layer {{ name: "data" type: "Data" top: "x" top: "label"
    data_param {{ source: "{folder}/lmdb" batch_size: 4 backend: LMDB }} }}
  layer {{ name: "norm" type: "BatchNorm" bottom: "x" top: "y"
    batch_norm_param {{ moving_average_fraction: {fraction} }} }}
  layer {{ name: "scale" type: "Scale" bottom: "y" top: "y" scale_param {{ bias_term: true }} }}
  layer {{ name: "score" type: "InnerProduct" bottom: "y" top: "score"
    inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
  layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }} }}
"""


def check(job: Job, folder: Path) -> None:
    """The statistics after each step, against the batches that the ranks had."""
    text = SOLVER.format(folder=folder, fraction=FRACTION)
    group = DataParallel(job, discover(job), CommConfig(), ParallelConfig())
    backend = Cpu(threads=1, onednn=False)
    solver = Solver(parse_text(text, SolverParameter), backend, group=group, inspectable=True)
    norm = next(layer for layer in solver.net.layers if layer.type == "BatchNorm")
    mean, variance, weight = 0.0, 0.0, 0.0
    for _ in range(3):
        solver.step(1)
        x = solver.net.read("x").astype(np.float64)
        count = x.size // x.shape[1]
        own = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3)) * count / (count - 1)
        all_means, all_variances = zip(*job.gather(own), strict=True)
        assert np.ptp(all_means, axis=0).max() > 1  # the ranks had other records
        mean = FRACTION * mean + np.mean(all_means, axis=0)
        variance = FRACTION * variance + np.mean(all_variances, axis=0)
        weight = FRACTION * weight + 1
        found = [backend.read(blob.data) for blob in norm.parameters[:3]]
        for got, wanted in zip(found, (mean, variance, weight), strict=True):
            np.testing.assert_allclose(got, np.broadcast_to(wanted, got.shape), rtol=1e-5)
    solver.snapshot()  # refuses ranks that are out of step
    solver.close()


def main() -> None:
    with job_with_data() as (job, folder):
        check(job, folder)
    print(f"rank {job.rank}: statistics in step\n", end="")


if __name__ == "__main__":
    main()
