"""Runs `osucaffe train` as several ranks, in folders with small data, and reads what it leaves."""

from __future__ import annotations

from pathlib import Path

from osucaffe.proto import read_weights
from tests.comm.ranks import mpiexec

from .equivalence import NET, make_data


def write_run(folder: Path, solver: str, batch: int = 12, net: str = NET) -> None:
    """Data, net.prototxt, and solver.prototxt with this text."""
    source = make_data(folder)
    (folder / "net.prototxt").write_text(net.format(source=source, batch=batch))
    (folder / "solver.prototxt").write_text(solver)


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
