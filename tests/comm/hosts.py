"""Starts ranks on hosts that are network namespaces."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import hosts as namespaces

from .ranks import MPIEXEC, ROOT


class Hosts:
    """Hosts with names; `mpiexec` starts ranks on them."""

    def __init__(self, made: namespaces.Hosts) -> None:
        self._made = made
        self.names = made.names
        self.shape_inward = made.shape_inward

    def mpiexec(
        self, ranks: int, *arguments: str, times: int = 1, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run `python ARGUMENTS` as so many ranks on each host, and so many times around."""
        assert MPIEXEC is not None
        program = [sys.executable, *arguments]
        line, environment = self._made.command(MPIEXEC, [ranks] * len(self.names) * times, program)
        return subprocess.run(
            line,
            env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextlib.contextmanager
def hosts(count: int, rate: str, folder: Path, burst: str = "1mb") -> Iterator[Hosts | None]:
    """So many hosts, or None where the machine does not permit them."""
    with namespaces.hosts(count, rate, folder, burst) as made:
        yield None if made is None else Hosts(made)
