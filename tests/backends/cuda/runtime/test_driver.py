"""Kernels that are launched early, in a graph, do nothing before those they follow have ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.runtime.compile import FOLDER, check_heads, kernel_from
from osucaffe.backends.cuda.runtime.driver import launch_early
from osucaffe.backends.cuda.runtime.launch import captured, launch
from osucaffe.backends.tensor import Tensor, sequence

SHIFT = """
extern "C" __global__ void shift(const float* from, float* to, int count) {
    PDL_BEGIN;
    FOR_EACH(count) to[id] = from[(id + 4099) % count] + 1;
}
"""
FILES = sorted([*FOLDER.rglob("*.cu"), *FOLDER.parents[2].glob("forks/*/*.cu")])
COUNT, KERNELS = 2**20, 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_kernel_waits_first(path: Path) -> None:
    text = path.read_text()
    check_heads(text)
    heads = text.count("PDL_BEGIN;") + text.count("pdl_wait();")
    assert heads == text.count("__global__") > 0
    assert ("pdl_wait()" in text) == ("pdl_launch_next()" in text)


@pytest.mark.parametrize("head", ["", "work();", "PDL_BEGINNING;", "pdl_launch_next();"])
def test_kernel_that_forgets_to_wait_is_refused(head: str) -> None:
    good = "__global__ void good(int n) { PDL_BEGIN; }"
    bad = f"__global__ void __launch_bounds__(32) bad(int n) {{ {head} }}"
    for text in f"{good} {bad}", f"{bad} {good}":
        with pytest.raises(RuntimeError, match="kernel bad must begin with PDL_BEGIN"):
            kernel_from(text, "good")


def placed(backend: Cuda, values: np.ndarray) -> Tensor:
    tensor = Tensor(values.shape)
    backend.place(tensor, backend.allocate(backend.nbytes(tensor)), 0)
    backend.write(tensor, values)
    return tensor


@pytest.mark.gpu
@pytest.mark.parametrize("beside", [False, True], ids=["in turn", "on two streams"])
def test_chain_in_a_graph(beside: bool) -> None:
    """Each reads what blocks far away wrote in the one before, and writes what that one read."""
    backend = Cuda()
    values = np.arange(COUNT, dtype=np.float32) % 1000
    pair = [placed(backend, values), placed(backend, np.zeros_like(values))]
    function = kernel_from(SHIFT, "shift")
    steps = [
        launch(function, COUNT // 256, [pair[i % 2], pair[1 - i % 2], np.int32(COUNT)])
        for i in range(KERNELS)
    ]
    event = backend.cupy.cuda.Event
    begun, done = event(disable_timing=True), event(disable_timing=True)

    def forked() -> None:
        sequence(steps[: KERNELS // 4])()
        begun.record(backend.stream)
        backend.overlap_stream.wait_event(begun)
        with backend.on(backend.overlap_stream):
            sequence(steps[KERNELS // 4 : KERNELS // 2])()
            done.record(backend.overlap_stream)
        backend.stream.wait_event(done)
        sequence(steps[KERNELS // 2 :])()

    steps[0]()  # a capture loads nothing
    graph = captured(backend.stream, forked if beside else sequence(steps))
    for _ in range(2):
        graph.launch(backend.stream)
    wanted = np.roll(values, -2 * KERNELS * 4099) + 2 * KERNELS
    np.testing.assert_array_equal(backend.read(pair[0]), wanted)


@pytest.mark.gpu
def test_launch_that_cannot_be_is_an_error() -> None:
    backend = Cuda()
    function = kernel_from(SHIFT, "shift").function
    array = placed(backend, np.zeros(4, np.float32))
    values = [array.address, array.address, np.int32(4)]
    with pytest.raises(RuntimeError, match="could not be launched"):
        launch_early(function, (1,), (4096,), values, 0)
