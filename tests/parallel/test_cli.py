"""The real program on several ranks: started by itself or by mpiexec, its log, its refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from osucaffe.cli import parse
from tests.comm.ranks import mpiexec, needs_mpi
from tests.forked import run

from .program import saved, write_run

pytestmark = needs_mpi

SOLVER = """
net: "net.prototxt" test_iter: 3 test_interval: 10 base_lr: 0.05 momentum: 0.9
lr_policy: "fixed" display: 5 max_iter: 20 random_seed: 1 snapshot: 10 snapshot_prefix: "run"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path, SOLVER)
    return tmp_path


def train(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = ["osucaffe", "train", "--solver", "solver.prototxt", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.CompletedProcess(arguments, *run(arguments, str(folder), environment))


def told(text: str) -> list[str]:
    """Losses and scores of a log, to five digits."""
    found = re.findall(r"(?:loss|accuracy) = ([-\d.e]+)", text)
    return [f"{float(number):.5g}" for number in found]


def weights(folder: Path, iteration: int) -> list[float]:
    return saved(folder / f"run_iter_{iteration}.caffemodel")


def test_strong_scaling_trains_as_one_rank_does(folder: Path) -> None:
    alone = train(folder)
    assert alone.returncode == 0, alone.stderr
    reference = weights(folder, 20)
    together = train(folder, "--ranks", "3", "--scal", "strong")
    assert together.returncode == 0, together.stderr
    assert "12 records per update (4 records on each of 3 ranks)" in together.stderr
    assert told(together.stderr) == told(alone.stderr)
    assert weights(folder, 20) == pytest.approx(reference, rel=1e-4, abs=1e-6)
    assert together.stderr.count("Optimization Done.") == 1


def test_records_that_stay_give_the_same_bits(folder: Path) -> None:
    """Also in the tests of the net, and when the run goes on from its midst."""
    options, found = ("--scal", "strong", "--shuffle", "5"), []
    for more in ("none",), ("device",), ("device", "--snapshot", "run_iter_10.solverstate"):
        done = train(folder, "--ranks", "3", *options, "--cache", *more)
        assert done.returncode == 0, done.stderr
        assert ("records will stay in memory" in done.stderr) == (more[0] == "device")
        found.append((weights(folder, 20), told(done.stderr)[-4:]))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    "propagation",
    ["sharded", *(pytest.param(each, marks=pytest.mark.long) for each in ("none", "overlapped"))],
)
def test_a_snapshot_goes_on_with_another_number_of_ranks(folder: Path, propagation: str) -> None:
    train(folder, "--ranks", "2", "--scal", "strong", "--propagation", propagation)
    whole = weights(folder, 20)
    state = "run_iter_10.solverstate"
    for options in (["--ranks", "3", "--scal", "strong"], []):
        done = train(folder, "--snapshot", state, *options)
        assert done.returncode == 0, done.stderr
        assert weights(folder, 20) == pytest.approx(whole, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scal", "strong", "--ranks", "5"], "12 cannot be divided among 5 ranks"),
        (["--ranks", "2", "--algorithm", "bogus"], "algorithm 'bogus' is not known"),
        (["--ranks", "2", "--precision", "bf16"], "osucaffe: --precision is for GPUs only"),
        (["--ranks", "2", "--weights", "bad.prototxt"], "osucaffe: bad.prototxt: not a model file"),
        (["--ranks", "2", "--solver", "bad.prototxt"], "osucaffe: bad.prototxt: lr_policy 'none'"),
        *(
            pytest.param(["--ranks", "2", *options], message, marks=pytest.mark.long)
            for *options, message in (
                ("--comm", "gossip", "--comm gossip: choose one of auto, mpi"),
                ("--comm", "nccl", "--comm nccl is for GPUs"),
                ("--tuning", "none.json", "none.json: cannot read the tuning table"),
                ("--weights", "none.caffemodel", "osucaffe: none.caffemodel: cannot read"),
                ("--snapshot", "bad.prototxt", "osucaffe: bad.prototxt: not a solver st"),
                ("--solver", "none.prototxt", "osucaffe: none.prototxt: cannot read it"),
            )
        ),
    ],
)
def test_refusals_are_printed_once(folder: Path, options: list[str], message: str) -> None:
    (folder / "bad.prototxt").write_text(SOLVER.replace("fixed", "none"))
    done = train(folder, *options)
    assert done.returncode != 0
    assert message in done.stderr
    assert done.stderr.count("osucaffe:") == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", ["-1", "inf", "nan"])
def test_a_bucket_has_a_size(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["train", "--solver", "s", "--bucket_mb", size])
    assert f"--bucket_mb: must be at least 0, and finite, not {size}" in capsys.readouterr().err


def test_a_trace_shows_the_exchange_beside_backward(folder: Path) -> None:
    done = train(folder, "--ranks", "2", "--bucket_mb", "0.001", "--trace", "out.json")
    assert done.returncode == 0, done.stderr
    for file in ("out.json", "out.rank1.json"):
        events = json.loads((folder / file).read_text())["traceEvents"]
        backward = [event for event in events if event["name"] == "backward"]
        sent = [event for event in events if event.get("cat") == "communication"]
        assert {event["name"].partition(" ")[0] for event in sent} == {"all_reduce"}
        buckets = 3
        begun_later = [sum(event["ts"] > each["ts"] for event in sent) for each in backward]
        assert begun_later == [3 * buckets, 2 * buckets, buckets]
        assert {event["tid"] for event in sent}.isdisjoint(event["tid"] for event in backward)


def test_mpiexec_starts_it_as_well(folder: Path) -> None:
    done = mpiexec(2, "-m", "osucaffe", "train", "--solver", "solver.prototxt", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "24 records per update (12 records on each of 2 ranks)" in done.stderr
    assert re.search(r"Rank 1 is process \d+ on", done.stderr)


def test_a_wrong_number_of_ranks_is_told() -> None:
    command = ["-m", "osucaffe", "train", "--solver", "x", "--ranks", "3"]
    done = mpiexec(2, *command)
    assert done.returncode != 0
    assert done.stderr.count("--ranks 3, but 2 were started") == 1


def test_device_query_shows_the_ranks() -> None:
    done = mpiexec(2, "-m", "osucaffe", "device_query", "--mpi")
    assert done.returncode == 0, done.stderr
    assert re.search(r"MPI: .*, (not )?CUDA-aware", done.stdout)
    assert re.search(r"2 of 2 ranks\n  rank 0: .*\n  rank 1: ", done.stdout)


def test_tune_writes_a_table_that_train_takes(folder: Path) -> None:
    command = ["-m", "osucaffe", "tune", "--out", "t.json", "--max_mb", "0.001"]
    done = mpiexec(2, *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "wrote t.json: level node, 2 ranks" in done.stdout
    done = train(folder, "--ranks", "2", "--tuning", "t.json", "--max_iter", "2")
    assert done.returncode == 0, done.stderr
