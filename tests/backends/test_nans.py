"""NaN shows: every backend makes of it what NumPy makes of it, and that is not a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from tests.backends.cases import STATE
from tests.backends.running import Output, Runner, Spec, run_call
from tests.backends.test_primitives import with_gpu, with_onednn

from .cuda.emulated import emulate, needs_compilers

NAN, CHANNEL = np.nan, (0, 3, 2, 3)
random = np.random.default_rng(4)

Row = tuple[str, dict[str, Spec], dict[str, Any]]


def images(*places: tuple[int, ...]) -> np.ndarray:
    """(2, 8, 6, 6), with NaN in these places."""
    values = random.standard_normal((2, 8, 6, 6))
    for place in places:
        values[place] = NAN
    return values


def outputs(*shape: int, index: bool = True) -> dict[str, Spec]:
    """Of pooling."""
    return {"y": Output(shape), "index": Output(shape, "int32") if index else None}


def pooling(kernel: int, stride: int, *places: tuple[int, ...], index: bool, pad: int = 0) -> Row:
    extent = -(-(6 + 2 * pad - kernel) // stride) + 1
    window = {"kernel": [kernel] * 2, "stride": [stride] * 2, "pad": [pad] * 2}
    written = outputs(2, 8, extent, extent, index=index)
    return "max_pooling", {"x": images(*places), **written}, window


def normalized(**changed: tuple[int, ...]) -> Row:
    """Pooling of normalized images, of which one operand has a NaN."""
    given = {"x": images()} | {
        name: random.standard_normal(8) for name in ("mean", "inv_std", "scale", "bias")
    }
    given["inv_std"] = np.abs(given["inv_std"])
    for name, place in changed.items():
        given[name][place] = NAN
    written = {**outputs(2, 8, 3, 3), "max_input": Output((2, 8, 3, 3))}
    settings = {"kernel": [2] * 2, "stride": [2] * 2, "pad": [0] * 2, "relu": True}
    return "batch_norm_pooling", {**given, **written}, settings


def stochastic(*, train: bool) -> Row:
    x, settings = np.abs(images(CHANNEL)), {"kernel": [2, 2], "stride": [2, 2], "key": 3}
    return "stochastic_pooling", {"x": x, **outputs(2, 8, 3, 3)}, {**settings, "train": train}


def relu(slope: float) -> Row:
    return "relu", {"x": images(CHANNEL), "y": Output((2, 8, 6, 6))}, {"slope": slope}


def product(
    name: str, x: np.ndarray, w: tuple[int, ...], y: tuple[int, ...], **settings: Any
) -> Row:
    """One that ends with a ReLU."""
    tensors = {"x": x, "w": random.standard_normal(w), "b": None, "y": Output(y)}
    return name, tensors, {**settings, "relu": 0.0}


def loss(rows: int, classes: int, *, ignore: int | None = None) -> Row:
    labels = random.integers(classes, size=rows).astype(np.float64)
    labels[rows // 2] = NAN
    x = random.standard_normal((rows, classes))
    written = {"probability": Output(x.shape), "loss": Output(())}
    settings = {"axis": 1, "ignore": ignore, "normalization": "VALID"}
    return "softmax_loss", {"x": x, "label": labels, **written}, settings


def formula(text: str) -> Row:
    a, b = np.array([NAN, 1.0, NAN, 2.0]), np.array([1.0, NAN, NAN, 1.0])
    tensors = {"inputs": [a, b], "outputs": [Output((4,))]}
    return "elementwise", tensors, {"formula": text}


def regions(name: str, channels: int, **settings: Any) -> Row:
    """Of a corner, of an infinite one, and of a region's image."""
    rois = np.tile([0, 0.5, 0.5, 4, 4], (4, 1))
    rois[[0, 1, 3], [3, 2, 0]] = NAN, np.inf, NAN
    written = outputs(4, channels, 2, 2)
    if name != "roi_max_pooling":
        del written["index"]
    tensors = {"x": images(), "rois": rois, **written}
    pad = {} if name == "psroi_pooling" else {"pad": 0.0}
    return name, tensors, {"scale": 1.0, **pad, **settings}


SCORES = np.where(np.arange(12).reshape(3, 4) == 6, NAN, random.standard_normal((3, 4)))
WINDOW = {"stride": [1, 1], "pad": [0, 0], "dilation": [1, 1], "group": 1}
ROWS: dict[str, Row] = {
    "the last of a window": pooling(2, 2, (0, 0, 1, 1), index=True),
    "the first of a window": pooling(2, 2, (1, 3, 2, 2), index=True),
    "in the middle of windows": pooling(3, 1, (1, 3, 2, 2), (1, 7, 0, 0), index=True, pad=1),
    "without an index": pooling(3, 2, (1, 3, 2, 2), (0, 2, 0, 1), index=False),
    "in large windows": pooling(6, 6, (1, 3, 2, 2), index=True),
    "of an image, normalized": normalized(x=CHANNEL),
    "of a mean": normalized(mean=(3,)),
    "of a bias": normalized(bias=(3,)),
    "behind a scale of 0": normalized(x=CHANNEL),
    "stochastic": stochastic(train=True),
    "expected": stochastic(train=False),
    "a label of few": loss(4, 3),
    "a label of many": loss(40, 30),
    "a label where the first class is ignored": loss(4, 3, ignore=0),
    "an index": (
        "gather",
        {"x": random.standard_normal((4, 3)), "index": np.array([1.0, NAN]), "y": Output((2, 3))},
        {},
    ),
    "a score of the label's class": (
        "accuracy",
        {"x": SCORES, "label": np.array([0, 2.0, 1]), "y": Output(()), "per_class": Output((4,))},
        {"axis": 1, "top_k": 1, "ignore": None},
    ),
    "one of the largest": (
        "top_k",
        {"x": SCORES, "index": Output((3, 2)), "value": Output((3, 2))},
        {"axis": 1},
    ),
    "a corner, the largest of bins": regions("roi_max_pooling", 8),
    "a corner, means of bins": regions("psroi_pooling", 2),
    "a corner, values at points": regions("roi_align", 8, warp=False),
    "a corner, warped": regions("roi_align", 8, warp=True),
    "a ReLU": relu(0.0),
    "a ReLU with a slope": relu(0.1),
    "a ReLU behind a convolution": product(
        "convolution", images(CHANNEL), (8, 8, 3, 3), (2, 8, 4, 4), **WINDOW
    ),
    "a ReLU behind a 1x1 convolution": product(
        "convolution", images(CHANNEL), (8, 8, 1, 1), (2, 8, 6, 6), **WINDOW
    ),
    "a ReLU behind a product": product(
        "inner_product", images(CHANNEL)[:, 3], (8, 36), (2, 8), axis=1, transpose=False
    ),
    "the larger": formula("y = max(a, b)"),
    "the smaller": formula("y = min(a, b)"),
    "a sign": formula("y = sign(a) + b"),
}  # fmt: skip
ROWS["behind a scale of 0"][1]["scale"][3] = 0.0
HIDDEN = "max_pooling"
"""What oneDNN computes without heed of NaN: to find it would be another pass over the images."""

VARIANTS = [
    pytest.param(with_onednn, False, id="onednn"),
    pytest.param(with_onednn, True, id="onednn blocked"),
    *(
        pytest.param(with_gpu(precision), True, marks=pytest.mark.gpu, id=f"cuda {precision}")
        for precision in ("fp32", "tf32", "fp16", "bf16")
    ),
    pytest.param(with_gpu("fp32"), False, marks=pytest.mark.gpu, id="cuda row-major"),
]


def where(backend: Any, row: Row, *, flexible: bool) -> dict[str, np.ndarray]:
    """Which elements of the outputs are NaN."""
    name, tensors, settings = row
    backend.random = STATE
    found = run_call(backend, name, tensors, settings, flexible=flexible)
    return {
        argument: np.isnan(part)
        for argument, values in found.items()
        for part in (values if isinstance(values, list) else [values])
        if part is not None and argument not in ("index", "max_input")
    }


def check(make: Callable[[], Any], row: Row, *, flexible: bool) -> None:
    wanted = where(Cpu("float64"), row, flexible=False)
    assert any(each.any() for each in wanted.values())
    found = where(make(), row, flexible=flexible)
    for argument, each in wanted.items():
        np.testing.assert_array_equal(found[argument], each, argument)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("make", "flexible"), VARIANTS)
def test_it_shows(row: str, make: Callable[[], Any], flexible: bool) -> None:
    if make is with_onednn and ROWS[row][0] == HIDDEN:
        pytest.skip("oneDNN has nothing that shows it")
    check(make, ROWS[row], flexible=flexible)


@needs_compilers
@pytest.mark.parametrize(
    ("row", "flexible"),
    [(row, free) for row in ROWS for free in (False, True)[: 1 + ("pool" in ROWS[row][0])]],
)
def test_it_shows_on_an_emulated_gpu(
    row: str, flexible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(lambda: emulate(monkeypatch, "fp32"), ROWS[row], flexible=flexible)


@needs_compilers
@pytest.mark.parametrize("keeps", [True, False])
def test_a_library_that_hides_it_is_left_out(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As cuBLASLt's ReLU does in fp16: then the ReLU is a pass of our own."""
    backend = emulate(monkeypatch, "bf16")
    if not keeps:
        backend.products.relu = np.fmax
    name, tensors, settings = ROWS["a ReLU behind a 1x1 convolution"]
    runner = Runner(backend)
    runner.record(name, tensors, settings)
    runner.prepare()()
    chosen, _, _ = runner.calls[0].implementation.partition(":")
    assert chosen == ("cublaslt" if keeps else "cublaslt alone")
    assert np.isnan(runner.read(tensors["y"])).any()


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_what_may_be_chosen_shows_it(precision: str, kernel: int) -> None:
    """Of a size for libraries: whichever candidate is the fastest."""
    x = random.standard_normal((2, 64, 14, 14))
    x[CHANNEL] = NAN
    window = {"stride": [1, 1], "pad": [kernel // 2] * 2, "dilation": [1, 1], "group": 1}
    row = product("convolution", x, (256, 64, kernel, kernel), (2, 256, 14, 14), **window)
    check(with_gpu(precision), row, flexible=True)
