"""Kills a rank of a training with parameter servers, at random, and lets it resume.

python -m tests.parallel.failures.kills 30     so many times; prints what was seen
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.comm.ranks import command, mpiexec
from tests.study.servers.serving import KINDS_HERE

from ..program import write_run

RANKS, SERVERS, LAST = 4, 2, 60
SOLVER = f"""
net: "net.prototxt" test_iter: 1 test_interval: 1000 base_lr: 0.01 type: "SGD" momentum: 0.9
lr_policy: "fixed" display: 1 max_iter: {LAST} random_seed: 1 snapshot: 7 snapshot_prefix: "run"
"""
FINAL = [f"run_iter_{LAST}.caffemodel", f"run_iter_{LAST}.solverstate"]


def program(kind: str, *more: str) -> list[str]:
    """What each rank runs."""
    train = ["-m", "osucaffe", "train", "--solver", "solver.prototxt", "--servers", str(SERVERS)]
    return [*train, "--bucket_mb", "0.001", "--channel", kind, *more]


def result(folder: Path) -> list[bytes]:
    """What training has made; it is removed, with all snapshots."""
    found = [(folder / name).read_bytes() for name in FINAL]
    for path in folder.glob("run_iter_*"):
        path.unlink()
    return found


def processes(folder: Path) -> dict[int, int]:
    """The ranks that run in a folder, with their processes."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (each / "cwd").readlink() == folder:
                environment = (each / "environ").read_bytes()
                rank = re.search(rb"\0(?:PMI|OMPI_COMM_WORLD)_RANK=(\d+)", environment)
                if rank:
                    found[int(rank[1])] = int(each.name)
        except OSError:  # it has ended
            continue
    return found


def kill_one(folder: Path, kind: str, victim: int, iteration: int) -> float:
    """Kill a rank after this iteration; the seconds until all have ended."""
    line, environment = command(RANKS, *program(kind))
    with subprocess.Popen(
        line, env=environment, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        text=True,
    ) as run:  # fmt: skip
        assert run.stderr is not None
        for told in run.stderr:
            if re.search(rf"Iteration {iteration}\b", told):
                break
        os.kill(processes(folder)[victim], signal.SIGKILL)
        begun = time.monotonic()
        run.stderr.read()
        assert run.wait(120) != 0
        took = time.monotonic() - begun
    assert not processes(folder), "ranks are left"
    return took


def resume(folder: Path, kind: str) -> int:
    """Train on from the newest snapshot, which is returned."""
    states = [int(path.stem.rpartition("_")[2]) for path in folder.glob("run_iter_*.solverstate")]
    last = max(states, default=0)
    done = mpiexec(RANKS, *program(kind, "--snapshot", "auto"), cwd=folder)
    assert done.returncode == 0, done.stderr
    return last


def main(count: int, seed: int = 1) -> list[float]:
    """The seconds of each; AssertionError where one did not end, or did not resume exactly."""
    chance = random.Random(seed)
    times = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_run(folder, SOLVER, 6)
        expected: dict[str, list[bytes]] = {}
        for number in range(count):
            kind = KINDS_HERE[number % len(KINDS_HERE)]
            if kind not in expected:
                resume(folder, kind)
                expected[kind] = result(folder)
            victim, iteration = chance.randrange(RANKS), chance.randrange(1, LAST - 10)
            took = kill_one(folder, kind, victim, iteration)
            last = resume(folder, kind)
            assert result(folder) == expected[kind], f"{kind}: resumed from {last}: not the same"
            times.append(took)
            who = "server" if victim >= RANKS - SERVERS else "worker"
            print(
                f"{number + 1}: {kind}, {who} {victim} after iteration {iteration}: ended in "
                f"{took:.1f} s; resumed from {last}, the same bits", flush=True,
            )  # fmt: skip
    print(f"{len(times)} kills: all ended, in at most {max(times):.1f} s, and resumed exactly")
    return times


if __name__ == "__main__":
    main(int(sys.argv[1]))
