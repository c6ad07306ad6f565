"""Two hosts for real: namespaces joined by a shaped link, where two levels beat one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .hosts import hosts
from .ranks import needs_mpi


@needs_mpi
def test_hierarchical_beats_flat_algorithms_on_a_slow_link(tmp_path: Path) -> None:
    with hosts(2, "500mbit", tmp_path) as made:
        if made is None:
            pytest.skip("network namespaces are not permitted here")
        done = made.mpiexec(2, "-m", "tests.comm.two_levels")
        names = made.names
    assert done.returncode == 0, done.stderr
    times = json.loads(done.stdout.strip().splitlines()[-1])
    assert times.pop("hosts") == [[name] * 2 for name in names]
    hierarchical = times.pop("hierarchical")
    assert hierarchical < min(times.values()), (hierarchical, times)
