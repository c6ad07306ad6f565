"""The notebooks and the servers in examples/, run as they are."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osucaffe.cli import main

from . import notebooks

SERVING = notebooks.ROOT / "examples" / "serving"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebooks.in_folder(tmp_path)


@pytest.fixture
def model(tmp_path: Path, root: Path, fixtures: Path) -> Path:
    """A model's folder, with an image of a digit."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(root / "models" / "lenet" / "deploy.prototxt", folder)
    shutil.copy(fixtures / "formats" / "lenet_iter_200.caffemodel", folder)
    (folder / "labels.txt").write_text("\n".join("abcdefghij"))
    Image.fromarray(np.eye(28, dtype=np.uint8) * 255).save(folder / "image.png")
    return folder


@pytest.mark.long
def test_lenet_from_zero() -> None:
    space, shown, _ = notebooks.run(notebooks.FOLDER / "lenet.ipynb")
    assert space["accuracy"] > 0.94
    assert "test accuracy" in shown[3]._repr_html_()


@pytest.mark.long
def test_photographs() -> None:
    _, shown, _ = notebooks.run(notebooks.FOLDER / "photographs.ipynb")
    assert Path("runs/digits/report.html").exists()
    assert shown[4] > 0.9
    assert shown[-1].label == shown[3].label


@pytest.mark.long
def test_features_for_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    space, _, _ = notebooks.run(notebooks.FOLDER / "features.ipynb")
    assert space["accuracy"] > 0.94


def test_notebooks_show_what_they_show() -> None:
    for path in notebooks.FOLDER.glob("*.ipynb"):
        document = json.loads(path.read_text())
        code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
        assert sum(bool(cell["outputs"]) for cell in code) >= 3


def test_a_web_service(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    client = pytest.importorskip("fastapi.testclient")
    monkeypatch.setenv("MODEL", str(model))
    app = runpy.run_path(str(SERVING / "server.py"))["app"]
    with open(model / "image.png", "rb") as image:
        answer = client.TestClient(app).post("/predict", files={"image": image})
    assert answer.status_code == 200
    assert len(answer.json()) == 5


@pytest.mark.long
def test_a_video(model: Path, tmp_path: Path, root: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    writer = cv2.VideoWriter("digits.avi", cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for at in range(3):
        writer.write(np.full((48, 64, 3), 80 * at, np.uint8))
    writer.release()
    words = [sys.executable, SERVING / "video.py", model, "digits.avi"]
    done = subprocess.run(words, capture_output=True, text=True, env={"PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


@pytest.mark.long
def test_the_same_by_onnx(model: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("onnxruntime")
    files = [f"{model}/deploy.prototxt", f"--weights={model}/lenet_iter_200.caffemodel"]
    assert main(["export", *files, "--onnx=model.onnx", "--with_preprocessing"]) == 0
    words = [sys.executable, SERVING / "with_onnx.py", "model.onnx", model / "image.png"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    capsys.readouterr()
    image = ["--model", *files[:1], files[1], f"{model}/image.png", "--json", "--quiet"]
    assert main(["classify", *image]) == 0
    (best,) = (one["labels"][0] for one in json.loads(capsys.readouterr().out))
    label, score = done.stdout.split()
    assert label == best["label"]
    assert float(score) == pytest.approx(best["score"], abs=1e-5)
