"""The example examples/segnet_digits: its canvases, its net, and its score."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from osucaffe.backends.cpu import Cpu
from osucaffe.data.sets import mnist
from osucaffe.proto import caffe_pb2
from osucaffe.solvers import Solver

from .scripts import load_script

FOLDER = Path(__file__).parents[2] / "examples" / "segnet_digits"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """Imports a script of the example by name."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> Any:
        found = load_script(FOLDER / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, found)
        return found

    return load


def test_canvases_show_what_their_labels_say(tmp_path: Path, module) -> None:
    canvases = module("canvases")
    digits = mnist.load("packaged").test
    canvases.write(tmp_path, "train", digits, 20, seed=1)
    seen: set[int] = set()
    for line in (tmp_path / "train.txt").read_text().splitlines():
        image, label = (np.asarray(Image.open(path)) for path in line.split())
        assert image.shape == label.shape == (64, 64)
        assert (image[label > 0] >= canvases.INK).all()
        assert not image[label == 0].max(initial=0) > 250
        assert 1 <= len(np.unique(label)) - 1 <= 4
        seen |= set(label.ravel().tolist())
    assert seen == set(range(11))


def test_the_net_learns(tmp_path: Path, module) -> None:
    canvases = module("canvases")
    canvases.write(tmp_path, "train", mnist.load("packaged").train, 8, seed=1)
    net = (FOLDER / "train_val.prototxt").read_text().replace("batch_size: 16", "batch_size: 8")
    solver = text_format.Parse(
        (FOLDER / "solver.prototxt").read_text(), caffe_pb2.SolverParameter()
    )
    for field in ("net", "test_iter", "test_interval", "snapshot_prefix"):
        solver.ClearField(field)
    net = net.replace("examples/segnet_digits/canvases/train.txt", str(tmp_path / "train.txt"))
    text_format.Parse(net, solver.net_param)
    solver = Solver(solver, Cpu())
    losses = []
    for _ in range(8):
        solver.step(1)
        losses.append(solver.net.loss())
    assert losses[0] > 1.5
    assert losses[-1] < losses[0] - 0.5


def test_intersection_over_union(module) -> None:
    module("canvases")
    evaluate = module("evaluate")
    labels = np.array([[0, 0, 1, 1], [2, 2, 0, 0]])
    taken = np.array([[0, 1, 1, 1], [2, 0, 0, 0]])
    ious = evaluate.class_ious(labels, taken)
    np.testing.assert_allclose(ious[:3], [3 / 5, 2 / 3, 1 / 2])
