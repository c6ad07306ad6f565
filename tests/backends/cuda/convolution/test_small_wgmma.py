"""Small convolutions by warpgroups: the kernel's addresses, on the CPU in lockstep."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda.convolution import small_wgmma
from osucaffe.backends.cuda.convolution.small_mma import Small
from osucaffe.backends.cuda.layout import Layout
from osucaffe.backends.tensor import Shape, Tensor

from ..devices import H200
from ..lockstep import as_text, compiled, defines

HEADER = Path(__file__).parent.parent / "small_wgmma_lockstep.h"
CONVOLUTIONS = {
    "several planes": ((2, 8, 9, 12), 20, (3, 3), (1, 1)),
    "odd planes": ((1, 12, 10, 8), 16, (3, 2), (1, 0)),
    "three channels": ((2, 3, 17, 16), 10, (5, 5), (2, 2)),
    "uneven": ((1, 10, 8, 9), 13, (2, 3), (0, 1)),
}
"""x, outputs, kernel, pad"""


def placed(values: np.ndarray, *, last: bool = True) -> tuple[Tensor, np.ndarray]:
    """A tensor, and its memory."""
    tensor = Tensor(values.shape, flexible=True)
    tensor.layout = Layout(values.shape, "float32", last)
    return tensor, np.array(np.moveaxis(values, 1, -1) if last else values, np.float32, order="C")


def in_lockstep(macros: dict[str, Any], folder: Path) -> Any:
    """A function of the CPU that runs the kernel compiled for these macros."""
    had = "MULTIPLY", "T"  # by the header, but for THREADS
    kept = {name: value for name, value in macros.items() if not name.startswith(had)}
    text = f"""#include "{HEADER}"
{defines(kept | {"THREADS": macros["THREADS"]})}
{as_text("small_wgmma")}
extern "C" void run(const float* x, const float* w, const float* b, const float* relu_output,
                    float* y, const int* grid) {{
    run_blocks({{grid[0], grid[1], grid[2]}}, {{THREADS, 1, 1}},
               [=] {{ correlate(x, w, b, relu_output, y, 0.5f); }});
}}"""
    return compiled(text, folder)


def correlated(x: np.ndarray, w: np.ndarray, pad: Sequence[int]) -> np.ndarray:
    """x correlated with w, by its definition."""
    padded = np.pad(x, ((0, 0), (0, 0), (pad[0], pad[0]), (pad[1], pad[1])))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("flipped", [False, True], ids=["outputs", "images"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_kernel_in_lockstep(
    name: str, flipped: bool, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sums of small whole numbers are exact, in whatever order."""
    monkeypatch.setattr(small_wgmma, "ONE_STAGE", number << 10)
    compiled: dict[str, Any] = {}
    monkeypatch.setattr(small_wgmma, "kernel", lambda *_, **macros: compiled.update(macros))
    monkeypatch.setattr(small_wgmma, "launch", lambda *_, **__: None)
    images, outputs, kernel, pad = CONVOLUTIONS[name]
    extents = (images[2 + i] + 2 * pad[i] - kernel[i] + 1 for i in range(2))
    small = Small(images, (images[0], outputs, *extents), kernel, pad, "float32")
    filters: Shape = (outputs, images[1], *kernel)
    if flipped:
        small = small.transposed
    generator = np.random.default_rng(number)
    x, w, b, relu_output = (
        generator.integers(-4, 5, size=size).astype(np.float32)
        for size in (small.x, filters, small.y[1:2], small.y)
    )
    config = small_wgmma.configs(H200, small, flipped=flipped)[number - 1]
    inputs, x_memory = placed(x, last=small.x[1] % 2 == 0)
    weights, w_memory = placed(w)
    mask, mask_memory = placed(relu_output)
    y, memory = placed(np.full(small.y, np.nan))
    masked = mask if number else None
    small_wgmma.correlate(small, config, inputs, weights, None, masked, y, 0.5)
    run = in_lockstep(compiled, tmp_path)
    given = (x_memory, w_memory, b, mask_memory, memory)
    run(*(ctypes.c_void_p(each.ctypes.data) for each in given), (ctypes.c_int * 3)(*config.grid))
    if flipped:
        w = w.swapaxes(0, 1)[:, :, ::-1, ::-1]
    wanted = correlated(x, w, small.pad) + b[:, None, None]
    wanted = np.where(wanted > 0, wanted, 0.5 * wanted)
    if number:
        wanted = np.where(relu_output > 0, wanted, 0)
    np.testing.assert_array_equal(np.moveaxis(memory, -1, 1), wanted)
