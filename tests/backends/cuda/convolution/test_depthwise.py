"""The kernels of depthwise convolution, run on the CPU, for every configuration that is tried."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cuda.convolution.depthwise import Depthwise, serves
from osucaffe.backends.cuda.convolution.problem import Problem

from ... import reference
from ..lockstep import as_text, compiled, defines

HEADER = Path(__file__).parent.parent / "lockstep.h"
RUN = """extern "C" void run(int kernel, const float* a, const float* b, const float* c, float* d,
                    int64_t pixels, int blocks, int across) {
    run_blocks({blocks, across, 1}, {LANES, ROWS, 1}, [=] {
        if (kernel == 0) depthwise(a, b, c, d, pixels, 0.1f);
        if (kernel == 1) depthwise_data(a, b, c, d, pixels);
    });
}"""


def problem(
    channels: int, extents: tuple[int, int], kernel: tuple[int, int], *window: int
) -> Problem:
    stride, pad, dilation = window
    out = [
        (n + 2 * pad - dilation * (k - 1) - 1) // stride + 1
        for n, k in zip(extents, kernel, strict=True)
    ]
    pairs = (stride, stride), (pad, pad), (dilation, dilation)
    return Problem(
        (2, channels, *extents), (channels, 1, *kernel), (2, channels, *out), pairs, channels
    )


PROBLEMS = {
    "two blocks across": (problem(40, (7, 5), (3, 3), 1, 1, 1), 0),
    "stride 2, odd channels": (problem(5, (6, 6), (5, 5), 2, 2, 1), 0),
    "stride 3, dilated": (problem(72, (11, 10), (3, 2), 3, 3, 2), -1),
}


def last(values: np.ndarray) -> np.ndarray:
    """Channels last, in float32."""
    return np.ascontiguousarray(np.moveaxis(values, 1, -1), np.float32)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", PROBLEMS)
def test_kernels(name: str, tmp_path: Path) -> None:
    found, number = PROBLEMS[name]
    assert serves(found)
    own = Depthwise(found, "forward", "float32")
    config = list(own._configs)[number]
    channels = found.x[1]
    function = compiled(
        f"""#include "{HEADER}"
inline float to_float(float x) {{ return x; }}
template <typename E, int N> void load(const E* from, float (&to)[N]) {{
    memcpy(to, from, sizeof to);
}}
template <typename E, int N> void store(E* to, const float (&from)[N]) {{
    memcpy(to, from, sizeof from);
}}
{defines(own.macros(config))}{as_text("depthwise")}{RUN}""",
        tmp_path,
    )

    def run(kernel: int, a, b, c, d, pixels: int, blocks: int) -> None:
        given = [
            each if each is None else ctypes.c_void_p(each.ctypes.data) for each in (a, b, c, d)
        ]
        across = -(-channels // (config.vector * config.lanes))
        function(kernel, *given, ctypes.c_int64(pixels), blocks, across)

    generator = np.random.default_rng(1)
    x, w, dy = (generator.standard_normal(shape) for shape in (found.x, found.w, found.y))
    b = generator.standard_normal(channels)
    stride, pad, dilation = found.window
    settings = {"stride": stride, "pad": pad, "dilation": dilation, "group": found.group}
    x_last, dy_last, filters = last(x), last(dy), w.astype(np.float32)

    y = np.full(dy_last.shape, np.nan, np.float32)
    bias = b.astype(np.float32)
    run(0, x_last, filters, bias, y, y.size // channels, 2)
    wanted = reference.convolution(x, w, b, **settings)
    np.testing.assert_allclose(y, last(np.where(wanted > 0, wanted, 0.1 * wanted)), atol=1e-5)

    # The gradient tells how much the sum of y * dy moves with the images.
    dx = np.full(x_last.shape, np.nan, np.float32)
    run(1, dy_last, filters, x_last, dx, dx.size // channels, 2)
    for _ in range(3):
        probe = generator.standard_normal(found.x)
        moved = np.where(x > 0, probe, 0)
        slope = (reference.convolution(moved, w, None, **settings) * dy).sum()
        assert (dx * last(probe)).sum() == pytest.approx(slope, rel=1e-4)


def test_what_is_served() -> None:
    assert not serves(Problem((1, 8, 4, 4), (16, 1, 3, 3), (1, 16, 4, 4), ((1, 1),) * 3, 8))
    assert not serves(Problem((1, 8, 4, 4), (8, 2, 3, 3), (1, 8, 4, 4), ((1, 1),) * 3, 4))
    assert not serves(problem(8, (64, 64), (10, 10), 1, 0, 1))
