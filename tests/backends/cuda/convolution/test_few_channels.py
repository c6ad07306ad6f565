"""Convolutions of images with few channels: on the CPU, on GPUs, and where the kernel serves."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.convolution.few_channels import Config, is_worth_trying, macros
from osucaffe.backends.cuda.convolution.problem import Problem

from ... import reference
from ...running import Output, run_call
from ..devices import DEVICES
from ..lockstep import as_text, compiled, defines
from ..simulated import force, simulate, with_libraries
from .test_layers import TOLERANCES, close

HEADERS = [Path(__file__).parent.parent / f"{name}.h" for name in ("lockstep", "mma_lockstep")]
RUN = """extern "C" void run(const float* x, const float* w, const float* b, float* y,
                    int tiles, const int64_t* strides, int blocks, int across) {
    run_blocks({blocks, across, 1}, {THREADS, 1, 1}, [=] {
        few_channels(x, w, b, y, tiles, strides[0], strides[1], strides[2], strides[3], 0.1f);
    });
}"""


def problem(x: tuple[int, ...], outputs: int, kernel: tuple[int, int], *window: int) -> Problem:
    stride, pad = window
    out = [(n + 2 * pad - k) // stride + 1 for n, k in zip(x[2:], kernel, strict=True)]
    pairs = (stride, stride), (pad, pad), (1, 1)
    return Problem(x, (outputs, x[1], *kernel), (x[0], outputs, *out), pairs, 1)


PROBLEMS = {
    "as VGG's": (problem((2, 3, 9, 20), 32, (3, 3), 1, 1), Config(16, 16), False),
    "stride 2, channels last": (problem((2, 4, 12, 70), 16, (2, 4), 2, 1), Config(16, 32), True),
    "one channel, two blocks": (problem((1, 1, 17, 8), 32, (3, 1), 1, 0), Config(16, 16), False),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", PROBLEMS)
def test_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    found, config, last = PROBLEMS[name]
    defined = macros(found, "float32", config, "float32")
    del defined["MMA"]
    helpers = """inline float to_float(float x) { return x; }
template <typename E, int N> void store(E* to, const float (&from)[N]) {
    memcpy(to, from, sizeof from);
}
"""
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    function = compiled(
        includes + helpers + defines(defined) + as_text("few_channels") + RUN, tmp_path
    )
    generator = np.random.default_rng(1)
    x, w = (generator.standard_normal(shape) for shape in (found.x, found.w))
    b = generator.standard_normal(found.y[1])
    images = np.full((*x.shape[:2], 3, x.shape[2] + 5, x.shape[3]), np.nan, np.float32)
    images = images[:, :, 1, 2:-3]  # beside it lies what must not be read
    if last:
        images = np.moveaxis(np.full((*x.shape[:1], *x.shape[2:], 4), np.nan, np.float32), -1, 1)
    images[:] = x
    filters = np.ascontiguousarray(np.moveaxis(w, 1, -1), np.float32)
    bias, y = b.astype(np.float32), np.full(found.y, np.nan, np.float32)
    y = np.full((found.y[0], *found.y[2:], found.y[1]), np.nan, np.float32)
    rows, columns = defined["ROWS"], config.columns
    tiles = found.y[0] * -(-found.y[2] // rows) * -(-found.y[3] // columns)
    strides = np.array(images.strides, np.int64) // 4
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (images, filters, bias, y)]
    blocks = found.y[1] // config.own
    function(*pointers, tiles, ctypes.c_void_p(strides.ctypes.data), 2, blocks)
    stride, pad, dilation = found.window
    wanted = reference.convolution(x, w, b, stride=stride, pad=pad, dilation=dilation, group=1)
    wanted = np.moveaxis(np.where(wanted > 0, wanted, 0.1 * wanted), 1, -1)
    np.testing.assert_allclose(y, wanted, atol=1e-5)


CASES = {
    "VGG's first": ((4, 3, 224, 224), 64, 3, 1, 1),
    "MobileNet's first": ((4, 3, 225, 223), 32, 3, 2, 1),
    "96 outputs": ((3, 1, 200, 210), 96, 3, 1, 0),
}


def run(case: str, backend: Any) -> Any:
    """The output of a convolution with a bias and a ReLU."""
    images, outputs, kernel, stride, pad = CASES[case]
    found = problem(images, outputs, (kernel, kernel), stride, pad)
    generator = np.random.default_rng(1)
    x, w, b = (generator.normal(size=size) for size in (found.x, found.w, (outputs,)))
    window = {"stride": [stride] * 2, "pad": [pad] * 2, "dilation": [1, 1], "group": 1}
    tensors = {"x": x, "w": w, "b": b, "y": Output(found.y)}
    return run_call(backend, "convolution", tensors, window | {"relu": 0.0}, flexible=True)["y"]


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_all_configs_compile(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    for number in range(4):
        with monkeypatch.context() as patch:
            force(patch, "few_channels", number)
            run("VGG's first", with_libraries(Cuda(precision=precision)))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_all_configs_agree(case: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Cuda(precision=precision)
    wanted = run(case, Cpu())
    for number in range(4):
        with monkeypatch.context() as patch:
            force(patch, "few_channels", number)
            close(run(case, backend), wanted, TOLERANCES[precision])


def test_where_it_is_asked() -> None:
    vgg = problem((64, 3, 224, 224), 64, (3, 3), 1, 1)
    for gpu in DEVICES.values():
        for precision, dtype in ("tf32", "float32"), ("bf16", "bfloat16"):
            assert is_worth_trying(gpu, precision, dtype, vgg) == gpu.has_mma
        assert not is_worth_trying(gpu, "fp32", "float32", vgg)
    others = [
        problem((64, 5, 224, 224), 64, (3, 3), 1, 1),
        problem((64, 3, 224, 224), 60, (3, 3), 1, 1),
        problem((64, 3, 224, 224), 64, (7, 7), 2, 3),
        problem((1, 3, 32, 32), 64, (3, 3), 1, 1),
    ]
    for each in others:
        assert not is_worth_trying(DEVICES["H200"], "bf16", "bfloat16", each)
