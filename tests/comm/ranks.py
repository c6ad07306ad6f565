"""Starts ranks under a real mpiexec, for the tests of everything that needs several."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import python

ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")

needs_mpi = pytest.mark.ranks
"""Of a test that starts ranks: conftest.py skips it where there is no mpiexec."""


def command(ranks: int, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """What starts `python ARGUMENTS` as so many ranks, and its environment."""
    assert MPIEXEC is not None
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return [MPIEXEC, "-n", str(ranks), python(), *arguments], environment


def mpiexec(
    ranks: int, *arguments: str, timeout: float = 300, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` as so many ranks; what they print comes back."""
    line, environment = command(ranks, *arguments)
    return subprocess.run(
        line, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )


def all_say(said: str, ranks: int, *arguments: str, timeout: float = 300) -> str:
    """Run `python -m ARGUMENTS` as so many ranks, each of which is to print this and to end well;
    what they wrote to stderr comes back."""
    done = mpiexec(ranks, "-m", *arguments, timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(said) == ranks, done.stdout
    return done.stderr
