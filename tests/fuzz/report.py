"""Owns the file that counts what all runs of the fuzzer have tried, and what failed in them."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping

from benchmarks import results

from .runner import BIG, GOOD, REFUSED

_NAME = "fuzz-cpu"
_COLUMNS = ("kind", "inputs", "good", "refused", "too big", "what failed")


def add(counts: Mapping[str, Counter[str]], seed: int, seconds: float) -> str:
    """Add a run's counts of outcomes by kind to benchmarks/results. Returns the file's name."""
    record = results.earlier(_NAME)
    found = {kind: dict(sorted(each.items())) for kind, each in sorted(counts.items())}
    run = {
        "date": results.today(),
        "revision": _revision(),
        "seed": seed,
        "seconds": round(seconds),
        "counts": found,
    }
    record = {"machine": results.machine(), "runs": [*record.get("runs", []), run]}
    return str(results.write(_NAME, record, _text(record["runs"])))


def _revision() -> str:
    line = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(line, capture_output=True, text=True).stdout.strip() or "unknown"


def _text(runs: list[dict]) -> str:
    total: dict[str, Counter[str]] = {}
    for run in runs:
        for kind, counts in run["counts"].items():
            total.setdefault(kind, Counter()).update(counts)
    total["all"] = sum(total.values(), Counter())
    rows = []
    for kind, counts in total.items():
        failed = {name: each for name, each in counts.items() if name not in (GOOD, REFUSED, BIG)}
        told = ", ".join(f"{name} {each}" for name, each in failed.items()) or "nothing"
        numbers = counts.total(), counts[GOOD], counts[REFUSED], counts[BIG]
        rows.append([kind, *(f"{number:,}" for number in numbers), told])
    told = ", ".join(
        f"{run['date']} seed {run['seed']} ({run['seconds']} s"
        + (f", revision {run['revision']})" if "revision" in run else ")")
        for run in runs
    )
    return (
        f"# {total['all'].total():,} mutated inputs\n\n"
        f"`make fuzz WRITE=1`: {told}. Good: the input is valid, or what it asks for can be done. "
        "Refused: one message. Too big: more memory than a process may have. What fails lies in "
        "tests/fuzz/regressions once it is mended.\n\n" + results.table(_COLUMNS, rows) + "\n"
    )
