"""Rows that ranks print come back; other lines are only shown."""

from __future__ import annotations

import pytest

from benchmarks.rows import rows_of_ranks
from tests.comm.ranks import needs_mpi

pytestmark = needs_mpi


def test_rows_come_back(capfd: pytest.CaptureFixture[str]) -> None:
    # A line at a time: what two ranks write in pieces may come mixed.
    statement = (
        "import os, sys; threads = os.environ['OMP_NUM_THREADS'];"
        "sys.stdout.write('ROW {\"threads\": %s}\\n' % threads); sys.stdout.flush()"
    )
    rows = list(rows_of_ranks(2, "timeit", "-n1", "-r1", statement, threads=3))
    assert rows == [{"threads": 3}] * 2
    assert "loop, best of" in capfd.readouterr().out


def test_ranks_that_fail_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(rows_of_ranks(2, "osucaffe.nowhere")) == []
    assert "2 ranks ended with " in capfd.readouterr().err
