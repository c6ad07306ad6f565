"""Which providers are asked for a convolution; every kernel that they may launch compiles."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda, tuned
from osucaffe.backends.cuda.autotune import timing
from osucaffe.errors import UserError
from tests.backends import test_primitives  # noqa: F401 (fills CASES)
from tests.backends.cases import CASES, STATE, Case
from tests.backends.running import Output, Runner

from ..simulated import FakeCudnn, FakeProducts, force, simulate, with_libraries
from .layers import IMAGE
from .layers import run as run_layer

LIBRARY = ("convolution", "inner_product")
"""Beginnings of the names of the primitives that cuDNN and cuBLAS compute."""


@pytest.fixture(params=["fp32", "tf32", "bf16", "fp16"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A backend whose libraries accept everything and compute nothing."""
    simulate(monkeypatch)
    made: Cuda = with_libraries(Cuda(precision=request.param))
    made.random = STATE
    return made


def run(backend: Cuda, case: Case, flexible: bool, accumulates: tuple[str, ...] = ()) -> None:
    runner = Runner(backend, flexible=flexible)
    runner.record(case.name, case.tensors, case.settings)
    runner.calls[-1].accumulates = frozenset(accumulates)
    runner.prepare()()


@pytest.mark.parametrize("flexible", [False, True], ids=["row-major", "free"])
def test_kernels_compile(flexible: bool, backend: Cuda) -> None:
    """All candidates run, when they are timed."""
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
    runner.calls[-1].relu_output = runner.calls[-1].dx
    runner.prepare()()
    assert runner.calls[-1].implementation.startswith(("cudnn", "small_", "implicit_gemm"))


@pytest.mark.parametrize(
    ("operation", "constants", "kernel", "searched"),
    [
        ("forward", {"CUDNN_HEAVY_WORK": 0}, 3, [True]),
        ("forward", {"CUDNN_HEAVY_WORK": 1e10}, 3, [True, False]),
        ("forward", {}, 1, []),
        ("data", {"CUDNN_HEAVY_WORK": 0}, 3, [False]),
        ("data", {"CUBLASLT_ALONE_MAX_WORK": 0}, 1, [False]),
        ("data", {"CUBLASLT_ALONE_MAX_WORK": 1e10}, 1, []),
    ],
)
def test_what_is_searched_for(
    operation: str,
    constants: dict[str, float],
    kernel: int,
    searched: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plans with the ReLU first, then others, which do its backward pass in one of its own; none
    where a product will do."""
    for name, value in constants.items():
        monkeypatch.setattr(tuned, name, value)
    simulate(monkeypatch)
    cudnn = FakeCudnn()
    backend = with_libraries(Cuda(precision="bf16"), cudnn)
    runner = Runner(backend)
    filters = np.zeros((16, 16, kernel, kernel))
    images, maps = np.zeros((2, 16, 8, 8)), Output((2, 16, 8, 8))
    window = {"stride": [1, 1], "pad": [kernel // 2] * 2, "dilation": [1, 1], "group": 1}
    if operation == "forward":
        tensors = {"x": images, "w": filters, "b": None, "y": maps}
        runner.record("convolution", tensors, window | {"relu": 0.0})
    else:
        tensors = {"dy": images, "w": filters, "dx": maps}
        runner.record("convolution_backward_data", tensors, window)
        runner.calls[-1].relu_output = runner.tensor(Output((2, 16, 8, 8)))
    runner.prepare()
    asked = [*dict.fromkeys(each.relu for each in cudnn.asked)]
    assert asked == searched


def test_libraries_are_spared_where_our_kernel_is_good_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulate(monkeypatch)
    images, filters = (256, 96, 27, 27), (256, 48, 5, 5)
    tensors = {"x": np.zeros(images), "w": np.zeros(filters), "b": None}
    window = {"stride": [1, 1], "pad": [2, 2], "dilation": [1, 1], "group": 2}
    for taken, asked in (0.1, False), (5.0, True):
        for name in "once", "time_of":
            monkeypatch.setattr(timing, name, lambda *_, taken=taken: taken)
        cudnn = FakeCudnn()
        runner = Runner(with_libraries(Cuda(precision="tf32"), cudnn))
        maps = Output((256, 256, 27, 27))
        runner.record("convolution", tensors | {"y": maps}, window)
        runner.backend.prepare(runner.calls)
        assert bool(cudnn.asked) == asked


def test_there_is_always_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what is best elsewhere has no plan, cuDNN computes it as it is."""
    simulate(monkeypatch)
    for precision in "fp32", "bf16":
        cudnn = FakeCudnn(has=lambda found: found.x.shape[1] == 3)
        backend = with_libraries(Cuda(precision=precision), cudnn)
        run_layer(backend, IMAGE["image"], ("forward", "filter"))


def test_nothing_that_computes_it_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    backend = with_libraries(Cuda(precision="fp32"), FakeCudnn(plans=0), FakeProducts(0))
    [case, *_] = [case for case in CASES if case.name == "convolution"]
    with pytest.raises(UserError, match="nothing on this GPU computes its convolution of"):
        run(backend, case, True)


@pytest.mark.parametrize("flexible", [False, True], ids=["row-major", "free"])
def test_space_to_depth_compiles(
    flexible: bool, backend: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, "cudnn alone by space to depth", 0)
    run_layer(backend, IMAGE["image"], ("forward", "filter"), flexible=flexible)
