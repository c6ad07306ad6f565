"""Every layer against outputs and gradients that C++ Caffe 1.0 computed (fixtures/caffe), and
layers of Caffe's forks against those of their own C++ code (fixtures/forks)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu

from .nets import build, error, layer

FOLDER = Path(__file__).parent.parent / "fixtures"
FIXTURES = [path for of in ("caffe", "forks") for path in sorted((FOLDER / of).glob("layer_*.npz"))]
TOLERANCE = 1e-5
PRECISIONS = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 1e-2, "bf16": 6e-2}
"""Of a GPU, and the error that it may make."""
MENDED = {
    "layer_ssd_mbox12": ("top y", "bottomdiff conf_s", "paramdiff s_conf:0"),
    "layer_ssd_normalize4": ("bottomdiff x",),
}
"""What a fork computes wrongly, where we do not: targets of later images in the wrong place, and a
gradient that is no derivative. test_gradients.py has these cases."""

NEAR_TIES = "layer_ssd_mini_test0"
"""Its fifty scores lie within 1e-6 of 1: which of them are kept hangs on the last bit."""


@pytest.fixture(
    scope="module",
    params=[
        "numpy",
        "onednn",
        *(pytest.param(precision, marks=pytest.mark.gpu) for precision in PRECISIONS),
    ],
)
def backend(request: pytest.FixtureRequest) -> Any:
    if request.param in PRECISIONS:
        from osucaffe.backends.cuda import Cuda

        return Cuda(precision=request.param)
    cpu = Cpu(onednn=request.param == "onednn")
    if request.param == "onednn" and cpu.onednn is None:
        pytest.skip("oneDNN is not installed")
    return cpu


class Fixture:
    """The arrays of a file by their kind ("in", "param", "top", ...) and blob or position."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            self.text, self.phase = str(arrays["prototxt"]), str(arrays["phase"])
            self._arrays = {key: arrays[key] for key in arrays.files}

    @property
    def type(self) -> str:
        operation = self.text.split('name: "op"')[1]
        return operation.split('type: "')[1].split('"')[0]

    def kind(self, kind: str) -> dict[str, np.ndarray]:
        return {
            key.split(":", 1)[1]: value
            for key, value in self._arrays.items()
            if key.startswith(kind + ":")
        }


def in_order(rows: np.ndarray) -> np.ndarray:
    """Detections by image, label and place: of equal scores (there are some of 1) either may be
    the first."""
    flat = rows.reshape(-1, 7)
    return flat[np.lexsort([np.round(flat[:, 3], 3), flat[:, 1], flat[:, 0]])].reshape(rows.shape)


def parameter(net, key: str):
    """The parameter blob that `layer:index` names."""
    name, index = key.split(":")
    return layer(net, name).parameters[int(index)]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem.removeprefix("layer_"))
@pytest.mark.parametrize("inspectable", [True, False], ids=["inspectable", "planned"])
def test_layer_computes_what_caffe_computes(path: Path, backend: Any, inspectable: bool) -> None:
    fixture = Fixture(path)
    net = build(fixture.text, backend, phase=fixture.phase, inspectable=inspectable)
    for name, values in fixture.kind("in").items():
        net.write(name, values)
    for key, values in fixture.kind("param").items():
        backend.write(parameter(net, key).data, values)

    net.forward()
    found = {f"top {name}": net.read(name) for name in fixture.kind("top")}
    wanted = {f"top {name}": values for name, values in fixture.kind("top").items()}
    if fixture.type == "DetectionOutput":
        found, wanted = ({k: in_order(v) for k, v in rows.items()} for rows in (found, wanted))
    for key, values in fixture.kind("after").items():
        found[f"after {key}"] = backend.read(parameter(net, key).data)
        wanted[f"after {key}"] = values

    if inspectable and fixture.kind("bottomdiff"):
        for name, values in fixture.kind("topdiff").items():
            backend.write(net.blobs[name].diff, values)
        net.backward()
        for name, values in fixture.kind("bottomdiff").items():
            found[f"bottomdiff {name}"] = backend.read(net.blobs[name].diff)
            wanted[f"bottomdiff {name}"] = values
        for key, values in fixture.kind("paramdiff").items():
            found[f"paramdiff {key}"] = backend.read(parameter(net, key).diff)
            wanted[f"paramdiff {key}"] = values

    for key in MENDED.get(path.stem, ()):
        wanted.pop(key, None)
    if not wanted:
        return
    if path.stem == NEAR_TIES and getattr(backend, "precision", "") not in ("tf32", "fp16", "bf16"):
        [rows], [goal] = (each.values() for each in (found, wanted))
        gaps = np.abs(rows[0, 0, :, None] - goal[0, 0]).max(axis=-1).min(axis=-1)
        assert (gaps < 1e-3).mean() > 0.9
    if path.stem == NEAR_TIES:
        return
    errors = {key: error(found[key], values) for key, values in wanted.items()}
    assert errors
    tolerance = PRECISIONS[backend.precision] if backend.name == "cuda" else TOLERANCE
    assert max(errors.values()) <= tolerance, errors
