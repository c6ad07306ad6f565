"""The GPU table of docs/speed.md is the one that was measured last."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import results
from benchmarks.bench_gpu import _by_type, _rest, _so_far, render, summary

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"


def test_the_readme_shows_the_last_results() -> None:
    newest = max(results.RESULTS.glob("gpu-*.json"), key=lambda path: path.stem[-10:])
    record = json.loads(newest.read_text())
    assert newest.with_suffix(".md").read_text() == render(record)
    assert summary(record) in PAGE.read_text()
    assert f"benchmarks/results/{newest.stem}.md" in PAGE.read_text()


def test_what_was_measured_on_an_earlier_day_stays(tmp_path: Path) -> None:
    rates = {"tf32": {"device": "NVIDIA H200", "flops_per_second": 4e14}}
    path, record = _so_far(tmp_path, rates)
    assert (path.name, record["cases"]) == (f"gpu-nvidia-h200-{results.today()}.md", [])
    old = {"date": "2020-01-01", "rates": {"bf16": {}}, "cases": [{"model": "lenet"}]}
    results.write("gpu-nvidia-h200-2020-01-01", old, "", tmp_path)
    results.write("gpu-nvidia-h200-2019-12-31", {"cases": []}, "", tmp_path)
    path, record = _so_far(tmp_path, rates)
    assert record["date"] == results.today()
    assert record["cases"] == old["cases"]
    assert record["rates"] == {"bf16": {}} | rates


def test_what_loses_most_comes_first() -> None:
    rates = {"flops_per_second": 1e12, "bytes_per_second": 1e9}
    layers = [
        ("Convolution", 5.0, 4 * 10**9, 10),
        ("LRN", 3.0, 10, 10**6),
        ("Convolution", 7.0, 6 * 10**9, 10),
        ("Pooling", 1.0, 10, 10**6),
    ]
    found = _by_type(layers, rates)
    assert list(found.items()) == [
        ("Convolution", [12.0, 10.0]),
        ("LRN", [3.0, 1.0]),
        ("Pooling", [1.0, 1.0]),
    ]
    case = {"model": "net", "batch": 2, "precision": "tf32", "layers": found}
    *_, row = _rest([case]).splitlines()
    cells = "Convolution 12.000 (10.000) | LRN 3.000 (1.000) | Pooling 1.000 (1.000) |  |"
    assert row == f"| net 2 | tf32 | {cells}"
