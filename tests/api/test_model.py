"""`oc.load`, `oc.fit` and `oc.export`: images in, labels out, as the commands give them."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import osucaffe as oc
from osucaffe.cli import main
from tests.apps.photographs.photos import make_photos

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
Classify = Callable[..., list[dict[str, object]]]


@pytest.fixture
def folder(tmp_path: Path, root: Path, fixtures: Path) -> Path:
    """A model's folder: LeNet as C++ Caffe trained it, and images."""
    made = tmp_path / "model"
    made.mkdir()
    shutil.copy(root / "models" / "lenet" / "deploy.prototxt", made)
    shutil.copy(fixtures / "formats" / "lenet_iter_200.caffemodel", made)
    (made / "labels.txt").write_text("\n".join(NAMES))
    rng = np.random.default_rng(4)
    for at in range(19):
        Image.fromarray(rng.integers(0, 256, (30 + at, 40), np.uint8)).save(made / f"{at:02d}.png")
    colours = rng.integers(0, 256, (50, 40, 3), np.uint8)
    Image.fromarray(colours).save(made / "colours.png")
    return made


@pytest.fixture
def classify(folder: Path, capsys: pytest.CaptureFixture) -> Classify:
    """What the command gives for images."""

    def run(*words: str) -> list[dict[str, object]]:
        files = ["--model", f"{folder}/deploy.prototxt"]
        files += ["--weights", f"{folder}/lenet_iter_200.caffemodel", "--json", "--quiet"]
        assert main(["classify", *files, *words]) == 0
        found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
        return found

    return run


def pairs(documents: list[dict[str, object]]) -> list[list[tuple[str, float]]]:
    return [[(each["label"], each["score"]) for each in one["labels"]] for one in documents]  # type: ignore[attr-defined]


def same(found: list[oc.Prediction], documents: list[dict[str, object]]) -> None:
    for one, expected in zip(found, pairs(documents), strict=True):
        assert [label for label, _ in one.top] == [label for label, _ in expected]
        np.testing.assert_allclose([s for _, s in one.top], [s for _, s in expected], rtol=1e-5)
        assert (one.label, one.score) == one.top[0]


@pytest.mark.parametrize("oversample", [False, True])
def test_predictions_are_those_of_the_command(
    folder: Path, classify: Classify, oversample: bool
) -> None:
    model = oc.load(folder, threads=1)
    paths = sorted(folder.glob("*.png"))
    expected = classify(*map(str, paths), *["--oversample"] * oversample)
    same(model.predict(paths, oversample=oversample), expected)
    assert model.labels == NAMES
    assert "zero, one, two, three, four, ..." in repr(model)


def test_images_come_in_every_form(folder: Path, classify: Classify) -> None:
    model = oc.load(folder / "deploy.prototxt", folder / "lenet_iter_200.caffemodel", threads=1)
    path = folder / "colours.png"
    expected = classify(str(path))
    with Image.open(path) as image:
        pixels = np.asarray(image)
        forms = [str(path), path, image, image.convert("RGBA"), pixels]
        same([*map(model.predict, forms)], expected * len(forms))
        same(model.predict(forms), expected * len(forms))
        same(model.predict(np.stack([pixels, pixels])), expected * 2)
    grey = pixels[:, :, 0]
    assert model.predict(grey).scores.tolist() == model.predict(grey[:, :, None]).scores.tolist()
    assert model.predict([]) == []
    assert len(model.predict(path, top=3).top) == 3
    same([pickle.loads(pickle.dumps(model)).predict(path)], expected)
    assert "<td" in model.predict(path)._repr_html_()
    with ThreadPoolExecutor(4) as threads:
        same([*threads.map(model.predict, [path] * 12)], expected * 12)


def test_an_explanation_is_a_picture(folder: Path) -> None:
    model = oc.load(folder, threads=1)
    picture = model.explain(folder / "00.png")
    assert picture.size == (448, 224)
    model.net(data=np.zeros((1, 1, 28, 28)))  # not what the picture is made with
    assert model.explain(str(folder / "00.png")).tobytes() == picture.tobytes()


@pytest.mark.long
def test_models_are_exported_with_their_labels(folder: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = oc.load(folder, threads=1)
    oc.export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    x = np.random.default_rng(0).normal(size=(3, 1, 28, 28)).astype(np.float32)
    np.testing.assert_allclose(
        session.run(None, {"data": x})[0], model.net(data=x)["prob"], atol=1e-5
    )
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == NAMES
    oc.export(model.net, tmp_path / "net.onnx", batch=2)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    assert session.get_inputs()[0].shape == [2, 1, 28, 28]


def test_what_is_wrong_is_a_user_error(folder: Path, tmp_path: Path) -> None:
    model = oc.load(folder, threads=1)
    for call, words in (
        (lambda: model.predict("none.png"), "none.png"),
        (lambda: model.predict(np.zeros((4, 4, 3))), "ndarray of float64 .4, 4, 3.: not an image"),
        (lambda: model.predict(3), "not an image"),
        (lambda: model.predict(np.zeros((3, 28, 28), np.uint8)), r".3, 28, 28.: not an image"),
        (lambda: oc.load(tmp_path), "has no deploy.prototxt"),
        (lambda: oc.load(folder / "deploy.prototxt", "none.caffemodel"), "none.caffemodel"),
    ):
        with pytest.raises(oc.UserError, match=words):
            call()
    shutil.copy(folder / "lenet_iter_200.caffemodel", folder / "other.caffemodel")
    with pytest.raises(oc.UserError, match=r"lenet_iter_200.caffemodel, .*other.caffemodel: give"):
        oc.load(folder)


@pytest.mark.long
def test_photographs_become_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "photos", 24, noise=110, exif=True)
    model = oc.fit("photos", "run", weights="none", epochs=6)
    paths = sorted(map(str, (tmp_path / "photos").rglob("*.*")))[:7]
    files = ["--model", "run/deploy.prototxt", "--weights", oc.Run("run/solver.prototxt").best]
    capsys.readouterr()
    assert main(["classify", *files, "--json", "--quiet", *paths]) == 0
    expected = json.loads(capsys.readouterr().out)
    same(model.predict(paths), expected)
    same(model.predict([Image.open(path) for path in paths]), expected)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    same(oc.load(moved).predict(paths), expected)
