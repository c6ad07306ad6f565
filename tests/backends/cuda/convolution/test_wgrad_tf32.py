"""Gradients of filters in tf32 by Hopper's instructions: on the CPU in lockstep, on a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.convolution import wgmma, wgrad_tf32
from osucaffe.backends.cuda.convolution.wgrad_tf32 import (
    CONSUMERS,
    TRIED,
    Stage,
    Tile,
    TileConfig,
    WeightGradient,
)
from osucaffe.backends.cuda.runtime.driver import Box

from ...running import Output, run_call
from ..devices import H200
from ..lockstep import as_text, compiled, defines
from ..simulated import force, simulate, with_libraries
from .test_layers import TOLERANCES, close

HEADER = Path(__file__).parent.parent / "wgrad_tf32_lockstep.h"
Shape = tuple[int, ...]
Layer = tuple[Shape, Shape, Shape, Shape, int]
"""x, filters, stride, pad, groups"""

ODD: dict[str, Layer] = {
    "3x3": ((5, 16, 7, 5), (24, 16, 3, 3), (1, 1), (1, 1), 1),
    "groups": ((3, 16, 6, 6), (48, 8, 3, 3), (1, 1), (1, 1), 2),
    "2x5": ((2, 40, 9, 12), (40, 40, 2, 5), (1, 1), (1, 3), 1),
    "wide": ((1, 24, 3, 90), (72, 24, 1, 3), (1, 1), (0, 0), 1),
    "image": ((2, 3, 23, 27), (8, 3, 7, 7), (2, 2), (2, 1), 1),
}
REAL: dict[str, Layer] = {
    "AlexNet conv1": ((4, 3, 227, 227), (96, 3, 11, 11), (4, 4), (0, 0), 1),
    "AlexNet conv2": ((4, 96, 27, 27), (256, 48, 5, 5), (1, 1), (2, 2), 2),
    "AlexNet conv3": ((4, 256, 13, 13), (384, 256, 3, 3), (1, 1), (1, 1), 1),
    "AlexNet conv4": ((4, 384, 13, 13), (384, 192, 3, 3), (1, 1), (1, 1), 2),
    "AlexNet conv5": ((4, 384, 13, 13), (256, 192, 3, 3), (1, 1), (1, 1), 2),
    "GoogLeNet conv2": ((4, 64, 56, 56), (192, 64, 3, 3), (1, 1), (1, 1), 1),
    "GoogLeNet 3b 5x5": ((4, 32, 28, 28), (96, 32, 5, 5), (1, 1), (2, 2), 1),
    "GoogLeNet 4b 5x5": ((4, 24, 14, 14), (64, 24, 5, 5), (1, 1), (2, 2), 1),
    "GoogLeNet 4e 3x3": ((4, 160, 14, 14), (320, 160, 3, 3), (1, 1), (1, 1), 1),
    "VGG-16 conv1_2": ((1, 64, 224, 224), (64, 64, 3, 3), (1, 1), (1, 1), 1),
}
DIRECT = [name for name, layer in (ODD | REAL).items() if layer[2] == (1, 1)]
"""Those whose images are not folded first."""


@pytest.fixture(autouse=True)
def worth_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are."""
    monkeypatch.setattr(wgrad_tf32, "LEAST_WORK", 0)


def extents(layer: Layer) -> Shape:
    """Shape of the output."""
    x, w, stride, pad, _ = layer
    return x[0], w[0], *((x[2 + i] + 2 * pad[i] - w[2 + i]) // stride[i] + 1 for i in range(2))


def gradient(layer: Layer) -> WeightGradient:
    x, w, _, pad, group = layer
    return WeightGradient(x, w, extents(layer), ((1, 1), pad, (1, 1)), group)


def one_of_each_kind(found: WeightGradient) -> list[TileConfig]:
    """With all rows of the kernel or one, of rows or parts of them, by more consumers or fewer."""
    kinds = itertools.product((found.kernel[0], 1), (False, True))
    result = []
    for (rows, several), consumers in zip(kinds, 2 * CONSUMERS, strict=True):
        tiles = [Tile(o, part, rows, consumers) for o in (64, 32) for part in (48, 32, 16)]
        fitting = [(tile, held) for tile in tiles if (held := found._registers(tile))]
        stages = [stage for stage in found._stages() if (stage.rows > 1) == several]
        made = (
            found._config(H200, stage, tile, held)
            for (tile, held), stage in itertools.product(fitting, stages[::-1])
        )
        result += [config for _, config in itertools.islice(filter(None, made), 1)]
    return result


def in_lockstep(found: WeightGradient, config: TileConfig, folder: Path) -> Any:
    """A function of the CPU that runs the kernels for this config."""
    all_macros = {**wgmma.macros(found), **config.macros, "BATCH": found.x[0]}
    macros = {name: value for name, value in all_macros.items() if not name.startswith("MULTIPLY(")}
    text = f"""#include "{HEADER}"
{defines(macros)}{as_text("wgrad_tf32")}
extern "C" void run(const void* x, const void* maps, float* partial, float* dw, int add,
                    const int* grid, const int* finish) {{
    TensorMap of_x, of_maps;
    memcpy(&of_x, x, sizeof of_x), memcpy(&of_maps, maps, sizeof of_maps);
    run_blocks({{grid[0], grid[1], 1}}, {{THREADS, 1, 1}},
               [=] {{ filter_products(of_x, of_maps, partial); }});
    run_blocks({{finish[0], finish[1], finish[2]}}, {{32, 8, 1}},
               [=] {{ add_splits(partial, dw, grid[1], add); }});
}}"""
    return compiled(text, folder)


def described(box: Box, memory: np.ndarray) -> np.ndarray:
    """An array as the stand-in for a GPU wants it."""
    return np.array([memory.ctypes.data, *box.extents, *box.strides, *box.box, 0], np.uint64)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", [name for name in ODD if name in DIRECT])
def test_kernels_in_lockstep(name: str, tmp_path: Path) -> None:
    """Sums of small whole numbers are exact, in whatever order."""
    layer = ODD[name]
    images, filters, *_, group = layer
    found = gradient(layer)
    configs = one_of_each_kind(found)
    assert len(configs) >= 2
    for number, config in enumerate(configs):
        generator = np.random.default_rng(number)
        x, dy, before = (
            generator.integers(-4, 5, size=size).astype(np.float32)
            for size in (images, extents(layer), filters)
        )
        given = [np.array(np.moveaxis(each, 1, -1), order="C") for each in (x, dy, before)]
        maps = [described(*each) for each in zip(found.boxes(config), given, strict=False)]
        grid = config.grid[0], max(1, config.grid[1] // 3)  # more stages than slots
        partial = np.full(grid[1] * math.prod(filters), np.nan, np.float32)
        blocks = -(-found.outputs // 32), -(-found.columns // 8), group
        addresses = [ctypes.c_void_p(each.ctypes.data) for each in (*maps, partial, given[2])]
        folder = tmp_path / str(number)
        folder.mkdir()
        in_lockstep(found, config, folder)(
            *addresses, 1, (ctypes.c_int * 2)(*grid), (ctypes.c_int * 3)(*blocks)
        )
        assert not np.isnan(partial).any()
        wanted = before + reference(x, dy, layer)
        np.testing.assert_array_equal(np.moveaxis(given[2], -1, 1), wanted)


def reference(x: np.ndarray, dy: np.ndarray, layer: Layer) -> np.ndarray:
    """The gradient of the filters with stride 1, by its definition."""
    _, filters, _, pad, group = layer
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
                i : i + rows,
                j : j + columns,
            ]
            result[part * outputs : (part + 1) * outputs, :, i, j] = np.einsum(
                "nohw,nchw->oc", maps, patch
            )
    return result


def run(
    layer: Layer, make: Callable[[], Any], accumulates: tuple[str, ...] = ()
) -> tuple[np.ndarray, ...]:
    """Gradients of filters and biases, added to what was there where that is wanted."""
    images, filters, stride, pad, group = layer
    generator = np.random.default_rng(1)
    shapes = images, extents(layer), filters, filters[:1]
    x, dy, dw, db = (generator.normal(size=size) for size in shapes)
    tensors = {"x": x, "dy": dy, "dw": dw * 9, "db": db * 9}
    if not accumulates:
        tensors |= {"dw": Output(filters), "db": Output(filters[:1])}
    settings = {"stride": stride, "pad": pad, "dilation": (1, 1), "group": group}
    found = run_call(
        make(), "convolution_backward_filter", tensors,
        {name: value if name == "group" else list(value) for name, value in settings.items()},
        accumulates=accumulates,
    )  # fmt: skip
    return found["dw"], found["db"]


@pytest.mark.parametrize("number", range(TRIED))
@pytest.mark.parametrize("name", ["AlexNet conv1", "AlexNet conv2", "GoogLeNet 4e 3x3"])
def test_all_configs_compile(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    force(monkeypatch, "wgrad_tf32", number)
    run(
        REAL[name],
        lambda: with_libraries(Cuda(precision="tf32")),
        ("dw", "db") if number % 2 else (),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("accumulates", [(), ("dw", "db")], ids=["alone", "added"])
@pytest.mark.parametrize("name", ODD | REAL)
def test_all_configs_agree(
    name: str, accumulates: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Cuda(precision="tf32")
    if not backend.properties.has_wgmma:
        pytest.skip("not a Hopper GPU")
    layer = (ODD | REAL)[name]
    wanted = run(layer, Cpu, accumulates)
    for number in range(TRIED):
        force(monkeypatch, "wgrad_tf32", number)
        found = run(layer, lambda: backend, accumulates)
        for mine, right in zip(found, wanted, strict=True):
            close(mine, right, TOLERANCES["tf32"])


@pytest.mark.parametrize("name", DIRECT)
def test_configs_cover_everything(name: str) -> None:
    layer = (ODD | REAL)[name]
    for batch in 1, 256:
        found = gradient(((batch, *layer[0][1:]), *layer[1:]))
        configs = found.configs(H200)
        assert configs
        for stage, tile, grid, shared, registers in map(dataclasses.astuple, configs):
            stage, tile = Stage(*stage), Tile(*tile)
            parts = -(-found.outputs // tile.outputs) * -(-found.channels // tile.part)
            assert grid[0] == parts * found.kernel[0] // tile.rows * found.group
            stages = -(-found.y[2] // stage.rows) * -(-found.y[3] // stage.wide)
            assert 1 <= grid[1] <= batch * stages
            assert stage.steps * 8 >= (stage.rows - 1) * stage.maps_pitch + stage.wide
            assert shared <= 227 << 10
            assert 128 * (tile.consumers * registers[0] + registers[1]) <= 1 << 16
