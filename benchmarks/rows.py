"""What ranks print for a benchmark which started them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from .ranks import ROOT, command

MARK = "ROW "


def rows_of(done: subprocess.CompletedProcess[str]) -> Any:
    """What the last line says that ranks printed, as JSON; their message and the end where they
    failed."""
    if done.returncode:
        raise SystemExit(done.stderr or done.stdout)
    return json.loads(done.stdout.strip().splitlines()[-1])


def rows_of_ranks(ranks: int, module: str, *arguments: str, threads: int = 1) -> Iterator[Any]:
    """What so many ranks of a module print behind MARK, as JSON; all their lines are shown.

    threads: of OpenMP, on each rank.
    """
    line, environment = command(ranks, "-m", module, *arguments)
    environment["OMP_NUM_THREADS"] = str(threads)
    with subprocess.Popen(
        line, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for text in process.stdout:
            print(text, end="", flush=True)
            if text.startswith(MARK):
                yield json.loads(text.removeprefix(MARK))
    if process.returncode:
        print(f"{ranks} ranks ended with {process.returncode}", file=sys.stderr)
