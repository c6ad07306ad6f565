"""A run whose processes are killed ends with the bits of one that was left alone."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.comm.ranks import command, needs_mpi

from .restarting import prepare

FILES = ("caffemodel", "solverstate")


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    _, environment = command(1)
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment["PYTHONPATH"]])
    line = [sys.executable, "-m", "osucaffe", "train", "--solver=s.prototxt", *options]
    return subprocess.Popen(
        line, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def train(folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and log."""
    with start(folder, *options) as run:
        _, told = run.communicate(timeout=300)
    return run.returncode, told


def written(folder: Path, iteration: int) -> list[bytes]:
    return [(folder / f"run_iter_{iteration}.{end}").read_bytes() for end in FILES]


def test_a_killed_process_begins_again_from_its_own_newest_snapshot(tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    prepare(alone, 10)
    assert train(alone)[0] == 0
    prepare(killed, 10)
    # Of another run, which was there before: nothing to go on from.
    for name in ("run_iter_8.caffemodel", "run_iter_8.solverstate"):
        (killed / name).write_bytes((alone / name).read_bytes())
    (killed / "die-0-2").touch()  # the second pass of the first start, before any snapshot,
    (killed / "die-0-7").write_text("run_iter_4.solverstate")  # the seventh of the second
    code, told = train(killed, "--max_restarts=2")
    assert code == 0, told
    assert "Restart 1 of 2 (--max_restarts), from the beginning: no snapshot yet: a " in told
    assert "Restart 2 of 2 (--max_restarts), from run_iter_4.solverstate: a process" in told
    assert "(exit code 137)" in told
    assert written(killed, 10) == written(alone, 10)


@needs_mpi
def test_a_killed_rank_ends_all_and_the_run_begins_again(tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for folder in (alone, killed):
        prepare(folder, 10)
    (killed / "die-1-6").write_text("run_iter_4.solverstate")
    code, told = train(killed, "--ranks=2", "--max_restarts=1")
    assert code == 0, told
    assert "Restart 1 of 1 (--max_restarts), from run_iter_4.solverstate" in told
    assert train(alone, "--ranks=2")[0] == 0
    assert written(killed, 10) == written(alone, 10)


def test_what_would_end_so_again_does_not_begin_again(tmp_path: Path) -> None:
    prepare(tmp_path / "run", 10)
    text = (tmp_path / "run" / "s.prototxt").read_text()
    (tmp_path / "run" / "s.prototxt").write_text(text.replace("num_output: 3", "num_output: 1"))
    code, told = train(tmp_path / "run", "--max_restarts=3")
    assert code == 1, told
    assert "Restart" not in told


@pytest.mark.long
def test_it_ends_after_so_many_restarts(tmp_path: Path) -> None:
    prepare(tmp_path / "run", 10)
    (tmp_path / "run" / "die-0-1").touch()
    (tmp_path / "run" / "die-0-2").touch()
    code, told = train(tmp_path / "run", "--max_restarts=1")
    assert code == 137, told
    assert "the run ended with exit code 137 after 1 restarts" in told


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_random_moments_change_no_bit(tmp_path: Path, seed: int) -> None:
    """Kills by the log's lines, and the moments behind them, which the test does not know."""
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for folder in (alone, killed):
        prepare(folder, 400)
    draw = random.Random(seed)
    with start(killed, "--ranks=2", "--max_restarts=30") as run:
        end = threading.Timer(600, run.kill)  # only stops what hangs
        end.start()
        ranks: list[int] = []
        kills, told = 0, []
        assert run.stderr
        for line in run.stderr:
            told.append(line)
            if found := re.search(r"Rank (\d) is process (\d+)", line):
                ranks = [*(ranks if found[1] == "1" else []), int(found[2])]
            if len(ranks) == 2 and kills < 10 and draw.random() < 0.02:
                kills += 1
                try:
                    os.kill(draw.choice(ranks), signal.SIGKILL)
                except ProcessLookupError:
                    kills -= 1
                ranks = []
        code = run.wait()
        end.cancel()
    assert code == 0, "".join(told[-40:])
    assert train(alone, "--ranks=2")[0] == 0
    assert written(killed, 400) == written(alone, 400)
    print(f"{kills} kills, {sum('Restart' in line for line in told)} restarts")


@pytest.mark.long
@needs_mpi
def test_what_is_asked_to_stop_stops(tmp_path: Path) -> None:
    prepare(tmp_path / "run", 10**6)
    with start(tmp_path / "run", "--max_restarts=3") as run:
        assert run.stderr
        for line in run.stderr:
            if "Iteration 20," in line:
                run.terminate()
                break
        _, told = run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGTERM, told
    assert "Restart" not in told
