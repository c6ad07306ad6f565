"""The comparison of trained models: a row for each pair of files, also for one that fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.inference import bench_real, infer
from osucaffe.errors import UserError


def test_each_pair_of_a_folder_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cv2")
    files = infer.write_files("cifar10_quick", 3, tmp_path)
    net, weights = Path(files["prototxt"]), Path(files["weights"])
    for name, kind in (("good", "AVE"), ("ours", "STOCHASTIC"), ("neither", "NEAREST")):
        (folder := tmp_path / "models" / name).mkdir(parents=True)
        text = net.read_text().replace("pool: AVE", f"pool: {kind}")
        (folder / f"{name}.prototxt").write_text(text)
        (folder / f"{name}.caffemodel").write_bytes(weights.read_bytes())
    sizes = ["--threads", "1", "--rounds", "2", "--seconds", "0.01", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "models"), *sizes])
    bench_real.main()
    (path,) = tmp_path.glob("real-cpu-*.json")
    rows = {row["model"]: row for row in json.loads(path.read_text())["rows"]}
    good, ours, neither = rows["good"], rows["ours"], rows["neither"]
    assert good["failed"] == {}
    assert good["difference"] < 1e-5
    assert len(good["ratios"]) == 2
    assert "STOCHASTIC" in ours["failed"]["opencv"] or "pool" in ours["failed"]["opencv"]
    assert ours["osucaffe"]["ms"] > 0
    assert "ratio" not in ours
    assert "NEAREST" in neither["failed"]["osucaffe"]
    text = capsys.readouterr().out
    assert f"Geometric mean of 1 ratios: **{good['ratio']:.2f}**" in text
    assert "| neither |  |  |  |  | osucaffe: osucaffe.errors.UserError: " in text


def test_a_folder_without_models_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path)])
    with pytest.raises(SystemExit):
        bench_real.main()
    assert "has no NAME.caffemodel" in capsys.readouterr().err


def test_differences_are_shares_of_each_output() -> None:
    def detections(*scores: float) -> np.ndarray:
        return np.array([[[[0, 1, score, 0, 0, 1, 1] for score in scores]]])

    a, b = np.array([[1.0, 2.0]]), np.array([4.0, -8.0])
    assert infer.difference([a, b], [a, b + 1]) == 1 / 7
    assert infer.difference([detections(0.5, -1)], [detections(0.5, 0, 0)]) == 0
    assert infer.difference([detections(-1)], [detections(0, 0)]) == 0
    with pytest.raises(UserError, match=r"of \[7\] and of \[14\] numbers"):
        infer.difference([detections(0.5)], [detections(0.5, 0.4)])
