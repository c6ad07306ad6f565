"""Gradients of filters by the kernel for large convolutions: on the CPU in lockstep, on a GPU."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda, filter_gradient
from osucaffe.backends.cuda.filter_gradient import Division, FilterGradient
from osucaffe.backends.cuda.kernels import read
from osucaffe.backends.cuda.ways import Way

from ..running import Output, run_call
from .simulated import simulate
from .test_layers import TOLERANCES, close

HEADER = Path(__file__).parent / "lockstep.h"
Shape = tuple[int, ...]
Layer = tuple[Shape, Shape, Shape, Shape, Shape, int]
"""x, filters, stride, pad, dilation, groups"""

ODD: dict[str, Layer] = {
    "3x3": ((5, 16, 7, 5), (24, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "groups": ((3, 16, 6, 6), (48, 8, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "1x1": ((2, 24, 9, 4), (40, 24, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "strided": ((2, 8, 11, 13), (16, 8, 5, 3), (2, 1), (2, 0), (1, 1), 1),
    "dilated": ((1, 8, 12, 10), (8, 8, 3, 3), (1, 2), (2, 1), (2, 1), 1),
    "image": ((2, 3, 23, 27), (8, 3, 7, 7), (2, 2), (2, 1), (1, 1), 1),
}
REAL: dict[str, Layer] = {
    "AlexNet conv1": ((4, 3, 227, 227), (96, 3, 11, 11), (4, 4), (0, 0), (1, 1), 1),
    "AlexNet conv1 folded": ((4, 48, 57, 57), (96, 48, 3, 3), (1, 1), (0, 0), (1, 1), 1),
    "AlexNet conv2": ((4, 96, 27, 27), (256, 48, 5, 5), (1, 1), (2, 2), (1, 1), 2),
    "AlexNet conv3": ((4, 256, 13, 13), (384, 256, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "AlexNet conv4": ((4, 384, 13, 13), (384, 192, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "AlexNet conv5": ((4, 384, 13, 13), (256, 192, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "GoogLeNet conv2": ((4, 64, 56, 56), (192, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "GoogLeNet 3b 5x5": ((4, 32, 28, 28), (96, 32, 5, 5), (1, 1), (2, 2), (1, 1), 1),
    "GoogLeNet 4e 3x3": ((4, 160, 14, 14), (320, 160, 3, 3), (1, 1), (1, 1), (1, 1), 1),
}


def extents(layer: Layer) -> Shape:
    """Shape of the output."""
    x, w, stride, pad, dilation, _ = layer
    return x[0], w[0], *(
        (x[2 + i] + 2 * pad[i] - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    )  # fmt: skip


def gradient(layer: Layer, *, nhwc: bool = True) -> FilterGradient:
    x, w, stride, pad, dilation, group = layer
    _, c, h, wide = x
    strides = (c * h * wide, 1, wide * c, c) if nhwc else (c * h * wide, h * wide, wide, 1)
    return FilterGradient(x, strides, extents(layer), w[2:], stride, pad, dilation, group)


def all_divisions(found: FilterGradient) -> list[Division]:
    """One of each kind of vectors that lanes read, whatever the estimates say."""
    kinds = ((1, 4, 2, 4), (2, 2, 3, 5), (4, 1, 2, 6), (2, 4, 4, 7), (2, 2, 3, 8))
    return [division for kind in kinds for _, division in found._divisions(*kind)]


def in_lockstep(found: FilterGradient, division: Division, folder: Path) -> Any:
    """A function of the CPU that runs the kernels for this division."""
    text = read("filter_gradient.cu")
    before, _, rest = text.partition("// -- instructions")
    kernels = before + rest.partition("// -- kernels")[2].partition("\n")[2]
    kernels = kernels.replace("extern __shared__ float4 shared[];", "")
    lines = "".join(f"#define {name} {value}\n" for name, value in found.macros(division).items())
    calls = """
    extern "C" void run(const float* x, const float* dy, float* partial, int share, float* dw,
                        int add, const int* grid, const int* finish) {
        run_blocks({grid[0], grid[1], 1}, {THREADS, 1, 1},
                   [=] { filter_gradient(x, dy, partial, share); });
        run_blocks({finish[0], finish[1], finish[2]}, {32, 8, 1},
                   [=] { finish_filter_gradient(partial, dw, grid[1], add); });
    }"""
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text(f'#include "{HEADER}"\n{lines}{kernels}{calls}')
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", library, source], check=True
    )
    return ctypes.CDLL(str(library)).run


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("name", ODD)
def test_kernels_in_lockstep(name: str, number: int, tmp_path: Path) -> None:
    """Sums of small whole numbers are exact, in whatever order."""
    layer = ODD[name]
    images, filters, *_, group = layer
    nhwc = number % 2 == 0 or images[1] > 4
    found = gradient(layer, nhwc=nhwc)
    division = all_divisions(found)[number]
    macros = (*division.macros, ("AHEAD", number % 2))
    share = 48 if number < 2 else 112  # less and more than the stages on their way
    grid = division.grid[0], -(-found.pixels // share)
    division = replace(division, share=share, grid=grid, macros=macros)
    generator = np.random.default_rng(number)
    x, dy, before = (
        generator.integers(-4, 5, size=size).astype(np.float32)
        for size in (images, extents(layer), filters)
    )

    def memory(values: np.ndarray, channels_last: bool = True) -> np.ndarray:
        return np.array(np.moveaxis(values, 1, -1) if channels_last else values, order="C")

    given = [memory(x, nhwc), memory(dy), memory(before)]
    partial = np.full(division.grid[1] * math.prod(filters), np.nan, np.float32)
    blocks = -(-found.outputs // 32), -(-found.columns // 8), group
    run = in_lockstep(found, division, tmp_path)
    addresses = [ctypes.c_void_p(each.ctypes.data) for each in (*given, partial)]
    run(
        addresses[0], addresses[1], addresses[3], division.share, addresses[2], 1,
        (ctypes.c_int * 2)(*division.grid), (ctypes.c_int * 3)(*blocks),
    )  # fmt: skip
    wanted = before + reference(x, dy, layer)
    assert not np.isnan(partial).any()
    np.testing.assert_array_equal(np.moveaxis(given[2], -1, 1), wanted)


def reference(x: np.ndarray, dy: np.ndarray, layer: Layer) -> np.ndarray:
    """The gradient of the filters, by its definition."""
    _, filters, stride, pad, dilation, group = layer
    padded = np.pad(x, [(0, 0), (0, 0), (pad[0], pad[0]), (pad[1], pad[1])])
    result = np.zeros(filters)
    rows, columns = dy.shape[2:]
    outputs, channels = filters[0] // group, filters[1]
    for part in range(group):
        maps = dy[:, part * outputs : (part + 1) * outputs]
        for i, j in np.ndindex(*filters[2:]):
            patch = padded[
                :,
                part * channels : (part + 1) * channels,
                i * dilation[0] : i * dilation[0] + (rows - 1) * stride[0] + 1 : stride[0],
                j * dilation[1] : j * dilation[1] + (columns - 1) * stride[1] + 1 : stride[1],
            ]
            result[part * outputs : (part + 1) * outputs, :, i, j] = np.einsum(
                "nohw,nchw->oc", maps, patch
            )
    return result


def force(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let this kernel win, in its division of this number."""

    def measured(call: Any, tensors: Any, makers: Mapping[str, Callable[..., Any]]) -> list[Way]:
        chosen = [*makers.values()][number % len(makers)]
        return [Way(-1.0, lambda: chosen(call, tensors))]

    monkeypatch.setattr(filter_gradient, "measured", measured)
    monkeypatch.setattr(filter_gradient, "LEAST_WORK", 0)


def run(
    layer: Layer, make: Callable[[], Any], accumulates: tuple[str, ...] = ()
) -> tuple[np.ndarray, ...]:
    """Gradients of filters and biases, added to what was there where that is wanted."""
    images, filters, stride, pad, dilation, group = layer
    generator = np.random.default_rng(1)
    shapes = images, extents(layer), filters, filters[:1]
    x, dy, dw, db = (generator.normal(size=size) for size in shapes)
    tensors = {"x": x, "dy": dy, "dw": dw * 9, "db": db * 9}
    if not accumulates:
        tensors |= {"dw": Output(filters), "db": Output(filters[:1])}
    settings = {"stride": stride, "pad": pad, "dilation": dilation, "group": group}
    found = run_call(
        make(), "convolution_backward_filter", tensors,
        {name: value if name == "group" else list(value) for name, value in settings.items()},
        accumulates=accumulates,
    )  # fmt: skip
    return found["dw"], found["db"]


def tried(layer: Layer) -> range:
    """The numbers of the divisions: images of few channels may be folded first."""
    return range(filter_gradient.TRIED * (2 if layer[0][1] <= 4 else 1))


def without_library() -> Cuda:
    """A backend for which cuDNN has no plans."""
    backend = Cuda(precision="tf32")
    backend.cudnn = SimpleNamespace(plan=lambda _: None)  # type: ignore[assignment]
    backend.cublas = SimpleNamespace(algorithm=lambda _: None)  # type: ignore[assignment]
    return backend


@pytest.mark.parametrize("name", ["AlexNet conv1", "AlexNet conv2", "GoogLeNet 4e 3x3"])
def test_all_divisions_compile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    for number in tried(REAL[name]):
        force(monkeypatch, number)
        run(REAL[name], without_library, ("dw", "db") if number % 2 else ())


@pytest.mark.gpu
@pytest.mark.parametrize("accumulates", [(), ("dw", "db")], ids=["alone", "added"])
@pytest.mark.parametrize("name", ODD | REAL)
def test_all_divisions_agree(
    name: str, accumulates: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = (ODD | REAL)[name]
    wanted = run(layer, Cpu, accumulates)
    for number in tried(layer):
        force(monkeypatch, number)
        found = run(layer, without_library, accumulates)
        for mine, right in zip(found, wanted, strict=True):
            close(mine, right, TOLERANCES["tf32"])


@pytest.mark.parametrize("name", ODD | REAL)
def test_divisions_cover_everything(name: str) -> None:
    layer = (ODD | REAL)[name]
    for batch in 1, 256:
        found = gradient(((batch, *layer[0][1:]), *layer[1:]))
        assert found.possible
        for division in found.divisions:
            macros = dict(division.macros)
            outputs = macros["WM"] * macros["MT"] * 16
            columns = macros["WN"] * macros["NT"] * 8
            tiles = -(-found.outputs // outputs) * -(-found.columns // columns) * layer[5]
            assert division.grid[0] == tiles
            assert (division.grid[1] - 1) * division.share < found.pixels
            assert division.grid[1] * division.share >= found.pixels
            assert macros["BLOCKS"] * (division.shared + 1024) <= 228 << 10
            assert found.channels % macros["PART"] == 0
