"""Starts ranks under a real mpiexec, for the tests of everything that needs several."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import ranks as started
from benchmarks.ranks import MPIEXEC, ROOT
from tests.forked import python

__all__ = ["MPIEXEC", "ROOT", "all_say", "command", "mpiexec", "needs_mpi"]

needs_mpi = pytest.mark.ranks
"""Of a test that starts ranks: conftest.py skips it where there is no mpiexec."""


def command(ranks: int, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """What starts `python ARGUMENTS` as so many ranks, and its environment."""
    return started.command(ranks, *arguments, python=python())


def mpiexec(
    ranks: int, *arguments: str, timeout: float = 300, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` as so many ranks; what they print comes back."""
    return started.mpiexec(ranks, *arguments, timeout=timeout, cwd=cwd, python=python())


def all_say(said: str, ranks: int, *arguments: str, timeout: float = 300) -> str:
    """Run `python -m ARGUMENTS` as so many ranks, each of which is to print this and to end well;
    what they wrote to stderr comes back."""
    done = mpiexec(ranks, "-m", *arguments, timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(said) == ranks, done.stdout
    return done.stderr
