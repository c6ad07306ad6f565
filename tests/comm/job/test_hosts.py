"""Two hosts for real: namespaces joined by a link, over which two levels send less than one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..hosts import hosts
from ..ranks import needs_mpi


@needs_mpi
def test_hierarchical_sends_less_between_hosts_than_flat_algorithms(tmp_path: Path) -> None:
    with hosts(2, "10gbit", tmp_path) as made:
        if made is None:
            pytest.skip("network namespaces are not permitted here")
        done = made.mpiexec(2, "-m", "tests.comm.two_levels")
        names = made.names
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout.strip().splitlines()[-1])
    assert sent.pop("hosts") == [[name] * 2 for name in names]
    hierarchical = sent.pop("hierarchical")
    assert sent.pop("binomial") > 0.99  # one way after the other
    assert 0.99 < hierarchical < 1.2 < min(sent.values()), (hierarchical, sent)
