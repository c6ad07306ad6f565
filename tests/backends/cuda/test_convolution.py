"""Convolution and inner product on the GPU: every kernel compiles, choices are sound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda, convolution, folding, library
from osucaffe.backends.cuda.folding import Folding

from .. import test_primitives  # noqa: F401 (fills CASES)
from ..cases import CASES, STATE, Case
from ..running import Output, Runner
from .simulated import simulate

LIBRARY = ("convolution", "inner_product")
"""Beginnings of the names of the primitives that cuDNN and cuBLAS compute."""


@pytest.fixture(
    params=[("fp32", 0.5), ("tf32", 0.5), ("bf16", 0.5), ("bf16", 9.0), ("fp16", 0.5)], ids=str
)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A backend whose libraries accept everything and compute nothing in a millisecond, and
    whose own kernels take as long as given."""
    simulate(monkeypatch)
    made = Cuda(precision=request.param[0])
    made.random = STATE
    plan = SimpleNamespace(workspace=64, execute=lambda addresses, workspace: None)
    made.cudnn = SimpleNamespace(plan=lambda _: ((lambda: plan), 1.0))  # type: ignore[assignment]
    algorithm = SimpleNamespace(workspace=0, milliseconds=2.0, execute=lambda *addresses: None)
    made.cublas = SimpleNamespace(algorithm=lambda product: algorithm)  # type: ignore[assignment]
    taken = SimpleNamespace(get=lambda what: ("", request.param[1]))
    made.timings = taken  # type: ignore[assignment]
    return made


def run(backend: Cuda, case: Case, flexible: bool, accumulates: tuple[str, ...] = ()) -> None:
    runner = Runner(backend, flexible=flexible)
    runner.record(case.name, case.tensors, case.settings)
    runner.calls[-1].accumulates = frozenset(accumulates)
    runner.prepare()()


@pytest.mark.parametrize("flexible", [False, True], ids=["row-major", "free"])
def test_kernels_compile(flexible: bool, backend: Cuda) -> None:
    for case in CASES:
        if case.name.startswith(LIBRARY):
            run(backend, case, flexible)


def test_kernels_that_accumulate_compile(backend: Cuda) -> None:
    for case in CASES:
        if case.name in ("convolution_backward_filter", "inner_product_backward_filter"):
            run(backend, case, True, ("dw", "db"))


def test_kernels_that_mask_compile(backend: Cuda) -> None:
    (case, *_) = [case for case in CASES if case.name == "convolution_backward_data"]
    runner = Runner(backend)
    runner.record(case.name, case.tensors, case.settings)
    runner.calls[-1].reads["positive"] = runner.calls[-1].writes["dx"]
    runner.prepare()()


@pytest.mark.parametrize(
    ("heavy", "light", "kernel", "searched"),
    [(0, 0, 3, [True]), (1e10, 0, 3, [True, False]), (1e10, 1e10, 1, []), (1e10, 0, 1, [False])],
)
def test_what_is_searched_for(
    heavy: float,
    light: float,
    kernel: int,
    searched: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plans with the ReLU's backward pass first, then others; none where a product will do."""
    monkeypatch.setattr(library, "HEAVY", heavy)
    monkeypatch.setattr(library, "LIGHT", light)
    monkeypatch.setattr(convolution, "WORTH_FUSING", 0 if kernel == 3 else 1 << 30)
    simulate(monkeypatch)
    backend = Cuda(precision="bf16")
    found: list[bool] = []

    def plan(convolution: Any) -> Any:
        found.append(convolution.relu is not None)
        return (lambda: SimpleNamespace(workspace=0, execute=lambda *_: None)), 1.0

    backend.cudnn = SimpleNamespace(plan=plan)  # type: ignore[assignment]
    algorithm = SimpleNamespace(workspace=0, milliseconds=2.0, execute=lambda *_: None)
    backend.cublas = SimpleNamespace(algorithm=lambda _: algorithm)  # type: ignore[assignment]
    backend.timings = SimpleNamespace(get=lambda what: ("", 9.0))  # type: ignore[assignment]
    runner = Runner(backend)
    filters = np.zeros((16, 16, kernel, kernel))
    tensors = {"dy": np.zeros((2, 16, 8, 8)), "w": filters, "dx": Output((2, 16, 8, 8))}
    window = {"stride": [1, 1], "pad": [kernel // 2] * 2, "dilation": [1, 1], "group": 1}
    runner.record("convolution_backward_data", tensors, window)
    runner.calls[-1].reads["positive"] = runner.tensor(Output((2, 16, 8, 8)))
    runner.prepare()
    assert found == searched


def few_channels(name: str, stride: int) -> Case:
    """An image of three channels under a large kernel."""
    images, filters = (2, 3, 23, 28), (8, 3, 7, 7)
    maps = (2, 8, 21, 24) if stride == 1 else (2, 8, 11, 12)
    tensors: dict[str, Any] = {"x": np.zeros(images)}
    if name == "convolution":
        tensors |= {"w": np.zeros(filters), "b": np.zeros(8), "y": Output(maps)}
    else:
        tensors |= {"dy": np.zeros(maps), "dw": Output(filters), "db": Output((8,))}
    settings = {"stride": [stride] * 2, "pad": [2, 1], "dilation": [1, 1], "group": 1}
    return Case("few channels", name, tensors, settings, dict)


@pytest.mark.parametrize("name", ["convolution", "convolution_backward_filter"])
@pytest.mark.parametrize("flexible", [False, True], ids=["row-major", "free"])
@pytest.mark.parametrize("stride", [1, 2])
def test_folded_kernels_compile(
    name: str, flexible: bool, stride: int, backend: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "LEAST_WORK", 0)
    for other in "library_ways", "library_ways_with_passes":
        monkeypatch.setattr(convolution, other, lambda *_: [])
    if stride == 1 and backend.precision == "fp32":
        with pytest.raises(NotImplementedError):  # there is no other way
            run(backend, few_channels(name, stride), flexible)
        return
    run(backend, few_channels(name, stride), flexible)


def unfolded(folded: np.ndarray, filters: np.ndarray, folding: Folding) -> np.ndarray:
    """The output by the folded convolution, brought back."""
    n, outputs, rows, columns = folding.folded_y
    result = np.zeros((n, outputs, rows, columns))
    for i, j in np.ndindex(*folding.kernel):
        piece = folded[:, :, i : i + rows, j : j + columns]
        result += np.einsum("nchw,oc->nohw", piece, filters[:, :, i, j])
    split = result.reshape(n, folding.pixels, folding.y[1], rows, columns)
    return split.transpose(0, 2, 3, 4, 1).reshape(folding.y)


@pytest.mark.parametrize("pixels", [1, 2, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_folding_is_the_same_convolution(pixels: int, stride: int) -> None:
    from ..reference import convolution

    generator = np.random.default_rng(0)
    x, w = generator.normal(size=(2, 3, 23, 28)), generator.normal(size=(8, 3, 7, 7))
    pad = (2, 1 if stride == 2 else 3)
    wanted = convolution(x, w, None, stride=[stride] * 2, pad=[*pad], dilation=[1, 1], group=1)
    folding = Folding(x.shape, w.shape, wanted.shape, (stride,) * 2, pad, pixels, "float32")
    (high, wide), (top, left) = folding.block, folding.pad
    images, filters = np.zeros(folding.folded_x), np.zeros(folding.folded_w)
    # What kernels/folding.cu does, one element at a time.
    for channel in range(3 * high * wide):
        c, column, row = channel % 3, channel // 3 % wide, channel // (3 * wide)
        for i, j in np.ndindex(*folding.folded_x[2:]):
            at = i * high + row - top, j * wide + column - left
            if 0 <= at[0] < 23 and 0 <= at[1] < 28:
                images[:, channel, i, j] = x[:, c, at[0], at[1]]
        for p, i, j in np.ndindex(pixels, *folding.kernel):
            tap = i * high + row, j * wide + column - p * folding.stride[1]
            if tap[0] < 7 and 0 <= tap[1] < 7:
                filters[p * 8 : p * 8 + 8, channel, i, j] = w[:, c, tap[0], tap[1]]
    np.testing.assert_allclose(unfolded(images, filters, folding), wanted, atol=1e-10)
