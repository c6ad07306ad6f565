"""EfficientNet-Lite: the same scores as PyTorch's reference implementation, also where images are
of even extent, which it pads unevenly.

The scores of efficientnet_lite.npz (every twentieth) are efficientnet-lite-pytorch 0.1.0's with
PyTorch 2.13, of weights and an image drawn as here."""

from __future__ import annotations

import importlib.util
from itertools import count
from typing import Any

import numpy as np
import pytest

from benchmarks.nets import MODELS, read_net
from osucaffe.apps.photographs.pytorch_weights import set_weights
from osucaffe.backends.cpu import Cpu
from osucaffe.loading import load_weights
from osucaffe.net import Net
from tests.cli.conftest import ROOT

STORED = np.load(ROOT / "tests" / "fixtures" / "efficientnet_lite.npz")


@pytest.mark.parametrize("number", [0, 1, pytest.param(2, marks=pytest.mark.long)])
def test_scores_are_those_of_the_reference(number: int) -> None:
    random = np.random.RandomState(number)

    def draw(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return random.uniform(0.5, 1.5, shape)
        return random.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5

    shapes = [tuple(map(int, row[row > 0])) for row in STORED[f"shapes{number}"]]
    net = read_net(f"efficientnet_lite{number}", "deploy")
    shape = tuple(net.layer[0].input_param.shape[0].dim)
    set_weights(net, dict(zip(map(str, count()), map(draw, shapes), strict=False)))
    engine = Net(net, phase="TEST", backend=Cpu(), inference=True, wanted=["fc"])
    load_weights([engine], [("drawn", net)])
    engine.write("data", random.standard_normal(shape)[:, ::-1])
    engine.forward()
    right = STORED[f"scores{number}"]
    found = engine.read("fc")[0, ::20]
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-4 * np.abs(right).max())


def test_the_files_are_those_that_make_writes() -> None:
    path = MODELS / "efficientnet_lite0" / "make.py"
    spec = importlib.util.spec_from_file_location("make", path)
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    for number in make.NETS:
        for name, text in make.files(number).items():
            assert (MODELS / f"efficientnet_lite{number}" / name).read_text() == text
