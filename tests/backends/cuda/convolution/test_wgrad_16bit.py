"""Gradients of filters in 16 bits by Hopper's instructions: on the CPU in lockstep; what is
tried."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda.convolution import wgrad
from osucaffe.backends.cuda.convolution.wgrad import (
    CONSUMERS,
    SPARE,
    STEP,
    Tile,
    TileConfig,
    Wgrad16Bit,
)

from ..devices import H200
from ..lockstep import HEADERS, as_text, compiled, defines
from ..simulated import simulate
from .layers import EIGHTS, HOPPER, Layer, by_cpu, described, memory

HEADER = HEADERS / "hopper_lockstep.h"
SHOWN = ("3x3 in eights", "many outputs in eights", "1x1 in groups, eights")
"""Layers of `make test`: each takes seconds."""


def gradient(layer: Layer) -> Wgrad16Bit:
    return Wgrad16Bit.like(layer.problem, dtype="bfloat16")


def one_of_each_kind(found: Wgrad16Bit) -> list[TileConfig]:
    """With all rows of the kernel or one, of rows or parts of them, by more consumers or fewer;
    with taps by themselves (24 channels) or together."""
    kinds = itertools.product((found.kernel[0], 1), (False, True))
    result = []
    parts = (16, 24, 24, 32 if found.kernel[1] < 5 else 16)
    for (rows, several), consumers, part in zip(kinds, 2 * CONSUMERS, parts, strict=True):
        tiles = [Tile(outputs, part, rows, consumers) for outputs in (128, 64)]
        fit = [stage for stage in found.stages() if (stage.rows > 1) == several]
        made = (
            found.config(H200, stage, tile)
            for tile, stage in itertools.product(tiles, fit[::-1])
            if found.sums(tile) + SPARE <= found.registers(tile)
        )
        result += [config for _, config in itertools.islice(filter(None, made), 1)]
    return result


def in_lockstep(macros: dict[str, Any], late: bool, folder: Path) -> Any:
    """A function of the CPU that runs the kernels compiled for these macros."""
    macros = {name: value for name, value in macros.items() if "(" not in name}
    text = f"""#define LATE_COPIES {int(late)}
#define ELEMENT bfloat16
#include "{HEADER}"
{defines(macros)}{as_text("wgrad_16bit")}
extern "C" void run(const void* x, const void* maps, float* partial, float* partial_bias, float* dw,
                    float* db, const int* grid) {{
    TensorMap of_x, of_maps;
    memcpy(&of_x, x, sizeof of_x), memcpy(&of_maps, maps, sizeof of_maps);
    run_blocks({{grid[0], grid[1], 1}}, {{THREADS, 1, 1}},
               [=] {{ filter_products(of_x, of_maps, partial, partial_bias); }});
    run_blocks({{2, 1, 1}}, {{64, 1, 1}},
               [=] {{ add_shares(partial, partial_bias, dw, db, grid[1], 1, 0); }});
}}"""
    return compiled(text, folder)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in SHOWN else pytest.mark.long) for each in EIGHTS],
)
def test_kernels_in_lockstep(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sums of small whole numbers are exact, in whatever order."""
    layer = EIGHTS[name]
    found = gradient(layer)
    configs = one_of_each_kind(found)
    assert len(configs) >= 2
    macros: dict[str, Any] = {}
    monkeypatch.setattr(wgrad, "kernel", lambda *_, **given: macros.update(given))
    for number, config in enumerate(configs):
        generator = np.random.default_rng(number)
        x, dy, before = (
            generator.integers(-4, 5, size=size) for size in (layer.x, layer.y, layer.w)
        )
        given = [memory(x, "bfloat16"), memory(dy, "bfloat16"), memory(before)]
        maps = [described(*each) for each in zip(found.boxes(config), given, strict=False)]
        shares = max(1, config.grid[1] // 3)
        config = replace(config, slots=2)  # more stages than these
        sizes = (shares, math.prod(layer.w)), (shares * found.bias_owners(config.tile), layer.y[1])
        partial = [memory(np.full(size, np.nan)) for size in sizes]
        db = memory(np.full(layer.y[1], np.nan))
        found.function("filter_products", config, "float32", bias=True)
        folder = tmp_path / str(number)
        folder.mkdir()
        in_lockstep(macros, number % 2 == 1, folder)(
            *(ctypes.c_void_p(each.ctypes.data) for each in (*maps, *partial, given[2], db)),
            (ctypes.c_int * 2)(config.grid[0], shares),
        )
        assert not any(np.isnan(each).any() for each in partial)
        np.testing.assert_array_equal(db, dy.sum((0, 2, 3)))
        wanted = before + by_cpu(layer, "filter", x=x, dy=dy)
        np.testing.assert_array_equal(given[2], memory(wanted))


def test_the_most_sums_that_fit_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    found = gradient(HOPPER["AlexNet conv3"].of_batch(256))
    for consumers in CONSUMERS:
        tiles = [tile for tile in found.tiles() if tile.consumers == consumers]
        most = max(tiles, key=found.sums)
        [stage, *_] = found.stages()
        made = found.config(H200, stage, most)
        assert made
        assert found.sums(most) >= 96
        _ = found.function("filter_products", made[1], "float32", bias=True).function


@pytest.mark.parametrize("name", EIGHTS | HOPPER)
def test_configs_cover_everything(name: str) -> None:
    layer = (EIGHTS | HOPPER)[name]
    for batch in 1, 256:
        found = gradient(layer.of_batch(batch))
        configs = found.configs(H200)
        assert configs
        for config in configs:
            stage, tile = config.stage, config.tile
            parts = -(-found.outputs // tile.outputs) * -(-found.channels // tile.part)
            assert config.grid[0] == parts * found.kernel[0] // tile.rows * found.group
            cut = -(-found.y[2] // stage.rows) * -(-found.y[3] // stage.wide)
            assert 1 <= config.grid[1] <= batch * cut
            assert stage.steps * STEP >= (stage.rows - 1) * stage.dy_pitch + stage.wide
            assert found.shared(config) <= 227 << 10
