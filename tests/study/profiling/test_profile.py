"""`osucaffe profile`: two recorded profiles side by side."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import Cli

PARTS = ("data", "forward", "backward", "update", "waiting", "between")
TIMES = ("ms", "hidden_ms", "exposed_ms", "slowest_ms")


def summary(waiting: float, *rows: tuple[str, str, str, float, float]) -> dict[str, Any]:
    operations = [
        {"operation": operation, "algorithm": how, "level": "node", "size": size, "calls": 1.0}
        | {"bytes": 8.0} | dict(zip(TIMES, (ms, ms - exposed, exposed, 0.0), strict=True))
        for operation, how, size, ms, exposed in rows
    ]  # fmt: skip
    parts = dict.fromkeys(PARTS, 1.0) | {"waiting": waiting}
    spread = {"low_ms": 5.0, "median_ms": 6.0, "high_ms": 7.0}
    whole = {"ranks": 2, "iterations": 4, "wall_ms": 5 + waiting, "layers": []}
    return whole | spread | {"parts_ms": parts, "operations": operations}


def test_two_profiles_side_by_side(cli: Cli) -> None:
    """Algorithms of one operation and size are compared; what only one has has no ratio."""
    first = summary(5.0, ("all_reduce", "ring", "0 - 4 KB", 4.0, 2.0))
    split = [("all_reduce", how, "0 - 4 KB", 1.0, 0.5) for how in ("binomial", "chain")]
    second = summary(0.0, *split, ("push", "mpi", "> 64 MB", 3.0, 0.0))
    cli.write("ring.json", json.dumps(first))
    cli.write("other.json", json.dumps(second))
    out = cli.ok("profile", "ring.json", "other.json", "--plot=both.png").out
    rows = [[cell.strip() for cell in line.split("  ") if cell] for line in out.splitlines()]
    assert ["all", "10.000", "5.000", "0.50"] in rows
    assert ["waiting", "5.000", "0.000", "0.00"] in rows
    how = "ring, binomial + chain"
    times = ["4.000", "2.000", "0.50", "2.000", "1.000", "0.50"]
    assert ["all_reduce", "node", "0 - 4 KB", how, *times] in rows
    assert ["push", "node", "> 64 MB", "-, mpi", "-", "3.000", "-", "-", "0.000", "-"] in rows
    assert (cli.folder / "both.png").stat().st_size > 10_000
    assert "Communication of 4 iterations on 2 ranks" in cli.ok("profile", "ring.json").out
    cli.write("wrong.json", "[1]")
    assert (
        "wrong.json: not a profile written by"
        in cli.fails("profile", "ring.json", "wrong.json").err
    )
