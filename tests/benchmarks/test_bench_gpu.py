"""The GPU table of the README is the one that was measured last."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import results
from benchmarks.bench_gpu import render, summary

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_shows_the_last_results() -> None:
    newest = max(results.RESULTS.glob("gpu-*.json"), key=lambda path: path.stem[-10:])
    record = json.loads(newest.read_text())
    assert newest.with_suffix(".md").read_text() == render(record)
    assert summary(record) in README.read_text()
    assert f"benchmarks/results/{newest.stem}.md" in README.read_text()
