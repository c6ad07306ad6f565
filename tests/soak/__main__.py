"""Ends training in many ways, and counts what should never be.

    python -m tests.soak --rounds 100 --seed 1

A round trains in a folder of its own, ends it at a random moment (a run, a rank or the launcher is
killed or stopped for a while, a disk is full, memory is short), and resumes it. Counted are
snapshots that cannot be read, processes that run on after LONGEST seconds, tracebacks, and resumed
runs whose weights are not, bit for bit, those of a run that was left alone. Exit code 1 on any.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from osucaffe.errors import UserError
from osucaffe.proto import read_state, read_weights

LONGEST = 10.0
"""Seconds after which all processes of a job that was struck have ended."""
_MARK = "OSUCAFFE_SOAK"
_NET = """layer { name: "d" type: "DummyData" top: "x" top: "y" dummy_data_param {
  shape { dim: 16 dim: 8 } shape { dim: 16 dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "gaussian" } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "z"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "y" top: "loss" }
"""
_SOLVER = (
    'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 1 max_iter: 3000 snapshot: 100 '
    'snapshot_prefix: "r" net: "n.prototxt"'
)
FAULTS = ("kill run", "kill rank", "kill launcher", "stop", "full disk", "memory")


def start(folder: Path, ranks: int, limit: Callable[[], None] = lambda: None) -> subprocess.Popen:
    """A training in the folder that goes on from its newest snapshot."""
    (folder / "n.prototxt").write_text(_NET)
    (folder / "s.prototxt").write_text(_SOLVER)
    words = ["train", "--solver", "s.prototxt", "--snapshot", "auto", "--threads", "1"]
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "osucaffe", *words, *(["--ranks", "2"] if ranks > 1 else [])],
            cwd=folder,
            env=os.environ | {_MARK: str(folder), "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            preexec_fn=limit,
        )


def processes(folder: Path) -> dict[int, str]:
    """The command lines of the job's processes that run."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if f"{_MARK}={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
        except (OSError, ValueError):
            continue
    return {process: line for process, line in found.items() if line}


def strike(random: Random, fault: str, folder: Path, job: subprocess.Popen) -> None:
    """Do to a job that has a snapshot what the round is for."""
    until = time.monotonic() + 120
    while not list(folder.glob("r_iter_*.solverstate")) and job.poll() is None:
        if time.monotonic() > until:
            return
        time.sleep(0.01)
    time.sleep(random.random())
    ranks = [process for process, line in processes(folder).items() if "\0-P\0" in line]
    target = random.choice(ranks) if fault == "kill rank" and ranks else job.pid
    try:
        os.kill(target, signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
        if fault == "stop":
            time.sleep(random.random())
            os.kill(target, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it was through


def one_round(random: Random, fault: str, folder: Path, wanted: dict[int, bytes]) -> list[str]:
    """What went wrong."""
    wrong = []
    ranks = 2 if fault in ("kill rank", "kill launcher") else 1
    size, kind = {
        "full disk": (random.randrange(100, 800), resource.RLIMIT_FSIZE),
        "memory": (random.randrange(100, 400) << 20, resource.RLIMIT_AS),
    }.get(fault, (0, 0))
    limit = functools.partial(resource.setrlimit, kind, (size, size)) if size else lambda: None
    job = start(folder, ranks, limit)
    if not size:
        strike(random, fault, folder, job)
    struck = time.monotonic()
    while (size or fault == "stop" or time.monotonic() - struck < LONGEST) and processes(folder):
        if time.monotonic() - struck > 300:
            break
        time.sleep(0.02)
    for process in processes(folder):
        wrong.append("hang")
        os.kill(process, signal.SIGKILL)
    job.wait()
    if "Traceback" in (folder / "log").read_text():
        wrong.append("traceback")
    for path in folder.glob("r_iter_*.solverstate"):
        try:
            read_state(path)
            read_weights(path.with_suffix(".caffemodel"))
        except UserError:
            wrong.append("lost snapshot")
    if (
        start(folder, ranks).wait()
        or (folder / "r_iter_3000.caffemodel").read_bytes() != (wanted[ranks])
    ):
        wrong.append("resumed to other bits")
    if left := [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]:
        wrong.append(f"left {left[0]}")
    return wrong


def main() -> int:
    """Read the command line and run. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    counts: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as top:
        wanted = {}
        for ranks in 1, 2:
            folder = Path(top, f"alone{ranks}")
            folder.mkdir()
            if start(folder, ranks).wait():
                raise SystemExit((folder / "log").read_text())
            wanted[ranks] = (folder / "r_iter_3000.caffemodel").read_bytes()
        for number in range(args.rounds):
            if time.monotonic() > end:
                break
            fault = FAULTS[number % len(FAULTS)]
            folder = Path(top, str(number))
            folder.mkdir()
            counts[fault] += 1
            for wrong in one_round(Random(f"{args.seed}/{number}"), fault, folder, wanted):
                failed[f"{fault}: {wrong}"] += 1
                print(f"round {number}, {fault}: {wrong}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    print(", ".join(f"{name} {count}" for name, count in failed.items()) or "nothing went wrong")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
