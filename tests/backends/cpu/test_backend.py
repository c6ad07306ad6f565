"""The CPU backend: memory, types, layouts that oneDNN chose, threads, no allocation in steps."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cpu.evaluate import CHUNK
from osucaffe.backends.cpu.primitives.formulas import boxes
from osucaffe.backends.cpu.primitives.solvers import merge_segments
from osucaffe.backends.cpu.workers import SMALL, Workers
from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Step, Tensor, sequence
from tests.backends.running import Output, run_call
from tests.processes import python

from .programs import NEEDS_ONEDNN, ONEDNN, blocked

NUMPY = Cpu(onednn=False)
RANDOM = np.random.default_rng(4)


def place(backend: Cpu, *tensors: Tensor) -> None:
    for tensor in tensors:
        if tensor.array is None:
            memory = backend.allocate(backend.nbytes(tensor))
            memory[:] = 0
            backend.place(tensor, memory, 0)


def prepare(backend: Cpu, program: Program) -> list[Step]:
    """All calls prepared and all their tensors placed, zeroed."""
    steps = backend.prepare(program.calls)
    for call in program.calls:
        place(backend, *call.read_tensors(), *call.written_tensors(), *call.scratch)
    return steps


def test_memory_that_products_keep_is_there_or_is_told() -> None:
    """OpenBLAS would wait for it without end; once it has it, memory may be short."""
    text = """
import errno, resource
import numpy as np
from osucaffe.backends.cpu import Cpu
pages = int(open("/proc/self/statm").read().split()[0])
least = pages * resource.getpagesize() + (8 << 20)
def limit(size): resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
limit(least)
try:
    Cpu(onednn=False)
except OSError as error:
    assert error.errno == errno.ENOMEM
    print("told")
limit(resource.RLIM_INFINITY)
Cpu(onednn=False)
limit(least)
a = np.ones((9, 9), np.float32)
print(np.matmul(a, a).sum())
"""
    done = python("-c", text, timeout=60, OPENBLAS_NUM_THREADS="1")
    assert done.stdout.split() == ["told", "729.0"], done.stderr


def test_memory_begins_on_a_cache_line() -> None:
    for nbytes in 1, 1000, 1 << 20:
        memory = NUMPY.allocate(nbytes)
        assert memory.shape == (nbytes,)
        assert memory.dtype == np.uint8
        assert memory.ctypes.data % 64 == 0


def test_tensors_lie_where_they_are_placed() -> None:
    memory = NUMPY.allocate(256)
    first, second = Tensor((2, 3)), Tensor((4,), "uint8")
    NUMPY.place(first, memory, 64)
    NUMPY.place(second, memory, 128)
    NUMPY.write(first, [[1, 2, 3], [4, 5, 6]])
    NUMPY.write(second, 7)
    assert memory[64:88].view(np.float32).tolist() == [1, 2, 3, 4, 5, 6]
    assert memory[128:132].tolist() == [7] * 4
    assert first.address == memory.ctypes.data + 64


def test_reading_makes_a_copy() -> None:
    tensor = Tensor((3,))
    place(NUMPY, tensor)
    values = NUMPY.read(tensor)
    values[:] = 1
    assert NUMPY.read(tensor).tolist() == [0, 0, 0]


def test_float64_holds_what_is_declared_float32() -> None:
    backend = Cpu("float64")
    tensor, mask = Tensor((3,)), Tensor((3,), "uint8")
    place(backend, tensor, mask)
    backend.write(tensor, [1 / 3] * 3)
    assert backend.nbytes(tensor) == 24
    assert backend.nbytes(mask) == 3
    assert backend.read(tensor)[0] == 1 / 3
    assert backend.onednn is None


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ValueError, match="float16"):
        Cpu("float16")


def test_host_runs_the_function_between_other_steps() -> None:
    x, y = Tensor((3,), flexible=True), Tensor((3,), flexible=True)
    program = Program()
    program.fill(x, value=2.0)
    program.host([x], [y], function=lambda xs, ys: np.copyto(ys[0], xs[0] + 1))
    program.relu(y, x, slope=0.0)
    sequence(prepare(NUMPY, program))()
    assert NUMPY.read(x).tolist() == [3, 3, 3]


def test_max_pooling_notes_the_first_maximum() -> None:
    x, y, index = Tensor((1, 1, 3, 4)), Tensor((1, 1, 2, 2)), Tensor((1, 1, 2, 2), "int32")
    program = Program()
    program.max_pooling(x, y, index, kernel=[3, 3], stride=[2, 2], pad=[1, 1])
    run = sequence(prepare(NUMPY, program))
    NUMPY.write(x, [[[[-1, -1, 5, 5], [-2, -1, 5, 5], [0, 7, 7, -9]]]])
    run()
    assert NUMPY.read(y).tolist() == [[[[-1, 5], [7, 7]]]]
    assert NUMPY.read(index).tolist() == [[[[0, 2], [9, 9]]]]


@NEEDS_ONEDNN
def test_formulas_run_on_blocked_memory_where_they_keep_zeros() -> None:
    program, shape = Program(), (2, 32, 6, 6)
    x = blocked(program, shape)
    plain, kept, mixed = Tensor(shape), Tensor(shape, flexible=True), Tensor(shape, flexible=True)
    program.elementwise([x], [kept], formula="y = a * 2 + tanh(a)")
    program.copy(x, plain)
    program.elementwise([plain, x], [mixed], formula="y = a + 2 * b")
    step = sequence(prepare(ONEDNN, program))
    assert kept.layout == x.layout is not None
    assert not program.calls[1].scratch
    image, weights = program.calls[0].read_tensors()
    ONEDNN.write(image, image.given)
    ONEDNN.write(weights, weights.given)
    step()
    np.testing.assert_allclose(ONEDNN.read(mixed), 3 * image.given, rtol=1e-6)


# -- threads and pieces -----------------------------------------------------------------------


def test_workers_cut_only_what_is_large() -> None:
    workers = Workers(3)
    assert workers.ranges(SMALL - 1) == [(0, SMALL - 1)]
    assert workers.ranges(3 * SMALL + 1) == [
        (0, SMALL), (SMALL, 2 * SMALL), (2 * SMALL, 3 * SMALL + 1),
    ]  # fmt: skip
    assert Cpu(threads=1, onednn=False).workers.count == 1


def test_an_error_in_any_worker_is_raised() -> None:
    def fail() -> None:
        raise ArithmeticError("in a worker")

    with pytest.raises(ArithmeticError, match="in a worker"):
        Workers(2).run([lambda: None, fail])


@pytest.mark.parametrize("shape", [(), (5,), (40_000,), (3, 20_000), (7, 5, 300, 3), (2, 0, 3)])
def test_boxes_cover_every_element_once(shape: tuple[int, ...]) -> None:
    count = np.zeros(shape, int)
    for box in boxes(shape):
        count[box] += 1
        assert count[box].size <= CHUNK
    assert (count == 1).all()


def test_segments_that_touch_are_joined_if_their_multipliers_agree() -> None:
    segments = [(0, 4, 1.0, 1.0), (4, 6, 1.0, 1.0), (6, 8, 2.0, 0.0), (9, 12, 2.0, 0.0)]
    assert merge_segments(segments) == [(0, 6, 1.0, 1.0), (6, 8, 2.0, 0.0), (9, 12, 2.0, 0.0)]


# -- allocation -------------------------------------------------------------------------------

IMAGE = (8, 16, 40, 40)
"""800 kB: no step may allocate anything near that."""


def record_everything(program: Program) -> None:
    """Calls of an ordinary training iteration, on images of 800 kB each."""
    window = {"kernel": [3, 3], "stride": [1, 1], "pad": [1, 1]}
    filters = {"stride": [1, 1], "pad": [1, 1], "dilation": [1, 1], "group": 2}
    x, y, z, dx = (Tensor(IMAGE) for _ in range(4))
    index, note, mask = Tensor(IMAGE, "int32"), Tensor(IMAGE), Tensor(IMAGE, "uint8")
    w, b = Tensor((16, 8, 3, 3)), Tensor((16,))
    program.convolution(x, w, b, y, **filters, relu=0.1)
    program.convolution_backward_data(y, w, dx, **filters)
    program.convolution_backward_filter(x, y, w, b, **filters)
    program.relu(y, y, slope=0.0)
    program.relu_backward(y, z, z, slope=0.1)
    program.max_pooling(y, z, index, **window)
    program.max_pooling_backward(z, index, dx, **window)
    program.average_pooling(y, z, **window)
    program.average_pooling_backward(z, dx, **window)
    for within in True, False:
        settings = {"size": 3, "alpha": 1.0, "beta": 0.75, "k": 1.0, "within_channel": within}
        program.lrn(x, y, note, **settings)
        program.lrn_backward(x, y, z, note, dx, **settings)
    program.dropout(x, y, mask, ratio=0.5, key=1)
    program.dropout_backward(z, mask, dx, ratio=0.5, key=1)
    program.sum([x, y], z, coefficients=[1.0, -2.0])
    program.elementwise([x, y], [z, y], formula="y = where(a > b, a, 2); z = a / (b + 1)")
    program.broadcast([x, Tensor((1, 16, 1, 1))], [z], formula="y = a * b")
    program.reduce([x, y], b, formula="y = a * b", axes=(0, 2, 3))
    both = Tensor((8, 32, 40, 40))
    program.concat([x, y], both, axis=1)
    program.split(both, [x, y], axis=1)
    weights, hidden, bias = Tensor((32, 25600)), Tensor((8, 32)), Tensor((32,))
    program.inner_product(x, weights, bias, hidden, axis=1, transpose=False)
    program.inner_product_backward_data(hidden, weights, dx, axis=1, transpose=False)
    program.inner_product_backward_filter(x, hidden, weights, bias, axis=1, transpose=False)
    label, one = Tensor((8, 40, 40)), Tensor(())
    loss = {"axis": 1, "ignore": 3, "normalization": "VALID"}
    program.softmax(x, y, axis=1)
    program.softmax_backward(y, z, dx, axis=1)
    program.softmax_loss(x, label, y, one, **loss)
    program.softmax_loss_backward(y, label, one, dx, **loss)
    flat = [Tensor((300_000,)) for _ in range(3)]
    program.update(
        flat[0], flat[1], [flat[2]], Tensor((1,)),
        formula="h = m * h + lr * rate * g; w = w - h", names=["lr"],
        segments=[(0, 300_000, 1.0, 1.0)], constants={"m": 0.9},
    )  # fmt: skip
    program.sum_of_squares(flat[0], one)


def test_steps_allocate_nothing() -> None:
    program = Program()
    record_everything(program)
    steps = prepare(NUMPY, program)
    sequence(steps)()
    peaks = {}
    tracemalloc.start()
    for call, step in zip(program.calls, steps, strict=True):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        step()
        peaks[call.name] = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    # NumPy casts through buffers of 8,192 elements.
    assert {name: peak for name, peak in peaks.items() if peak > 200_000} == {}


@pytest.mark.parametrize("backward", [False, True])
def test_channels_come_last_where_nothing_runs_backward(backward: bool) -> None:
    backend = Cpu()
    if backend.onednn is None or not backend.onednn.library.has_avx512:
        pytest.skip("oneDNN for AVX-512 only")
    program, settings = Program(), {"stride": (1, 1), "pad": (1, 1), "dilation": (1, 1), "group": 1}
    x, w, y = (Tensor((32, 32, *rest), flexible=True) for rest in ((6, 6), (3, 3), (6, 6)))
    program.convolution(x, w, None, y, **settings)
    if backward:
        program.convolution_backward_data(y, w, Tensor(x.shape, like=x), **settings)
    backend.prepare(program.calls)
    last = backend.onednn.library.plain(y.shape, (32 * 36, 1, 6 * 32, 32))
    assert (y.layout.form == last) is not backward


@pytest.mark.parametrize("channels", [1, 3, 20])
def test_twenty_channels_are_those_of_numpy(channels: int) -> None:
    """They have code of their own where nothing runs backward."""
    draw = np.random.default_rng(0)
    shapes = {"x": (2, channels, 14, 14), "w": (20, channels, 5, 5), "b": (20,)}
    tensors = {name: draw.normal(size=shape) for name, shape in shapes.items()}
    tensors["y"] = Output((2, 20, 10, 10))
    settings = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 1, "relu": 0.0}
    found, wanted = (
        run_call(backend, "convolution", tensors, settings)["y"]
        for backend in (Cpu(), Cpu("float64"))
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * wanted.max())
