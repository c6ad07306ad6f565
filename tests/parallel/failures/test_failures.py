"""Whatever happens to one rank, all end, with its reason; and the last snapshot resumes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.comm.ranks import all_say, mpiexec, needs_mpi

MESSAGES = {
    "raise": ("rank 1 of 3", "a bug on rank 1", "Traceback"),
    "refuse": ("rank 1 of 3", "record 7 of data.mdb is damaged"),
    "memory": ("rank 1 of 3", "out of memory (Unable to allocate 9 TiB): lower the batch size"),
    "hang": ("waited too long", "aiting for", "is the one that hangs"),
    "stuck": ("waited too long", "Waiting for this rank's GPU"),
    "differ": ('rank 1 has a different layer "ip" (number 1 of the net) from rank 0',),
    "drift": ("at a snapshot (iteration 30) the weights of rank 1 are not those of rank 0",),
    "silent": (
        'at --check (iteration 28) the weights of rank 1 are not those of rank 0, in layer "ip": ',
    ),
    "disk": ("rank 0 of 3", "the folder of snapshot_prefix", "does not exist"),
    "full": ("rank 0 of 3", "cannot write it: it needs ", "but only 16 are free on the disk"),
    "kill": ("signal 9",),
    "leave": ("rank 1 of 3", "it was left by sys.exit(0), while the others go on"),
    "exit 0": ("rank 1 of 3", "it was left by os._exit(0), while the others go on"),
    "interrupt": ("rank 0 of 3", "interrupted"),
    "exit 7": ("rank 1 of 3", "it was left by os._exit(7), while the others go on"),
}


@needs_mpi
@pytest.mark.parametrize("mode", MESSAGES)
def test_all_ranks_end_with_the_reason(mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    done = mpiexec(3, "-m", "tests.parallel.failures.failing", mode, str(folder))
    assert done.returncode != 0
    assert "done" not in done.stdout
    told = done.stdout + done.stderr
    for part in MESSAGES[mode]:
        assert part in told, told
    if mode == "interrupt":  # all are, by Ctrl-C
        assert (done.returncode, told.count("interrupted")) == (130, 1)
    if mode in ("refuse", "memory", "interrupt"):
        assert "Traceback" not in told


@needs_mpi
def test_a_rank_that_ends_before_it_has_met_the_others_ends_them(tmp_path: Path) -> None:
    (tmp_path / "s.prototxt").write_text(
        'base_lr: 0.1 lr_policy: "fixed" max_iter: 9 snapshot_after_train: false net_param {'
        'layer { type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } } }'
        'layer { type: "Scale" bottom: "x" top: "y" scale_param { axis: 0 } loss_weight: 1 } }'
    )
    own = [sys.executable, "-m", "osucaffe", "train", "--solver", str(tmp_path / "s.prototxt")]
    done = mpiexec(1, *own[1:], ":", "-n", "1", *own, "--frobnicate", timeout=60)
    assert done.returncode != 0
    assert "unrecognized arguments: --frobnicate" in done.stderr


@needs_mpi
def test_another_number_of_ranks_goes_on_from_the_snapshot_of_a_killed_run(tmp_path: Path) -> None:
    mpiexec(3, "-m", "tests.parallel.failures.failing", "kill", str(tmp_path))
    all_say("done, resumed at 20", 2, "tests.parallel.failures.failing", "resume", str(tmp_path))
    assert (tmp_path / "run_iter_50.caffemodel").is_file()
