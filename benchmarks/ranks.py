"""Starts ranks under a real mpiexec."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def command(
    ranks: int, *arguments: str, python: str = sys.executable
) -> tuple[list[str], dict[str, str]]:
    """What starts `python ARGUMENTS` as that many ranks, and its environment."""
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
    return [MPIEXEC, "-n", str(ranks), python, *arguments], environment


def mpiexec(
    ranks: int,
    *arguments: str,
    timeout: float = 300,
    cwd: Path = ROOT,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` as that many ranks; what they print comes back."""
    line, environment = command(ranks, *arguments, python=python)
    return subprocess.run(
        line, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )
