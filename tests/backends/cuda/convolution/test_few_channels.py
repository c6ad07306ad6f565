"""The kernel for images with few channels, run on the CPU, and where it serves."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cuda.convolution.few_channels import Config, is_worth_trying, macros
from tests.backends import reference

from ..devices import DEVICES
from ..lockstep import HEADERS, as_text, compiled, defines
from ..simulated import simulate
from .layers import LAYERS, square

INCLUDED = [HEADERS / f"{name}.h" for name in ("lockstep", "mma_lockstep")]
RUN = """extern "C" void run(const float* x, const float* w, const float* b, float* y,
                    int tiles, const int64_t* strides, int blocks, int across) {
    run_blocks({blocks, across, 1}, {THREADS, 1, 1}, [=] {
        few_channels(x, w, b, y, tiles, strides[0], strides[1], strides[2], strides[3], 0.1f);
    });
}"""


PROBLEMS = {
    "as VGG's": (square((2, 3, 9, 20), (32, 3, 3, 3), 1, 1), Config(16, 16), False),
    "stride 2, channels last": (square((2, 4, 12, 70), (16, 4, 2, 4), 2, 1), Config(16, 32), True),
    "one channel, two blocks": (square((1, 1, 17, 8), (32, 1, 3, 1), 1, 0), Config(16, 16), False),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", PROBLEMS)
def test_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    layer, config, last = PROBLEMS[name]
    found = layer.problem
    defined = macros(found, "float32", config, "float32")
    del defined["MMA"]
    helpers = """inline float to_float(float x) { return x; }
template <typename E, int N> void store(E* to, const float (&from)[N]) {
    memcpy(to, from, sizeof from);
}
"""
    includes = "".join(f'#include "{header}"\n' for header in INCLUDED)
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
    blocks = found.y[1] // config.block_k
    function(*pointers, tiles, ctypes.c_void_p(strides.ctypes.data), 2, blocks)
    stride, pad, dilation = found.window
    wanted = reference.convolution(x, w, b, stride=stride, pad=pad, dilation=dilation, group=1)
    wanted = np.moveaxis(np.where(wanted > 0, wanted, 0.1 * wanted), 1, -1)
    np.testing.assert_allclose(y, wanted, atol=1e-5)


def test_where_it_is_asked() -> None:
    vgg = LAYERS["VGG conv1_1"].problem
    for gpu in DEVICES.values():
        for precision, dtype in ("tf32", "float32"), ("bf16", "bfloat16"):
            assert is_worth_trying(gpu, precision, dtype, vgg) == gpu.has_mma
        assert not is_worth_trying(gpu, "fp32", "float32", vgg)
    others = [
        square((64, 5, 224, 224), (64, 5, 3, 3), 1, 1),
        square((64, 3, 224, 224), (60, 3, 3, 3), 1, 1),
        square((64, 3, 224, 224), (64, 3, 7, 7), 2, 3),
        square((1, 3, 32, 32), (64, 3, 3, 3), 1, 1),
    ]
    for each in others:
        assert not is_worth_trying(DEVICES["H200"], "bf16", "bfloat16", each.problem)
