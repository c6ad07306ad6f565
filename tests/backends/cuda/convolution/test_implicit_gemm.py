"""Convolutions by Hopper's instructions: on the CPU in lockstep; what is tried."""

from __future__ import annotations

import ctypes
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import tuned
from osucaffe.backends.cuda.convolution import implicit_gemm
from osucaffe.backends.cuda.convolution.implicit_gemm import (
    LOADING,
    SHAPES,
    ImplicitGemm,
    TileConfig,
)
from osucaffe.backends.cuda.convolution.operands import Operands
from osucaffe.backends.cuda.layout import from_bfloat16, to_bfloat16
from osucaffe.backends.cuda.runtime import device
from osucaffe.backends.primitives.products import Convolution, ConvolutionBackwardData
from osucaffe.backends.tensor import Tensor

from ..devices import H200
from ..lockstep import HEADERS, as_text, compiled, defines
from ..simulated import simulate
from .layers import (
    EIGHTS,
    HOPPER,
    ODD_EIGHTS,
    ODD_OUTPUTS,
    Layer,
    by_cpu,
    described,
    memory,
    square,
)

HEADER = HEADERS / "hopper_lockstep.h"
CONFIGS = (
    TileConfig(1, 1, 16, 1, 2, 2), TileConfig(2, 1, 24, 1, 5, 3), TileConfig(1, 2, 32, 3, 2, 2),
    TileConfig(2, 2, 40, 1, 4, 3),
)  # fmt: skip
"""groups, m_tiles, outputs, taps, stages, buffers"""
IMPOSSIBLE = {
    *(("5x5 in eights", back) for back in (0, 1)), ("groups of 40 outputs", 1),
    *(("5x5", back) for back in (0, 1)), ("groups", 1),
}  # fmt: skip
"""Layers, and whether it is the gradient: a part of a group's channels has some of the next one."""


def as_gemm(layer: Layer, dtype: str = "float32") -> ImplicitGemm:
    return ImplicitGemm.like(layer.problem, dtype=dtype)


def in_lockstep(macros: Mapping[str, Any], late: bool, folder: Path) -> Any:
    """A function of the CPU that runs the kernels compiled for these macros."""
    macros = {name: value for name, value in macros.items() if not name.startswith("MULTIPLY(")}
    text = f"""#define LATE_COPIES {int(late)}
#define ELEMENT {macros["T"]}
#include "{HEADER}"
{defines(macros)}{as_text("implicit_gemm")}
extern "C" void run(void* x, const T* w, void* filters, const float* b, const T* addend,
                    const T* relu_output, T* y, float* sums, int images, int tiles, float slope,
                    int grid) {{
    TensorMap pixels, given;
    memcpy(&pixels, x, sizeof pixels);
    memcpy(&given, filters, sizeof given);
#if FLIPPED && !TRANSPOSED
    auto transposed = reinterpret_cast<T*>(given.words[0]);
    run_blocks({{2, 1, 1}}, {{64, 1, 1}}, [=] {{ transpose_filters(w, transposed); }});
#endif
    run_blocks({{grid, 1, 1}}, {{THREADS, 1, 1}}, [=] {{
        convolve(pixels, given, b, addend, relu_output, y, sums, images, tiles, slope);
    }});
}}"""
    return compiled(text, folder)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    ("name", "dtype", "number"),
    [
        # `make test` runs the first and the last of every second layer, and the others of others.
        pytest.param(
            *(*layer, number), marks=pytest.mark.long if (number % 3 == 0) == row % 2 else ()
        )
        for row, layer in enumerate(
            [
                *((name, "float32") for name in ODD_OUTPUTS),
                *((name, "bfloat16") for name in EIGHTS | ODD_EIGHTS),
            ]
        )
        for number in range(4)
    ],
)
def test_kernels_in_lockstep(
    name: str, dtype: str, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sums of small whole numbers are exact, in whatever order."""
    layer = (ODD_OUTPUTS | EIGHTS | ODD_EIGHTS)[name]
    back = number % 2 == 1
    found = as_gemm(layer, dtype)
    found = replace(found.transposed if back else found, masked=number > 1)
    assert found.possible == ((name, back) not in IMPOSSIBLE)
    if not found.possible:
        return
    config = CONFIGS[number]
    if config.taps > 1:
        config = replace(config, taps=found.kernel[1])
    late = len(name) % 2 == number % 2
    run(found, layer, config, number, late, monkeypatch, tmp_path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("layer", "config"),
    [
        (Layer((5, 40, 6, 7), (24, 40, 1, 1)), TileConfig(2, 1, 24, 1, 5, 3)),
        (Layer((2, 32, 7, 9), (16, 32, 3, 3), pad=(1, 1)), TileConfig(1, 2, 32, 3, 2, 2)),
    ],
    ids=["1x1", "3x3"],
)
def test_gradients_are_added(
    layer: Layer, config: TileConfig, dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    masked = (dtype == "bfloat16") == (config.taps == 1)
    found = replace(as_gemm(layer, dtype).transposed, adds=True, masked=masked)
    assert found.possible
    run(found, layer, config, 2, masked, monkeypatch, tmp_path)


SUMMED = {
    "3x3": Layer((3, 24, 7, 9), (64, 24, 3, 3), pad=(1, 1)),
    "1x1": Layer((5, 32, 6, 7), (32, 32, 1, 1)),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("config", [TileConfig(2, 1, 32, 1, 5, 3), TileConfig(1, 2, 16, 1, 2, 2)])
@pytest.mark.parametrize(("parts", "dtype"), [(7, "bfloat16"), (1, "float32")])
@pytest.mark.parametrize("name", SUMMED)
def test_outputs_are_summed(
    name: str,
    parts: int,
    dtype: str,
    config: TileConfig,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As batch_norm.cu wants it: where there is no part, there are no numbers."""
    layer = SUMMED[name]
    found = replace(as_gemm(layer, dtype), sums=parts)
    assert found.possible
    y, sums = run(found, layer, config, 5, False, monkeypatch, tmp_path, blocks=4)
    y = from_bfloat16(to_bfloat16(y)) if dtype == "bfloat16" else y  # what is stored
    y = y.astype(np.float64)
    sums = sums.reshape(4, parts, layer.y[1]).astype(np.float64)
    first, square, shift, count = np.where(sums[3] > 0, sums, 0)
    assert ((count > 0).sum(0) <= 4).all()
    np.testing.assert_array_equal(count.sum(0), y[:, 0].size)
    total = first + count * shift
    np.testing.assert_allclose(total.sum(0), y.sum((0, 2, 3)), rtol=1e-5)
    squares = square + 2 * shift * first + count * shift**2
    np.testing.assert_allclose(squares.sum(0), (y**2).sum((0, 2, 3)), rtol=1e-5)


def run(
    found: ImplicitGemm,
    layer: Layer,
    config: TileConfig,
    seed: int,
    late: bool,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *,
    blocks: int = 2,
) -> tuple[np.ndarray, np.ndarray]:
    """Let so many blocks compute it on small whole numbers; what should come out, and the sums."""
    back, slope = found.flipped, (1.0, 0.5)[seed % 2]  # 1: there is no ReLU
    generator = np.random.default_rng(seed)
    x, w, b, addend, relu_output = (
        generator.integers(-4, 5, size=size).astype(np.float32)
        for size in (found.x, layer.w, found.y[1:2], found.y, found.y)
    )
    compiled: dict[str, Any] = {}
    launched: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(implicit_gemm, "kernel", lambda *_, **macros: compiled.update(macros))
    monkeypatch.setattr(
        implicit_gemm, "launch", lambda *given, **named: launched.append((given, named))
    )
    monkeypatch.setattr(device, "current", lambda: H200)
    sizes: list[int] = []

    def temporary(shape: Any) -> Tensor:
        sizes.append(shape[0])
        return Tensor(shape)

    gpu, nothing = SimpleNamespace(properties=H200), None
    ctx: Any = SimpleNamespace(backend=gpu, temporary=temporary, call=SimpleNamespace(sums=nothing))
    operands = Operands(Tensor(found.x), Tensor(layer.w), *[nothing] * 4, slope)
    monkeypatch.setattr(Operands, "of", lambda _: operands)
    found.step(config, ctx)
    (_, grid, arguments), named = launched[-1]
    assert named["shared"] <= 16 << 14  # what there is on the CPU
    x_memory, w_memory = memory(x, found.dtype), memory(w, found.dtype)
    transposed = memory(np.zeros(sizes[0])) if sizes else w_memory
    images = described(found.images(config), x_memory)
    filters = described(found.filters(config), transposed)
    sums = memory(np.full(max(1, 4 * found.sums * found.y[1]), np.nan))
    arrays = [
        *(images, w_memory, filters, memory(b)),
        *(memory(each, found.dtype) for each in (addend, relu_output, np.full(found.y, np.nan))),
        sums,
    ]
    in_lockstep(compiled, late, folder)(
        *(ctypes.c_void_p(each.ctypes.data) for each in arrays),
        *map(int, arguments[7:9]), ctypes.c_float(slope), min(grid, blocks),
    )  # fmt: skip
    wanted = by_cpu(layer, "data", dy=x, w=w) if back else by_cpu(layer, "forward", x=x, w=w)
    wanted = wanted + b[:, None, None]
    wanted = np.where(wanted > 0, wanted, slope * wanted)
    if found.adds:
        wanted = wanted + addend
    if found.masked:
        wanted = np.where(relu_output > 0, wanted, 0)
    np.testing.assert_array_equal(arrays[-2], memory(wanted, found.dtype))
    return wanted, sums


@pytest.mark.parametrize(("groups", "m_tiles"), SHAPES)
def test_the_most_outputs_that_fit_compile(
    groups: int, m_tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch)
    fitting = [TileConfig(groups, m_tiles, outputs, 1, 4, 2) for outputs in range(8, 200, 8)]
    most = [each for each in fitting if each.fits()][-1]
    assert most.outputs >= 88
    forward = as_gemm(square((2, 16, 14, 14), (most.outputs, 16, 3, 3), 1, 1))
    for found in forward, replace(forward.transposed, masked=True):
        _ = found.function("convolve", most).function


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float32") for name in ODD_OUTPUTS | HOPPER),
        *((name, "bfloat16") for name in EIGHTS | ODD_EIGHTS | HOPPER),
    ],
)
def test_configs_cover_everything(name: str, dtype: str) -> None:
    for batch in 1, 256:
        found = as_gemm((ODD_OUTPUTS | EIGHTS | ODD_EIGHTS | HOPPER)[name].of_batch(batch), dtype)
        for back, each in enumerate((found, replace(found.transposed, masked=True))):
            assert each.possible == ((name, back) not in IMPOSSIBLE)
            if not each.possible:
                continue
            configs = each.configs(H200)
            assert configs
            for config in configs:
                tiles = each.tiles(config)
                assert tiles * config.pixels * config.outputs >= math.prod(each.y)
                assert each.shared(config) <= 227 << 10
                used = config.registers * config.groups + LOADING
                assert used * 128 <= 65536 // config.threads // 8 * 8 * config.threads
                assert each.kernel[1] % config.taps == 0


@pytest.mark.parametrize("written", ["y", "dx"])
def test_what_is_offered_is_possible(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the gradient's own groups that count, not those of the convolution it is of."""
    monkeypatch.setattr(tuned, "IMPLICIT_GEMM_MIN_WORK", 0)
    [layer] = ODD_EIGHTS.values()

    x, w, y = (Tensor(each) for each in (layer.problem.x, layer.problem.w, layer.problem.y))
    stride, pad, dilation = layer.problem.window
    window: dict[str, Any] = {"stride": stride, "pad": pad, "dilation": dilation, "group": 1}
    call = Convolution(x, w, None, y, **window)
    if written == "dx":
        call = ConvolutionBackwardData(y, w, x, **window)
    ctx: Any = SimpleNamespace(
        backend=SimpleNamespace(properties=H200, precision="bf16"), call=call
    )
    assert len(implicit_gemm.implicit_gemm(ctx, layer.problem)) == (written == "y")
