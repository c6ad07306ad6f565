"""Folded images: the kernel's places, on the CPU."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cuda.convolution.space_to_depth import SpaceToDepth
from osucaffe.backends.cuda.runtime.compile import read

from ..lockstep import compiled, defines
from .layers import Layer, square

HEADER = Path(__file__).parent.parent / "lockstep.h"
CASES = {
    "AlexNet": (square((2, 3, 43, 43), (8, 3, 11, 11), 4, 0), 1),
    "GoogLeNet": (square((2, 3, 16, 16), (8, 3, 7, 7), 2, 3), 1),
    "pixels": (square((1, 3, 16, 16), (8, 3, 7, 7), 2, 3), 4),
    "uneven": (Layer((2, 1, 19, 14), (8, 1, 4, 5), (3, 2), (0, 1)), 1),
}
"""Layers, and neighbours of the output that become channels."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_images(name: str, channels_last: bool, tmp_path: Path) -> None:
    layer, pixels = CASES[name]
    folding = SpaceToDepth(layer.problem, pixels, "float32")
    n, channels, rows, columns = folding.folded.x
    _, c, h, w = layer.x
    macros = {
        "S": "float", "T": "float", "VEC": 4, "FH": rows, "FW": columns, "BW": folding.block[1],
        "FOLDED": channels, **layer.problem.macros,
    }  # fmt: skip
    kernel = read("space_to_depth.cu").partition("__device__ __forceinline__ int kernel_row")[0]
    text = f"""#include "{HEADER}"
#define FOR_EACH(count) for (int64_t id = threadIdx.x; id < (count); id += 64)
inline float to_float(float x) {{ return x; }}
template <typename E, int N> void store(E* to, const float (&from)[N]) {{
    memcpy(to, from, sizeof from);
}}
{defines(macros)}{kernel}
extern "C" void run(const float* x, float* y, int64_t pixels, int h, int w, int64_t sn, int64_t sc,
                    int64_t sh, int64_t sw) {{
    run_blocks({{1, 1, 1}}, {{64, 1, 1}},
               [=] {{ fold_images(x, y, pixels, h, w, sn, sc, sh, sw); }});
}}"""
    x = np.random.default_rng(0).normal(size=layer.x).astype(np.float32)
    memory = np.array(np.moveaxis(x, 1, -1) if channels_last else x, order="C")
    found = np.full((n, rows, columns, channels), np.nan, np.float32)
    distances = (h * w * c, 1, w * c, c) if channels_last else (c * h * w, h * w, w, 1)
    compiled(text, tmp_path)(
        ctypes.c_void_p(memory.ctypes.data), ctypes.c_void_p(found.ctypes.data),
        ctypes.c_int64(n * rows * columns), h, w, *map(ctypes.c_int64, distances),
    )  # fmt: skip
    down, across = folding.block
    wanted = np.zeros((n, c, rows * down, columns * across), np.float32)
    top, left = layer.pad
    high, wide = min(h, rows * down - top), min(w, columns * across - left)
    wanted[:, :, top : top + high, left : left + wide] = x[:, :, :high, :wide]
    wanted = wanted.reshape(n, c, rows, down, columns, across).transpose(0, 2, 4, 3, 5, 1)
    wanted = wanted.reshape(n, rows, columns, down * across * c)
    np.testing.assert_array_equal(found[..., : wanted.shape[-1]], wanted)
    assert not found[..., wanted.shape[-1] :].any()
