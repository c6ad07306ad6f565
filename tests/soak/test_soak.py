"""A short `make soak` with a fixed seed, and a minute of it: faults of each kind, but for those
between hosts. No time is asserted but one that only a hang takes."""

from __future__ import annotations

import pytest

from tests.comm.ranks import needs_mpi
from tests.processes import python

from .__main__ import FAULTS, plan, ranks_of


def test_a_plan_names_faults_and_how_often() -> None:
    assert plan("kill run:2,stop") == ["kill run", "kill run", "stop"]


def soak(faults: list[str], *arguments: str) -> None:
    """A round of each fault goes well."""
    options = [f"--rounds={len(faults)}", "--seed=1", f"--faults={','.join(faults)}"]
    done = python("-m", "tests.soak", *options, "--longest=120", *arguments, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("nothing") == len(faults)


@pytest.mark.long
def test_a_run_is_struck() -> None:
    soak([fault for fault in FAULTS if ranks_of(fault) == 1], "--iterations=300")


@pytest.mark.long
@needs_mpi
def test_ranks_are_struck() -> None:
    soak(["kill rank"], "--iterations=300")


@pytest.mark.long
@needs_mpi
def test_a_fault_of_each_kind() -> None:
    soak(list(FAULTS))
