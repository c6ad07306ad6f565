"""The training that is struck: its files, its start, its processes, what it may not leave; and
what is told of a round."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from osucaffe.errors import UserError
from osucaffe.proto import read_state, read_weights

LONGEST = 10.0
"""Seconds after which all processes of a job that was struck have ended, on an idle machine."""
LONGEST_RUN = 300.0
"""Seconds in which a job that nothing hinders is through."""
MARK = "OSUCAFFE_SOAK"
ITERATIONS = 3000
_SNAPSHOTS = 30
_NET = """layer { name: "d" type: "DummyData" top: "x" top: "y" dummy_data_param {
  shape { dim: 16 dim: 8 } shape { dim: 16 dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "gaussian" } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "z"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "y" top: "loss" }
"""
_SOLVER = (
    'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 1 max_iter: %d snapshot: %d '
    'snapshot_prefix: "r" net: "n.prototxt"'
)
_TRAIN = ("train", "--solver", "s.prototxt", "--snapshot", "auto", "--threads", "1")


class Task(NamedTuple):
    """iterations: of the training; longest: seconds until all of a job that was struck has ended;
    wanted: by how many ranks train, the weights at the end of one that was left alone."""

    iterations: int
    longest: float
    wanted: dict[int, bytes]

    @property
    def last(self) -> str:
        """The file of the weights at the end."""
        return f"r_iter_{self.iterations}.caffemodel"

    @property
    def every(self) -> int:
        """Iterations between snapshots."""
        return max(self.iterations // _SNAPSHOTS, 1)


class Round(NamedTuple):
    """wrong: what went wrong; code: of the job that was struck; seconds: until it had ended."""

    wrong: list[str]
    code: int
    seconds: float


def command(*options: str) -> list[str]:
    """What trains in the current folder, and goes on from the newest snapshot there."""
    return [sys.executable, "-m", "osucaffe", *_TRAIN, *options]


def start(
    task: Task,
    folder: Path,
    line: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    limit: Callable[[], None] = lambda: None,
) -> subprocess.Popen:
    """Start the command in the folder, which holds all that it needs then."""
    (folder / "n.prototxt").write_text(_NET)
    (folder / "s.prototxt").write_text(_SOLVER % (task.iterations, task.every))
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            line,
            cwd=folder,
            env={**environment, MARK: str(folder), "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            preexec_fn=limit,
        )


def processes(folder: Path) -> dict[int, list[str]]:
    """The command lines of the job's processes that run, word by word."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if f"{MARK}={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                found[int(entry.name)] = words
        except (OSError, ValueError):
            continue
    return {process: words for process, words in found.items() if words[0]}


def await_moment(task: Task, random: Random, folder: Path, job: subprocess.Popen) -> bool:
    """Wait for a random moment between two snapshots of it. Returns whether it is there in time."""
    number = task.every * random.randrange(1, _SNAPSHOTS - 2)
    awaited = folder / f"r_iter_{number}.solverstate"
    until = time.monotonic() + LONGEST_RUN
    while not awaited.exists():
        if job.poll() is not None or time.monotonic() > until:
            return False
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.05))
    return True


def left(folder: Path) -> list[str]:
    """What a job should not have left there: tracebacks, snapshots that are not whole."""
    wrong = []
    if "Traceback" in (folder / "log").read_text():
        wrong.append("traceback")
    for path in folder.glob("r_iter_*.solverstate"):
        try:
            read_state(path)
            read_weights(path.with_suffix(".caffemodel"))
        except UserError:
            wrong.append("lost snapshot")
    return wrong


def resumed(task: Task, folder: Path, job: subprocess.Popen, ranks: int) -> list[str]:
    """What is wrong when a job that goes on from what is there has ended."""
    wrong = []
    if job.wait(LONGEST_RUN) or (folder / task.last).read_bytes() != task.wanted[ranks]:
        wrong.append("resumed to other bits")
    files = [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]
    return wrong + [f"left {name}" for name in files[:1]]
