"""oneDNN's primitives against NumPy's in float64, with blocked and row-major tensors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu, onednn
from osucaffe.backends.cpu.onednn import update
from osucaffe.backends.cpu.onednn.api import Failed, Unsupported
from osucaffe.backends.formula import ELU, PRELU
from osucaffe.backends.primitives import PRIMITIVES, Program
from osucaffe.backends.tensor import Tensor
from tests.backends import reference
from tests.backends.cases_recurrent import SAMPLES, sample
from tests.backends.running import Output, Runner, run_call
from tests.backends.test_primitives import CASES
from tests.processes import python

from .programs import DNN, NEEDS_ONEDNN, ONEDNN, Given, blocked, check, prepare

pytestmark = NEEDS_ONEDNN


def image(program: Program, shape: tuple[int, ...], row_major: bool) -> Tensor:
    return Given(shape) if row_major else blocked(program, shape)


UNIT: dict[str, Any] = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 1}
CONVOLUTIONS = {
    "padded channels": ((2, 20, 9, 8), (50, 20, 5, 5), (1, 1), (0, 0), (1, 1), 1),
    "first": ((2, 3, 23, 23), (32, 3, 11, 11), (4, 4), (0, 0), (1, 1), 1),
    "one channel": ((2, 1, 12, 12), (20, 1, 5, 5), (1, 1), (0, 0), (1, 1), 1),
    "groups": ((2, 32, 7, 9), (64, 16, 3, 5), (2, 1), (1, 2), (1, 1), 2),
    "odd groups": ((2, 6, 7, 9), (9, 2, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    "depthwise": ((2, 32, 7, 7), (32, 1, 3, 3), (1, 1), (1, 1), (1, 1), 32),
    "dilation": ((2, 16, 11, 11), (16, 16, 3, 3), (1, 1), (2, 2), (2, 2), 1),
    "window left over": ((2, 16, 10, 10), (16, 16, 3, 3), (2, 2), (0, 0), (1, 1), 1),
    "one dimension": ((2, 16, 11), (32, 16, 3), (1,), (1,), (1,), 1),
    "three dimensions": ((2, 16, 5, 6, 7), (32, 16, 3, 3, 3), (1, 1, 1), (1, 1, 0), (1, 1, 1), 1),
}


CHECKED = {"split", "average_pooling_backward", "recurrent", "recurrent_backward"}
"""Below, because they are served only where outputs have a layout, or all are row-major."""


def test_it_serves_what_it_has_code_for() -> None:
    served = set()
    for each in CASES:
        runner = Runner(ONEDNN, convolved=True)
        if each.first:
            runner.record(*each.first)
        runner.record(each.name, each.tensors, each.settings)
        if prepare(runner.program)[-1] is not None:
            served.add(each.name)
    functions = {name for module in onednn._MODULES for name in vars(module)}
    # Without AVX-512 oneDNN has only a reference of this one, which is left out.
    library = ONEDNN.onednn.library if ONEDNN.onednn else None
    lacks = set() if library and library.has_avx512 else {"softmax_backward"}
    assert served | CHECKED | lacks == functions.intersection(PRIMITIVES)


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, row_major: bool) -> None:
    x_shape, w_shape, *geometry = CONVOLUTIONS[name]
    settings: dict[str, Any] = dict(zip(UNIT, geometry, strict=True))
    axes = zip(x_shape[2:], w_shape[2:], *geometry[:3], strict=True)
    out = [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in axes]

    def record(program: Program) -> list[Tensor]:
        x = image(program, x_shape, row_major)
        w = Given(w_shape, flexible=not row_major, persistent=True)
        b = Given(w_shape[:1])
        y = Tensor((x_shape[0], w_shape[0], *out), flexible=not row_major)
        dy, dx = Given(y.shape, like=y), Tensor(x_shape, like=x)
        dw, db = Tensor(w_shape, like=w), Tensor(b.shape)
        dw2, db2 = Given(w_shape, like=w), Given(b.shape)
        program.convolution(x, w, b, y, **settings)
        program.convolution_backward_data(dy, w, dx, **settings)
        program.convolution_backward_filter(x, dy, dw, db, **settings)
        program.convolution_backward_filter(x, dy, dw2, db2, **settings)
        program.calls[-1].accumulates = frozenset(["dw", "db"])
        return [dw, y, dx, db, dw2, db2]

    dw, *_ = check(record)
    if dw.layout is not None and dw.size > dw.count:  # what pads the channels stays zero
        assert np.count_nonzero(dw.array) == dw.count


@pytest.mark.skipif("AVX-512" not in getattr(DNN, "instruction_set", ""), reason="no AVX-512")
def test_few_channels_lie_last_without_reorders() -> None:
    program = Program()
    x, y = Given((2, 1, 12, 12)), Tensor((2, 20, 8, 8), flexible=True)
    w = Given((20, 1, 5, 5), flexible=True)
    program.convolution(x, w, None, y, **UNIT)
    program.convolution_backward_filter(x, Given(y.shape, like=y), w, None, **UNIT)
    assert all("jit" in step.implementation for step in prepare(program))  # one execution each
    assert y.layout is not None
    assert y.size == y.count


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_fused_relu(slope: float) -> None:
    def record(program: Program) -> list[Tensor]:
        x, w, b = Given((2, 16, 5, 5)), Given((32, 16, 3, 3), flexible=True), Given((32,))
        y, z = Tensor((2, 32, 3, 3), flexible=True), Tensor((2, 10), flexible=True)
        v = Given((10, 32 * 9), flexible=True)
        program.convolution(x, w, b, y, relu=slope, **UNIT)
        program.inner_product(y, v, None, z, axis=1, transpose=False, relu=slope)
        return [y, z]

    check(record)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "flexible"),
    [((3, 20, 4, 4), 1, True), ((3, 40), 1, True), ((3, 20, 4, 4), 2, True), ((3, 40), 1, False)],
)
def test_inner_product(shape: tuple[int, ...], axis: int, flexible: bool, transpose: bool) -> None:
    settings: dict[str, Any] = {"axis": axis, "transpose": transpose}

    def record(program: Program) -> list[Tensor]:
        x = image(program, shape, len(shape) < 4)
        inner = int(np.prod(shape[axis:]))
        w = Given((inner, 50) if transpose else (50, inner), flexible=flexible)
        b, y = Given((50,)), Tensor((*shape[:axis], 50), flexible=flexible)
        dy, dx = Given(y.shape), Tensor(shape, like=x)
        dw, db, dw2 = Tensor(w.shape, like=w), Tensor((50,)), Given(w.shape, like=w)
        program.inner_product(x, w, b, y, **settings)
        program.inner_product_backward_data(dy, w, dx, **settings)
        program.inner_product_backward_filter(x, dy, dw, db, **settings)
        program.inner_product_backward_filter(x, dy, dw2, None, **settings)
        program.calls[-1].accumulates = frozenset(["dw"])
        return [y, dx, dw, db, dw2]

    check(record)


POOLINGS = {
    "even": ((2, 20, 8, 8), (2, 2), (2, 2), (0, 0), (4, 4)),
    "rounded up": ((2, 32, 8, 8), (3, 3), (2, 2), (0, 0), (4, 4)),
    "padded": ((2, 32, 7, 6), (3, 3), (1, 1), (1, 1), (7, 6)),
    "global": ((2, 32, 7, 7), (7, 7), (1, 1), (0, 0), (1, 1)),
}


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("name", POOLINGS)
def test_pooling(name: str, row_major: bool, kind: str) -> None:
    shape, kernel, stride, pad, out = POOLINGS[name]
    settings: dict[str, Any] = {"kernel": kernel, "stride": stride, "pad": pad}

    def record(program: Program) -> list[Tensor]:
        x = image(program, shape, row_major)
        y = Tensor((*shape[:2], *out), flexible=True)
        dy, dx = Given(y.shape, like=y), Tensor(shape, like=x)
        if kind == "average":
            program.average_pooling(x, y, **settings)
            program.average_pooling_backward(dy, dx, **settings)
            return [y, dx]
        index, again = Tensor(y.shape, "int32", flexible=True), Tensor(y.shape, flexible=True)
        program.max_pooling(x, y, index, **settings)
        program.max_pooling_backward(dy, index, dx, **settings)
        program.max_pooling(x, again, None, **settings)
        return [y, dx, again]

    check(record)


def test_what_onednn_notes_has_no_values_to_read_or_write() -> None:
    program, index = Program(), Tensor((2, 20, 4, 4), "int32", flexible=True, name="pool index")
    x, y = blocked(program, (2, 20, 8, 8)), Tensor(index.shape, flexible=True)
    program.max_pooling(x, y, index, kernel=(2, 2), stride=(2, 2), pad=(0, 0))
    assert None not in prepare(program)
    ONEDNN.allocate_for(index)
    for touch in (lambda: ONEDNN.read(index), lambda: ONEDNN.write(index, 0)):
        with pytest.raises(ValueError, match="pool index holds what oneDNN noted"):
            touch()


def test_average_pooling_beyond_the_padding_is_declined() -> None:
    program = Program()
    x, y = Given((2, 16, 7, 7)), Tensor((2, 16, 4, 4), flexible=True)
    program.average_pooling(x, y, kernel=(4, 4), stride=(2, 2), pad=(1, 1))
    assert prepare(program) == [None]
    assert not program.calls[0].scratch


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize(
    ("within", "size", "beta", "channels"),
    [(False, 5, 0.75, 32), (False, 3, 0.75, 20), (False, 5, 0.5, 32), (True, 3, 0.75, 32)],
)
def test_lrn(within: bool, size: int, beta: float, channels: int, row_major: bool) -> None:
    shape = (2, channels, 7, 6)
    settings: dict[str, Any] = {
        "size": size, "alpha": 0.3, "beta": beta, "k": 2.0, "within_channel": within,
    }  # fmt: skip

    def record(program: Program) -> list[Tensor]:
        x = image(program, shape, row_major)
        y, note = Tensor(shape, flexible=True), Tensor(shape, flexible=True)
        dy, dx = Given(shape, like=y), Tensor(shape, like=x)
        program.lrn(x, y, note, **settings)
        program.lrn_backward(x, y, dy, note, dx, **settings)
        return [y, dx]

    check(record)


@pytest.mark.parametrize("channels", [32, 20])
def test_elu_and_prelu_where_they_lie(channels: int) -> None:
    shape = (2, channels, 5, 6)

    def record(program: Program) -> list[Tensor]:
        x, y, z = blocked(program, shape), *(Tensor(shape, flexible=True) for _ in range(2))
        slopes = Given((1, channels, 1, 1))
        program.elementwise([x], [y], formula=ELU, constants={"alpha": 0.7})
        program.broadcast([y, slopes], [z], formula=PRELU)
        program.broadcast([z, slopes], [z], formula=PRELU)
        return [x, y, z]

    x, y, z = check(record)
    assert x.layout == y.layout == z.layout is not None


@pytest.mark.parametrize("channels", [32, 20])
def test_products_and_sums_where_they_lie(channels: int) -> None:
    shape = (2, channels, 5, 6)

    def record(program: Program) -> list[Tensor]:
        x, *ys = blocked(program, shape), *(Tensor(shape, flexible=True) for _ in range(4))
        scale, bias = Given((channels,)), Given((channels,))
        program.batch_norm(x, None, None, scale, None, None, ys[0])
        program.batch_norm(x, None, None, scale, bias, None, ys[1])
        program.batch_norm(x, None, None, scale, bias, ys[0], ys[2], relu=True)
        factor = scale.view((1, channels, 1, 1))
        program.broadcast([factor, x, ys[1]], [ys[3]], formula="y = a * b + c")
        program.broadcast([ys[3], factor], [ys[3]], formula="y = a + b")
        return [x, *ys]

    x, *ys = check(record)
    for y in ys:
        assert y.layout == x.layout is not None
        assert np.count_nonzero(y.array) <= y.count  # what pads the channels stays zero


@pytest.mark.parametrize("batch", [1, 2])
def test_sums_along_channels_of_one_element_are_numpy_s(batch: int) -> None:
    program = Program()
    x, y = (Tensor((batch, 6, 1, 1)) for _ in range(2))
    program.batch_norm(x, None, None, Tensor((6,)), Tensor((6,)), None, y)
    program.batch_norm(x, None, None, Tensor((6,)), None, None, y)
    assert [step is None for step in prepare(program)] == [batch > 1, False]


def test_a_deconvolution_to_few_channels_is_a_product() -> None:
    settings = UNIT | {"stride": (3, 3), "pad": (4, 4)}
    steps = []

    def record(program: Program) -> list[Tensor]:
        x, w = blocked(program, (2, 56, 7, 7)), Given((56, 1, 9, 9), flexible=True)
        y = Tensor((2, 1, 19, 19), flexible=True)
        program.convolution_backward_data(x, w, y, **settings)
        steps.append(program.calls[-1])
        return [y]

    check(record)
    assert steps[0].implementation == "oneDNN: x64:gemm:jit"


def test_split_into_parts_that_lie_alike() -> None:
    def record(program: Program) -> list[Tensor]:
        xs = [blocked(program, (2, c, 4, 5)) for c in (16, 48, 32)]
        y = Tensor((2, 96, 4, 5), flexible=True)
        program.concat(xs, y, axis=1)
        dxs = [Tensor(x.shape, like=x) for x in xs]
        program.split(Given(y.shape, like=y), dxs, axis=1)
        return [y, *dxs]

    check(record)


def test_split_inside_a_block_is_declined() -> None:
    program = Program()
    y = blocked(program, (2, 32, 4, 5))
    program.split(y, [Tensor((2, 16 + i, 4, 5)) for i in (1, -1)], axis=1)
    assert [step is None for step in prepare(program)] == [False, True]


@pytest.mark.parametrize("shape", [(2, 5, 6, 7), (1500, 2), (1500, 8)])
def test_softmax_of_planes_or_of_many_short_lines_is_numpy_s(shape: tuple[int, ...]) -> None:
    program = Program()
    program.softmax(Tensor(shape), Tensor(shape), axis=1)
    assert prepare(program) == [None]
    values = np.random.default_rng(3).normal(0, 9, shape)
    tensors = {"x": values, "y": Output(shape)}
    found = run_call(Cpu(), "softmax", tensors, {"axis": 1}, flexible=False)
    wanted = reference.softmax(values, 1)
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("size", [1000, update.PIECE + 100])
def test_update(size: int) -> None:
    segments = [(0, 300, 1.0, 1.0), (300, 400, 2.0, 0.0), (400, size, 1.0, 1.0)]

    def record(program: Program) -> list[Tensor]:
        w, g, h = (Given((size,)) for _ in range(3))
        program.update(
            w, g, [h], Given((1,), np.array([0.5])), names=["lr"], segments=segments,
            constants={"momentum": 0.9, "weight_decay": 0.1}, formula="g = g / 2;"
            "g = g + weight_decay * decay * w; h = momentum * h + lr * rate * g; w = w - h",
        )  # fmt: skip
        return [h, w, g]

    check(record)


@pytest.mark.parametrize(
    "formula",
    [
        "w = w - lr * sign(g)",
        "w = w - lr * g * g",
        "w = w - lr",
        "w = lr * g",
        "w = lr * w",
        "v = momentum * h; h = v + lr * g; w = w - ((1 + momentum) * h - v)",
    ],
)
def test_other_update_rules_are_declined(formula: str) -> None:
    with pytest.raises(Unsupported):
        update.additions(formula, ["w", "g", "h"], ["lr"], {"momentum": 0.9})


def test_other_dtypes_are_declined() -> None:
    program = Program()
    program.relu(Tensor((2, 3), "float64"), Tensor((2, 3), "float64"), slope=0.0)
    assert prepare(program) == [None]


def test_what_is_no_onednn_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "libdnnl.so.3"
    other.write_text("no library")
    for path, told in (other, "file too short"), ("libc.so.6", "is not oneDNN"), ("", ""):
        caplog.clear()
        monkeypatch.setenv("OSUCAFFE_ONEDNN", str(path))
        assert onednn.load() is None
        assert told in caplog.text
        assert bool(caplog.text) == bool(told)


def test_short_memory_is_told() -> None:
    """NumPy would go on, to other last bits."""
    text = """
import resource
from osucaffe.backends.cpu import Cpu
pages = int(open("/proc/self/statm").read().split()[0])
size = pages * resource.getpagesize() + (40 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
try:
    Cpu()
except MemoryError as error:
    print(error)
"""
    done = python("-c", text, timeout=60)
    assert done.stdout == "oneDNN needs more\n", done.stderr


@pytest.mark.parametrize("name", SAMPLES)
def test_recurrence(name: str) -> None:
    """Against NumPy's in double precision, with blocked weights; oneDNN leaves no product to it."""
    forward, backward = sample(*SAMPLES[name])
    for call, first in ((forward, None), (backward, forward)):
        found = run_call(Cpu(), *call, first=first)
        wanted = run_call(Cpu("float64"), *call, first=first)
        for argument, values in wanted.items():
            np.testing.assert_allclose(found[argument], values, atol=1e-5, err_msg=argument)
        runner = Runner(Cpu())
        runner.record(*call)
        assert prepare(runner.program) != [None]


def test_what_fails_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a wrong argument of ours, where NumPy computes instead; not what oneDNN does not have."""

    def failing(kind: type[Unsupported], *_: object, **__: object) -> None:
        raise kind("dnnl_create: status 2")

    relu = next(each for each in CASES if each.name == "relu")
    for kind in Unsupported, Failed, Failed:
        monkeypatch.setattr(ONEDNN.onednn.library, "describe", partial(failing, kind))
        runner = Runner(ONEDNN, flexible=False)
        runner.record(relu.name, relu.tensors, relu.settings)
        runner.prepare()()
        [output] = relu.expected.values()
        np.testing.assert_allclose(runner.read(relu.tensors["y"]), output)
    [said] = [each.getMessage() for each in caplog.records]
    assert "oneDNN fails at relu (dnnl_create: status 2)" in said
