"""The comparison of forward passes: files that all sides read, and the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_infer, infer
from benchmarks.bench_infer import CPU, GPU, render
from benchmarks.results import machine


def test_cases_have_models() -> None:
    for case in CPU + GPU:
        assert (Path(infer.nets.MODELS) / case.model / "deploy.prototxt").exists()


def test_osucaffe_and_its_twin_compute_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = []
    for build in infer.build_osucaffe, infer.build_torch:
        job = {"threads": 1, "precision": "cpu", "mode": "eager"}
        job |= infer.write_files("cifar10_quick", 3, tmp_path)
        build(job | {"outputs": str(tmp_path / "out.npy")})
        found.append(np.load(tmp_path / "out.npy").ravel())
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_measured_cases_become_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    side = {"version": "1", "median_ms": 2.0, "p99_ms": 3.0, "images_per_second": 5, "setup_s": 1}
    sides = [side | {"name": name, "memory_mib": 7} for name in ("osucaffe", "opencv")]
    sides[1]["difference"] = 2e-6
    case = {"model": "lenet", "batch": 1, "precision": "cpu", "goal": 1.2, "sides": sides}
    case |= {"peer": "opencv", "ratio": 1.5, "ratios": [1.4, 1.5], "others_share": 0.25}
    monkeypatch.setattr(bench_infer, "measure_case", lambda *_: dict(case))
    monkeypatch.setattr(
        sys, "argv", ["", "--only", "lenet", "--batch", "1", "--out", str(tmp_path)]
    )
    bench_infer.main()
    (path,) = tmp_path.glob("infer-cpu-*.json")
    record = json.loads(path.read_text())
    assert record["cases"] == [case]
    assert record["machine"] == machine()
    text = render(record)
    assert text in capsys.readouterr().out
    row = "| lenet 1 cpu | osucaffe | 2.0 | 3.0 | 5 | 7 | 1 | – | **1.5** (1.4–1.5) | ≥ 1.2 |"
    assert row in text
    assert "took up to 25%" in text
