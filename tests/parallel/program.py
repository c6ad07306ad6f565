"""Runs `osucaffe train` as several ranks, and reads what it leaves."""

from __future__ import annotations

from pathlib import Path

from osucaffe.proto import read_weights
from tests.comm.ranks import mpiexec


def train(folder: Path, ranks: int, *options: str) -> str:
    """The log of training by the folder's solver.prototxt."""
    command = ["-m", "osucaffe", "train", "--solver", "solver.prototxt", *options]
    done = mpiexec(ranks, *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stderr


def saved(path: Path) -> list[float]:
    """All weights of a .caffemodel."""
    net = read_weights(str(path))
    return [value for layer in net.layer for blob in layer.blobs for value in blob.data]
