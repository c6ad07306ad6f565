"""A training that goes on amid an epoch on another number of ranks takes the records left over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum
from tests.comm.ranks import needs_mpi

from ..program import saved, train

pytestmark = needs_mpi

RECORDS = 53  # a prime: batches cross the end of the data
BATCH = 6
STAGES = [(1, 5), (2, 11), (3, 18)]  # ranks, and the iteration to train to: 30, 66, 108 records
LAST = f"run_iter_{STAGES[-1][1]}.caffemodel"

NET = f"""
layer {{ name: "data" type: "Data" top: "x" top: "label" transform_param {{ scale: 0.01 }}
  data_param {{ source: "lmdb" batch_size: {BATCH} backend: LMDB }} }}
layer {{ name: "note" type: "Python" bottom: "label" python_param {{ module: "noting"
  layer: "Note" }} }}
layer {{ name: "score" type: "InnerProduct" bottom: "x" top: "score" inner_product_param {{
  num_output: {RECORDS} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" }}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" random_seed: 1
snapshot_prefix: "run"
"""
# Each process has a file, and each of its iterations a line: the records' numbers, as labels.
NOTE = """
import os
import caffe

class Note(caffe.Layer):
    def forward(self, bottom, top):
        with open(f"seen_{os.getpid()}", "a") as file:
            print(*bottom[0].data.astype(int), file=file)
"""


def train_noting(folder: Path, ranks: int, *options: str) -> list[list[int]]:
    """Train, and return the records of each iteration: those of all ranks, sorted."""
    for path in folder.glob("seen_*"):
        path.unlink()
    train(folder, ranks, "--scal", "strong", *options)
    noted = [path.read_text().splitlines() for path in folder.glob("seen_*")]
    assert len(noted) == ranks
    iterations = [" ".join(lines).split() for lines in zip(*noted, strict=True)]
    return [sorted(map(int, records)) for records in iterations]


@pytest.mark.parametrize("shuffle", [[], ["--shuffle", "4"]], ids=["in order", "shuffled"])
def test_each_record_comes_once_whatever_ranks_go_on(tmp_path: Path, shuffle: list[str]) -> None:
    images = np.random.default_rng(5).integers(0, 256, (RECORDS, 1, 4, 4), np.uint8)
    values = [make_datum(image, label) for label, image in enumerate(images)]
    write_database(tmp_path / "lmdb", [(record_key(i), v) for i, v in enumerate(values)])
    for name, text in (("net.prototxt", NET), ("solver.prototxt", SOLVER), ("noting.py", NOTE)):
        (tmp_path / name).write_text(text)

    alone = train_noting(tmp_path, 1, "--max_iter", str(STAGES[-1][1]), *shuffle)
    reference = saved(tmp_path / LAST)
    found: list[list[int]] = []
    for ranks, last in STAGES:
        state = ["--snapshot", f"run_iter_{len(found)}.solverstate"] if found else []
        found += train_noting(tmp_path, ranks, "--max_iter", str(last), *state, *shuffle)
        assert len(found) == last

    assert found == alone
    assert saved(tmp_path / LAST) == pytest.approx(reference, rel=1e-4, abs=1e-6)
    in_order = [
        sorted(at % RECORDS for at in range(start, start + BATCH))
        for start in range(0, BATCH * len(found), BATCH)
    ]
    assert (found == in_order) is not bool(shuffle)
    # The ninth batch crosses the end of the first epoch: what was left comes in it, no more.
    whole, crossing = [record for batch in found[:8] for record in batch], found[8]
    left = set(range(RECORDS)) - set(whole)
    assert len(whole) == len(set(whole)) == 48
    assert left <= set(crossing)
