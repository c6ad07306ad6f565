"""Ranks that were not started alike end at once, and are told what differs, and on which; those
that train have the mean of all ranks' statistics of batches.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from osucaffe.cli.train import agreement as command
from osucaffe.comm.job.job import Job
from osucaffe.data.databases.database import record_key, write_database
from osucaffe.errors import UserError
from osucaffe.parallel.agreement import check_alike, digest, outliers
from osucaffe.proto import SolverParameter, parse_text
from tests.comm.ranks import all_say, mpiexec, needs_mpi
from tests.study.designs.test_designs import options

SOLVER = """
base_lr: 0.1 lr_policy: "fixed" max_iter: 4 snapshot_after_train: false random_seed: 1 net_param {
  layer { name: "data" type: "Data" top: "x" data_param { source: "DATA" batch_size: 2 } }
  layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" loss_weight: 1
    inner_product_param { num_output: 2 } } }
"""


class Ranks(Job):
    """Three that tell the same, but for the second one."""

    size = 3

    def __init__(self, other: dict[str, str]) -> None:
        self._other = other

    def gather(self, value: Any) -> list[Any]:
        return [value, self._other, value]


def make_data(folder: Path, records: int = 4) -> Path:
    """An LMDB of so many records of 2 x 1 x 1."""
    datum = b"\x08\x02\x10\x01\x18\x01\x22\x02ab\x28\x00"
    write_database(folder / "lmdb", [(record_key(i), datum) for i in range(records)])
    return folder / "lmdb"


def describe(source: Path, text: str = SOLVER, **given: str) -> dict[str, str]:
    param = parse_text(text.replace("DATA", str(source)), SolverParameter)
    return command._describe(
        options(*(f"--{name}={value}" for name, value in given.items())), param
    )


def refusal(parts: dict[str, str], other: dict[str, str]) -> str:
    with pytest.raises(UserError) as caught:
        check_alike(Ranks(other), parts)
    return str(caught.value)


def test_what_differs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_data(tmp_path)
    own = describe(source)
    check_alike(Ranks(describe(source)), own)
    told = refusal(own, describe(source, aggregation="blocking"))
    assert told.startswith(
        "rank 1 has a different --aggregation from rank 0 (blocking and not layerwise): "
    )
    told = refusal(describe(source, cache="auto"), describe(source, cache="none"))
    assert "a different --cache from rank 0 (none and not auto)" in told
    assert "a different kind of device (--gpu)" in refusal(own, describe(source, gpu="0"))
    told = refusal(own, describe(source, SOLVER.replace("0.1", "0.2")))
    assert "a different base_lr of the solver from rank 0 (0.2 and not 0.1)" in told
    told = refusal(own, describe(source, SOLVER.replace("num_output: 2", "num_output: 3")))
    assert 'rank 1 has a different layer "ip" (number 1 of the net) from rank 0: give' in told
    told = refusal(own, describe(source, SOLVER.replace("max_iter: 4", "gamma: 1 stepsize: 2")))
    assert "max_iter of the solver from rank 0 (none and not 4); " in told
    assert "gamma of the solver from rank 0 (1 and not none); " in told
    monkeypatch.setattr(command, "__version__", "0.9")
    assert "a different version of osucaffe from rank 0 (0.9 " in refusal(own, describe(source))


def test_data_are_compared_wherever_they_lie(tmp_path: Path) -> None:
    for name, records in (("a", 4), ("b", 4), ("c", 5)):
        (tmp_path / name).mkdir()
        make_data(tmp_path / name, records)
    a, b, c = (command._source(tmp_path / name / "lmdb") for name in "abc")
    assert a == b
    assert a.startswith("4 records of which the first is #")
    assert a != c
    listed = tmp_path / "list.txt"
    listed.write_text("a.jpg 1\n")
    before = command._source(listed)
    listed.write_text("a.jpg 2\n")
    assert before.startswith("8 bytes #")
    assert command._source(listed) != before
    assert command._source(tmp_path / "none") == "nothing"
    (tmp_path / "a" / "lmdb" / "data.mdb").write_bytes(b"x")
    assert command._source(tmp_path / "a" / "lmdb") == "nothing"


def test_what_each_rank_may_have_of_its_own(tmp_path: Path) -> None:
    own = describe(tmp_path)
    check_alike(Ranks(describe(tmp_path, threads="1", solver="elsewhere/s", log_dir="x")), own)


def test_odd_ones_are_those_that_are_few() -> None:
    assert outliers([digest(b"x"), digest(b"y"), digest(b"y")]) == [0]
    assert outliers([1, 2]) == [1]
    assert outliers([1, 1]) == []


@needs_mpi
def test_all_ranks_end(tmp_path: Path) -> None:
    """The second one has other options, an edited solver and other data in its folder."""
    for name, records, rate in (("a", 4, "0.1"), ("b", 5, "0.2")):
        (tmp_path / name).mkdir()
        make_data(tmp_path / name, records)
        text = SOLVER.replace("DATA", "lmdb").replace("0.1", rate)
        (tmp_path / name / "s.prototxt").write_text(text)
    start = "import os, sys; os.chdir(sys.argv.pop(1)); from osucaffe.cli import main; main()"
    first = ["-c", start, str(tmp_path / "a"), "train", "--solver=s.prototxt"]
    second = ["-c", start, str(tmp_path / "b"), "train", "--solver=s.prototxt", "--scal=strong"]
    done = mpiexec(1, *first, ":", "-n", "1", sys.executable, *second, timeout=120)
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "rank 1 has a different --scal from rank 0 (strong and not weak)" in told
    assert "rank 1 has a different base_lr of the solver from rank 0 (0.2 and not 0.1)" in told
    assert "rank 1 has a different data in lmdb from rank 0 (5 records of" in told
    assert "Traceback" not in told
    done = mpiexec(1, *first, ":", "-n", "1", sys.executable, *first, timeout=120)
    assert done.returncode == 0, done.stderr


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_statistics_are_averaged(ranks: int, tmp_path: Path) -> None:
    all_say("statistics in step", ranks, "tests.parallel.statistics", str(tmp_path))
