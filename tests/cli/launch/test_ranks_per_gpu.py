"""--ranks_per_gpu: what is chosen, what is started, with stand-ins for GPUs and for MPS."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from osucaffe.cli.launch import mps, ranks_per_gpu
from osucaffe.cli.launch.ranks_per_gpu import Trial, find
from osucaffe.errors import UserError
from tests.comm.ranks import mpiexec, needs_mpi
from tests.study.designs.test_designs import options

SERVICE = mps.Service("under MPS, started for this run", {"PIPES": "there"})

CONTROL = """#!/bin/sh
control="${CUDA_MPS_PIPE_DIRECTORY:-$DEFAULT}/control"
if [ "$1" = -d ]; then
    echo "start, GPUs: ${CUDA_VISIBLE_DEVICES:-all}" >> "$NOTES"
    [ -z "$REFUSES" ] || { echo "not permitted" >&2; exit 1; }
    exec touch "$control"
fi
read -r line
[ -e "$control" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
echo "$line" >> "$NOTES"
case "$line" in quit*) rm "$control" ;; esac
"""
# In the place of `osucaffe train` on so many ranks: notes what it is told, and is this fast.
COMMAND = """
import json, os, sys
ranks, rates, code = int(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
under_mps = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
trial = os.environ.get("OSUCAFFE_TRIAL")
with open(os.environ["NOTES"], "a") as notes:
    what = "trial" if trial else "train: " + os.environ["OSUCAFFE_RANKS_PER_GPU"]
    print(f"{ranks} ranks{' under MPS' * under_mps}, {what}", file=notes)
if trial and str(ranks) in rates:
    with open(trial, "w") as file:
        json.dump({"rate": rates[str(ranks)], "unit": "images/s"}, file)
elif trial:
    sys.exit("a line\\nosucaffe: rank 0 of 9 (here): out of memory\\nthe end")
sys.exit(0 if trial else code)
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-ins write what they are asked for; that of MPS is the one that is found."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / mps.CONTROL
    tool.write_text(CONTROL)
    tool.chmod(0o755)
    found = tmp_path / "notes"
    found.touch()
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(found))
    monkeypatch.setenv("DEFAULT", str(tmp_path))
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "OSUCAFFE_RANKS_PER_GPU"):
        monkeypatch.setenv(name, "")  # what is set meanwhile goes away
        monkeypatch.delenv(name)
    return found


def start(rates: dict[int, float], wanted: str = "auto", gpus: int = 1, code: int = 0) -> int:
    told = json.dumps(rates)

    def command(count: int) -> list[str]:
        return [sys.executable, "-c", COMMAND, str(count), told, str(code)]

    args = options("--gpu", "0", "--ranks_per_gpu", wanted)
    return ranks_per_gpu.run(args, gpus, command)


@pytest.mark.parametrize(
    ("rates", "chosen", "tried", "told"),
    [
        ([100, 150, 300, 290], 4, 4, "4 ranks, 3.00 times as fast as 1 (1: 100 images/s; 2: 150"),
        ([100, 95, 90], 1, 3, "1 rank, as no number is over 3% faster (1: 100 images/s; 2: 95"),
        ([100, 102.9, 102], 1, 3, "1 rank, as no number"),  # it does not win by more than 3 %
        ([100, 104, 106], 2, 3, "2 ranks, 1.04 times"),  # nor do four, beside two
        ([100, 90, 130, 120], 4, 4, "4 ranks, 1.30 times"),  # two lose, four are tried
        ([100, 200, 400, 800, 1600], 16, 5, "16 ranks, 16.00 times"),
        ([100, 200, None], 2, 3, "4: no room; more than 1 under MPS, started for this run)"),
        ([100, None], 1, 2, "2: no room"),
    ],
)
def test_the_fastest_is_chosen(
    rates: list[float | None], chosen: int, tried: int, told: str
) -> None:
    left = list(rates)
    counts = []

    def attempt(count: int) -> Trial:
        counts.append(count)
        rate = left.pop(0)
        return Trial(count, why="no room") if rate is None else Trial(count, rate, "images/s")

    count, line = find(attempt, SERVICE)
    assert (count, counts) == (chosen, [2**power for power in range(tried)])
    assert told in line


def test_one_rank_must_train() -> None:
    with pytest.raises(UserError, match="auto: one rank does not train: out of memory"):
        find(lambda count: Trial(count, why="out of memory"), SERVICE)


def test_ranks_that_win_train_under_mps(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert start({1: 100, 2: 130, 4: 120}, code=7) == 7
    lines = notes.read_text().splitlines()
    assert lines[:2] == ["start, GPUs: all", "get_server_list"]
    assert lines[2:5] == ["1 ranks, trial", "2 ranks under MPS, trial", "4 ranks under MPS, trial"]
    assert lines[5].startswith("2 ranks under MPS, train: --ranks_per_gpu auto: 2 ranks, 1.30")
    assert lines[6].startswith("quit")
    assert len(lines) == 7


def test_one_rank_trains_without(notes: Path) -> None:
    assert start({3: 100, 6: 90}, gpus=3) == 0
    lines = notes.read_text().splitlines()
    assert lines[2:5] == ["3 ranks, trial", "6 ranks under MPS, trial", "12 ranks under MPS, trial"]
    assert lines[5].startswith("quit")
    assert "train: --ranks_per_gpu auto: 1 rank, as no" in lines[6]
    assert "4: does not run (rank 0 of 9 (here): out of memory)" in lines[6]
    assert "under MPS, train" not in lines[6]


def test_a_number_needs_no_trial(notes: Path) -> None:
    start({}, "2")
    assert "trial" not in notes.read_text()
    assert "2 ranks under MPS, train: --ranks_per_gpu 2: under MPS, started" in notes.read_text()
    notes.write_text("")
    os.environ.pop("CUDA_MPS_PIPE_DIRECTORY")  # of `start`, whose process would have ended
    start({}, "1")
    assert notes.read_text() == "1 ranks, train: --ranks_per_gpu 1: one rank on each GPU\n"


def test_a_daemon_that_runs_is_left_alone(notes: Path) -> None:
    (notes.parent / "control").touch()
    with mps.served() as service:
        assert service.status == "under MPS, which was running"
        assert not service.variables
    assert notes.read_text() == "get_server_list\n"


def test_without_mps(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFUSES", "1")
    with mps.served() as service:
        assert service.status == "without MPS, which does not start (not permitted)"
    monkeypatch.setenv("PATH", str(notes.parent / "empty"))
    with mps.served() as service:
        assert service.status == "without MPS, as there is no nvidia-cuda-mps-control"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--ranks_per_gpu", "2"], "--ranks_per_gpu 2: add --gpu, with a number or all"),
        (
            ["--ranks_per_gpu", "auto", "--gpu", "0", "--ranks", "2"],
            "cannot be combined with --ranks$",
        ),
        (
            ["--ranks_per_gpu", "2", "--gpu", "0", "--servers", "1"],
            "cannot be combined with --servers$",
        ),
    ],
)
def test_what_cannot_be(given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ranks_per_gpu.is_requested(options(*given))


def test_ranks_of_a_launcher_do_not_start_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(UserError, match="starts the ranks itself: leave out mpiexec"):
        ranks_per_gpu.is_requested(options("--ranks_per_gpu", "2", "--gpu", "0"))


@pytest.mark.long
@needs_mpi
def test_a_trial_tells_a_rate_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.prototxt").write_text("""
      layer { name: "x" type: "DummyData" top: "x" top: "y"
        dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 3 } } }
      layer { name: "ip" type: "InnerProduct" bottom: "x" top: "z"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
      layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "y" top: "loss" }""")
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 9 display: 1 snapshot: 1 '
        'snapshot_prefix: "run" test_iter: 1 test_iter: 2 test_interval: 1 '
        'test_net: "net.prototxt" test_state {} test_state { stage: "x" }'
    )
    monkeypatch.setenv("OSUCAFFE_TRIAL", str(tmp_path / "rate.json"))
    train = ["-m", "osucaffe", "train", "--solver", "solver.prototxt", "--bucket_mb", "auto"]
    done = mpiexec(2, *train, "--comm_profile", "profile.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    found = json.loads((tmp_path / "rate.json").read_text())
    assert found["rate"] > 0
    assert found["unit"] == "batches/s"
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"net.prototxt", "solver.prototxt", "rate.json"}
