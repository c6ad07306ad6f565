"""Sums that convolutions make of their outputs for batch normalization, by whichever candidate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda, tuned
from osucaffe.backends.tensor import Tensor
from tests.backends.running import Output, Runner, Spec

from .layers import Layer, square
from .test_layers import Every

LAYERS = {
    "1x1": square((6, 32, 15, 15), (128, 32, 1, 1), 1, 0),
    "1x1, many outputs": square((3, 64, 9, 9), (1024, 64, 1, 1), 1, 0),
    "3x3": square((4, 64, 13, 13), (64, 64, 3, 3), 1, 1),
    "3x3, 48 outputs": square((4, 16, 13, 13), (48, 16, 3, 3), 1, 1),
    "strided": square((5, 32, 14, 14), (64, 32, 1, 1), 2, 0),
    "images": square((4, 3, 64, 64), (64, 3, 7, 7), 2, 3),
    "one pixel": square((64, 64, 1, 1), (32, 64, 1, 1), 1, 0),
}


def run(backend: Any, layer: Layer) -> tuple[np.ndarray, list[np.ndarray]]:
    """The output of a convolution, and its statistics: the mean, the rate, and the past."""
    draw = np.random.default_rng(1)
    x, w, b = (np.float32(draw.normal(size=size)) for size in (layer.x, layer.w, layer.y[1:2]))
    b[::3] += 200  # far from 0, beside what their numbers differ by
    channels = layer.y[1:2]
    past = [np.zeros(size, np.float32) for size in (channels, channels, (1,))]
    y, mean, inv_std = Output(layer.y), Output(channels), Output(channels)
    runner = Runner(backend)
    given: dict[str, Spec] = {"x": x, "w": w, "b": b, "y": y}
    runner.record("convolution", given, layer.window)
    names = ("running_mean", "running_variance", "running_weight")
    statistics: dict[str, Spec] = {"x": y, "mean": mean, "inv_std": inv_std}
    statistics |= dict(zip(names, past, strict=True))
    runner.record("batch_norm_statistics", statistics, {"eps": 1e-3, "momentum": 0.5})
    sums = Tensor(channels, flexible=True)
    spec = Output(channels)
    runner.tensors[id(spec)] = spec, sums
    runner.calls[0].sums = runner.calls[1].sums = sums
    runner.prepare()()
    return runner.read(y), [runner.read(each) for each in (mean, inv_std, *past)]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("name", LAYERS)
def test_statistics_are_of_what_is_stored(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "IMPLICIT_GEMM_MIN_WORK", 0)
    backend, every, failed, tried = Cuda(precision=precision), Every(monkeypatch, False), [], set()
    while every.number < every.count:
        every.names.clear()
        y, found = run(backend, LAYERS[name])
        tried |= {each.split(" ")[2] for each in every.names}
        values = y.astype(np.float64)
        mean, variance = values.mean((0, 2, 3)), values.var((0, 2, 3))
        count = values[:, 0].size
        rounding = 4 * np.finfo(np.float32).eps * np.sqrt(variance.max())  # of means near 0
        wanted = [mean, 1 / np.sqrt(variance + 1e-3), mean, variance * count / (count - 1), [1]]
        for label, got, expected in zip(
            ("mean", "inv_std", "past mean", "past variance", "weight"), found, wanted, strict=True
        ):
            atol = max(2e-6, rounding) if "mean" in label else 2e-6
            try:
                np.testing.assert_allclose(got, expected, rtol=2e-5, atol=atol, err_msg=label)
            except AssertionError as error:
                failed.append(f"{label}: {every.names} {error}")
        every.number += 1
    assert not failed, failed[0]
    if precision in ("bf16", "fp16") and "48" not in name and name != "strided":
        assert "implicit_gemm:" in tried or "implicit_gemm" in tried
