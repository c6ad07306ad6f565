"""The comparison of forward passes: files that all sides read, and the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inference import bench_infer, bench_sizes, infer
from benchmarks.inference.bench_infer import CPU, GPU, Case, render
from benchmarks.results import machine


def test_cases_have_models() -> None:
    for case in CPU + GPU:
        assert (Path(infer.nets.MODELS) / case.model / "deploy.prototxt").exists()


@pytest.mark.parametrize("peer", ["torch", "onnxruntime", "opencv"])
def test_osucaffe_and_its_peers_compute_the_same(tmp_path: Path, peer: str) -> None:
    pytest.importorskip({"opencv": "cv2"}.get(peer, peer))
    files = infer.write_files("cifar10_quick", 3, tmp_path)
    found = []
    for build in infer.build_osucaffe, getattr(infer, f"build_{peer}"):
        job = {"threads": 1, "precision": "cpu", "mode": "eager", **files}
        job |= infer.write_onnx(files) if peer == "onnxruntime" else {}
        build(job | {"outputs": str(tmp_path / "out.npz")})
        found.append(infer.read_outputs(tmp_path / "out.npz"))
    assert infer.difference(*found) < 1e-5


def test_measured_cases_become_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    side = {"version": "1", "median_ms": 2.0, "p99_ms": 3.0, "images_per_second": 5, "setup_s": 1}
    sides = [side | {"name": name, "memory_mib": 7} for name in ("osucaffe", "opencv")]
    sides[1] |= {"difference": 2e-6, "processor_ms": 2.5}
    measured = {"goal": 1.2, "sides": sides, "rounds": 3, "seconds": 1.0}
    measured |= {"peer": "opencv", "ratio": 1.5, "ratios": [1.4, 1.5], "others_share": 0.25}

    def measure(case: Case, *_: object) -> dict[str, Any]:
        return {"model": case.model, "batch": case.batch, "precision": "cpu"} | measured

    def record(model: str) -> Any:
        arguments = ["", "--only", model, "--batch", "1", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", arguments)
        bench_infer.main()
        (path,) = tmp_path.glob("infer-cpu-*.json")
        return json.loads(path.read_text())

    monkeypatch.setattr(bench_infer, "measure_case", measure)
    first = record("caffenet")
    assert first["cases"] == [measure(Case("caffenet", 1, "cpu", 1.2))]
    assert first["machine"] == machine()
    text = render(first)
    assert text in capsys.readouterr().out
    assert "| caffenet 1 cpu | osucaffe | 2.0 | 3.0 |  | 5 | 7 | 1 | – |  |  |" in text
    row = "|  | opencv | 2.0 | 3.0 | 2.5 | 5 | 7 | 1 | 2e-06 | **1.5** (1.4–1.5) | ≥ 1.2 |"
    assert row in text
    assert "took up to 25%" in text
    assert "3 runs each of 1.0 s, in turns" in text
    measured["goal"] = 1.3
    for model in "lenet", "caffenet":  # the second takes the place of what was measured before
        again = record(model)
    assert [(case["model"], case["goal"]) for case in again["cases"]] == [
        ("lenet", 1.3),
        ("caffenet", 1.3),
    ]
    monkeypatch.setattr(bench_infer.results, "machine", lambda: {"cpu": "other", "cores": 1})
    assert len(record("lenet")["cases"]) == 1, "results of another machine are not mixed in"


@pytest.mark.long
def test_each_pass_of_a_detector_has_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_sizes, "PASSES", 3)
    monkeypatch.setattr(bench_sizes, "SHORT", 64)
    found = bench_sizes.measure()
    assert found["builds"] >= 3  # a layer that finds another number of regions has the net built
    assert 0 < found["building"] < found["seconds"]
    text = bench_sizes.render({"date": "today", "machine": {"cpu": "x", "cores": 1}, **found})
    assert f"| {found['builds']} |" in text
