"""A minute of `make soak` with a fixed seed: a fault of each kind, but for those between hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.comm.ranks import needs_mpi

from .__main__ import FAULTS, plan


def test_a_plan_names_faults_and_how_often() -> None:
    assert plan("kill run:2,stop") == ["kill run", "kill run", "stop"]


@pytest.mark.long
@needs_mpi
def test_a_fault_of_each_kind(root: Path) -> None:
    faults = f"--faults={','.join(FAULTS)}"
    line = [sys.executable, "-m", "tests.soak", f"--rounds={len(FAULTS)}", "--seed=1"]
    done = subprocess.run(
        [*line, faults, "--longest=120"], cwd=root, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("nothing") == len(FAULTS)
