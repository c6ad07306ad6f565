"""Gradients of filters in tf32 by Hopper's instructions: on the CPU in lockstep; what is tried."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda.convolution import wgrad
from osucaffe.backends.cuda.convolution.wgrad import CONSUMERS, Tile, TileConfig, WgradTf32

from ..devices import H200
from ..lockstep import HEADERS, as_text, compiled, defines
from .layers import HOPPER, ODD_GRADIENTS, Layer, by_cpu, described

HEADER = HEADERS / "hopper_lockstep.h"


def gradient(layer: Layer) -> WgradTf32:
    return WgradTf32.like(layer.problem)


def one_of_each_kind(found: WgradTf32) -> list[TileConfig]:
    """With all rows of the kernel or one, of rows or parts of them, by more consumers or fewer."""
    kinds = itertools.product((found.kernel[0], 1), (False, True))
    result = []
    for (rows, several), consumers in zip(kinds, 2 * CONSUMERS, strict=True):
        tiles = [Tile(o, part, rows, consumers) for o in (64, 32) for part in (48, 32, 16)]
        fitting = filter(found.registers, tiles)
        fit = [stage for stage in found.stages() if (stage.rows > 1) == several]
        made = (
            found.config(H200, stage, tile) for tile, stage in itertools.product(fitting, fit[::-1])
        )
        result += [config for _, config in itertools.islice(filter(None, made), 1)]
    return result


def in_lockstep(macros: dict[str, Any], config: TileConfig, folder: Path) -> Any:
    """A function of the CPU that runs the kernels compiled for these macros."""
    macros = {name: value for name, value in macros.items() if not name.startswith("MULTIPLY(")}
    text = f"""#define LATE_COPIES {int(config.tile.consumers == CONSUMERS[-1])}
#define ELEMENT float
#include "{HEADER}"
{defines(macros)}{as_text("wgrad_tf32")}
extern "C" void run(const void* x, const void* maps, float* partial, float* partial_bias, float* dw,
                    float* db, int add, const int* grid, const int* finish) {{
    TensorMap of_x, of_maps;
    memcpy(&of_x, x, sizeof of_x), memcpy(&of_maps, maps, sizeof of_maps);
    run_blocks({{grid[0], grid[1], 1}}, {{THREADS, 1, 1}},
               [=] {{ filter_products(of_x, of_maps, partial, partial_bias); }});
    run_blocks({{finish[0], finish[1], finish[2]}}, {{32, 8, 1}},
               [=] {{ add_shares(partial, partial_bias, dw, db, grid[1], add, add); }});
}}"""
    return compiled(text, folder)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", ODD_GRADIENTS)
def test_kernels_in_lockstep(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sums of small whole numbers are exact, in whatever order."""
    layer = ODD_GRADIENTS[name]
    found = gradient(layer)
    configs = one_of_each_kind(found)
    assert len(configs) >= 2
    macros: dict[str, Any] = {}
    monkeypatch.setattr(wgrad, "kernel", lambda *_, **given: macros.update(given))
    for number, config in enumerate(configs):
        generator = np.random.default_rng(number)
        x, dy, before = (
            generator.integers(-4, 5, size=size).astype(np.float32)
            for size in (layer.x, layer.y, layer.w)
        )
        given = [np.array(np.moveaxis(each, 1, -1), order="C") for each in (x, dy, before)]
        maps = [described(*each) for each in zip(found.boxes(config), given, strict=False)]
        grid = config.grid[0], max(1, config.grid[1] // 3)  # more stages than slots
        partial = np.full(grid[1] * math.prod(layer.w), np.nan, np.float32)
        has_bias = int(number != 1)
        bias, rows = np.ones(layer.y[1], np.float32), grid[1] * found.bias_owners(config.tile)
        partial_bias = np.full((rows, layer.y[1]), np.nan, np.float32)
        blocks, _ = found.adding(bias=bool(has_bias))
        arrays = *maps, partial, partial_bias, given[2], bias
        addresses = [ctypes.c_void_p(each.ctypes.data) for each in arrays]
        folder = tmp_path / str(number)
        folder.mkdir()
        found.function("filter_products", config, "float32", bias=bool(has_bias))
        in_lockstep(macros, config, folder)(
            *addresses, 1, (ctypes.c_int * 2)(*grid), (ctypes.c_int * 3)(*blocks)
        )
        assert not np.isnan(partial).any()
        wanted = before + by_cpu(layer, "filter", x=x, dy=dy)
        np.testing.assert_array_equal(np.moveaxis(given[2], -1, 1), wanted)
        np.testing.assert_array_equal(bias, 1 + has_bias * dy.sum((0, 2, 3)))


@pytest.mark.parametrize("name", ODD_GRADIENTS | HOPPER)
def test_configs_cover_everything(name: str) -> None:
    layer = (ODD_GRADIENTS | HOPPER)[name]
    for batch in 1, 256:
        found = gradient(layer.of_batch(batch))
        configs = found.configs(H200)
        assert configs
        for config in configs:
            stage, tile, grid = config.stage, config.tile, config.grid
            registers = found.registers(tile)
            assert registers
            parts = -(-found.outputs // tile.outputs) * -(-found.channels // tile.part)
            assert grid[0] == parts * found.kernel[0] // tile.rows * found.group
            stages = -(-found.y[2] // stage.rows) * -(-found.y[3] // stage.wide)
            assert 1 <= grid[1] <= batch * stages
            assert stage.steps * 8 >= (stage.rows - 1) * stage.dy_pitch + stage.wide
            assert found.shared(config) <= 227 << 10
            assert 128 * (tile.consumers * registers[0] + registers[1]) <= 1 << 16
