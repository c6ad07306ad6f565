"""oneDNN's primitives against plain NumPy in float64, with blocked and row-major tensors."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu, onednn
from osucaffe.backends.formula import ELU, PRELU
from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Tensor

from ..cases_recurrent import SAMPLES, sample
from ..running import Runner, run_call
from .programs import DNN, NEEDS_ONEDNN, Given, blocked, close, run

pytestmark = NEEDS_ONEDNN


def taps(kernel, stride, dilation, out):  # type: ignore[no-untyped-def]
    """For each element of the kernel: its index, and the slice of the padded image it meets."""
    for k in itertools.product(*map(range, kernel)):
        yield (
            k,
            tuple(
                slice(i * d, i * d + (o - 1) * s + 1, s)
                for i, d, s, o in zip(k, dilation, stride, out, strict=True)
            ),
        )


def convolution(x, w, b, dy, stride, pad, dilation, group):  # type: ignore[no-untyped-def]
    """y, dx, dw, db in float64."""
    kernel, out = w.shape[2:], dy.shape[2:]
    extents = [
        (o - 1) * s + (k - 1) * d + 1
        for o, s, k, d in zip(out, stride, kernel, dilation, strict=True)
    ]
    after = [max(0, e - i - p) for e, i, p in zip(extents, x.shape[2:], pad, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pad, after, strict=True)])
    y, dx, dw = np.zeros(dy.shape), np.zeros(padded.shape), np.zeros(w.shape)
    inputs, outputs = w.shape[1], w.shape[0] // group
    for g in range(group):
        i, o = slice(g * inputs, (g + 1) * inputs), slice(g * outputs, (g + 1) * outputs)
        for k, where in taps(kernel, stride, dilation, out):
            y[:, o] += np.einsum("nc...,oc->no...", padded[:, i][(..., *where)], w[o][(..., *k)])
            dx[:, i][(..., *where)] += np.einsum("no...,oc->nc...", dy[:, o], w[o][(..., *k)])
            met = padded[:, i][(..., *where)].reshape(len(x), inputs, -1)
            dw[o][(..., *k)] += np.einsum("nop,ncp->oc", dy[:, o].reshape(len(x), outputs, -1), met)
    crop = tuple(slice(p, p + e) for p, e in zip(pad, x.shape[2:], strict=True))
    axes = (0, *range(2, dy.ndim))
    return y + b.reshape(-1, *(1 for _ in out)), dx[(..., *crop)], dw, dy.sum(axes)


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


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, row_major: bool) -> None:
    x_shape, w_shape, stride, pad, dilation, group = CONVOLUTIONS[name]
    settings: dict[str, Any] = {"stride": stride, "pad": pad, "dilation": dilation, "group": group}
    out = tuple(
        (i + 2 * p - d * (k - 1) - 1) // s + 1
        for i, p, d, k, s in zip(x_shape[2:], pad, dilation, w_shape[2:], stride, strict=True)
    )
    program = Program()
    x = Given(x_shape) if row_major else blocked(program, x_shape)
    w = Given(w_shape, flexible=not row_major, persistent=True)
    b = Given(w_shape[:1])
    y = Tensor((x_shape[0], w_shape[0], *out), flexible=not row_major)
    dy, dx, dw, db = (
        Given(y.shape, like=y),
        Tensor(x_shape, like=x),
        Tensor(w_shape, like=w),
        Tensor(b.shape),
    )
    dw2, db2 = Given(w_shape, like=w), Given(b.shape)
    program.convolution(x, w, b, y, **settings)
    program.convolution_backward_data(dy, w, dx, **settings)
    program.convolution_backward_filter(x, dy, dw, db, **settings)
    program.convolution_backward_filter(x, dy, dw2, db2, **settings)
    program.calls[-1].accumulates = frozenset(["dw", "db"])
    run(program)
    expected = convolution(x.given, w.given, b.given, dy.given, stride, pad, dilation, group)
    for tensor, values in zip((y, dx, dw, db), expected, strict=True):
        close(tensor, values)
    close(dw2, dw2.given + expected[2])
    close(db2, db2.given + expected[3])
    if w.layout is not None and w.size > w.count:  # what pads the channels stays zero
        assert np.count_nonzero(dw.array) == w.count


@pytest.mark.skipif("AVX-512" not in getattr(DNN, "instruction_set", ""), reason="no AVX-512")
def test_few_channels_lie_last_without_reorders() -> None:
    program = Program()
    x, y = Given((2, 1, 12, 12)), Tensor((2, 20, 8, 8), flexible=True)
    w = Given((20, 1, 5, 5), flexible=True)
    settings: dict[str, Any] = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 1}
    program.convolution(x, w, None, y, **settings)
    program.convolution_backward_filter(x, Given(y.shape, like=y), w, None, **settings)
    steps = [DNN.prepare(None, call) for call in program.calls]
    assert all("jit" in step.implementation for step in steps)  # one execution each
    assert y.layout is not None
    assert y.size == y.count


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_fused_relu(slope: float) -> None:
    program = Program()
    x, w, b = Given((2, 16, 5, 5)), Given((32, 16, 3, 3), flexible=True), Given((32,))
    y = Tensor((2, 32, 3, 3), flexible=True)
    settings: dict[str, Any] = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 1}
    program.convolution(x, w, b, y, relu=slope, **settings)
    v = Given((10, 32 * 9), flexible=True)
    z = Tensor((2, 10), flexible=True)
    program.inner_product(y, v, None, z, axis=1, transpose=False, relu=slope)
    run(program)
    expected, *_ = convolution(x.given, w.given, b.given, np.zeros(y.shape), *settings.values())
    expected = np.where(expected > 0, expected, slope * expected)
    close(y, expected)
    expected = expected.reshape(2, -1) @ v.given.T
    close(z, np.where(expected > 0, expected, slope * expected))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "flexible"),
    [((3, 20, 4, 4), 1, True), ((3, 40), 1, True), ((3, 20, 4, 4), 2, True), ((3, 40), 1, False)],
)
def test_inner_product(shape: tuple[int, ...], axis: int, flexible: bool, transpose: bool) -> None:
    program = Program()
    x = blocked(program, shape) if len(shape) == 4 else Given(shape)
    rows = int(np.prod(shape[:axis]))
    inner = x.count // rows
    w = Given((inner, 50) if transpose else (50, inner), flexible=flexible)
    b, y = Given((50,)), Tensor((*shape[:axis], 50), flexible=flexible)
    dy, dx, dw, db = Given(y.shape), Tensor(shape, like=x), Tensor(w.shape, like=w), Tensor((50,))
    dw2 = Given(w.shape, like=w)
    settings: dict[str, Any] = {"axis": axis, "transpose": transpose}
    program.inner_product(x, w, b, y, **settings)
    program.inner_product_backward_data(dy, w, dx, **settings)
    program.inner_product_backward_filter(x, dy, dw, db, **settings)
    program.inner_product_backward_filter(x, dy, dw2, None, **settings)
    program.calls[-1].accumulates = frozenset(["dw"])
    run(program)
    flat_x, flat_dy = x.given.reshape(rows, inner), dy.given.reshape(rows, 50)
    matrix = w.given if transpose else w.given.T
    close(y, (flat_x @ matrix + b.given).reshape(y.shape))
    close(dx, (flat_dy @ matrix.T).reshape(shape))
    gradient = flat_x.T @ flat_dy
    gradient = gradient if transpose else gradient.T
    close(dw, gradient)
    close(db, flat_dy.sum(0))
    close(dw2, dw2.given + gradient)


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
    program = Program()
    x = Given(shape) if row_major else blocked(program, shape)
    y = Tensor((*shape[:2], *out), flexible=True)
    dy, dx = Given(y.shape, like=y), Tensor(shape, like=x)
    settings: dict[str, Any] = {"kernel": kernel, "stride": stride, "pad": pad}
    if kind == "max":
        index = Tensor(y.shape, "int32", flexible=True)
        program.max_pooling(x, y, index, **settings)
        program.max_pooling_backward(dy, index, dx, **settings)
        again = Tensor(y.shape, flexible=True)
        program.max_pooling(x, again, None, **settings)
    else:
        program.average_pooling(x, y, **settings)
        program.average_pooling_backward(dy, dx, **settings)
    run(program)
    values, gradient = np.zeros(y.shape), np.zeros(shape)
    for n, c, i, j in np.ndindex(*y.shape):
        (top, bottom), (left, right) = (
            (o * s - p, o * s - p + k)
            for o, s, p, k in zip((i, j), stride, pad, kernel, strict=True)
        )
        area = (min(bottom, shape[2] + pad[0]) - top) * (min(right, shape[3] + pad[1]) - left)
        rows = slice(max(top, 0), min(bottom, shape[2]))
        columns = slice(max(left, 0), min(right, shape[3]))
        window = x.given[n, c, rows, columns]
        if kind == "max":
            values[n, c, i, j] = window.max()
            gradient[n, c, rows, columns] += dy.given[n, c, i, j] * (window == window.max())
        else:
            values[n, c, i, j] = window.sum() / area
            gradient[n, c, rows, columns] += dy.given[n, c, i, j] / area
    close(y, values)
    close(dx, gradient)
    if kind == "max":
        close(again, values)


def test_average_pooling_beyond_the_padding_is_declined() -> None:
    program = Program()
    x, y = Given((2, 16, 7, 7)), Tensor((2, 16, 4, 4), flexible=True)
    program.average_pooling(x, y, kernel=(4, 4), stride=(2, 2), pad=(1, 1))
    assert DNN.prepare(None, program.calls[0]) is None
    assert not program.calls[0].scratch


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize(
    ("within", "size", "beta", "channels"),
    [(False, 5, 0.75, 32), (False, 3, 0.75, 20), (False, 5, 0.5, 32), (True, 3, 0.75, 32)],
)
def test_lrn(within: bool, size: int, beta: float, channels: int, row_major: bool) -> None:
    program = Program()
    shape = (2, channels, 7, 6)
    x = Given(shape) if row_major else blocked(program, shape)
    y, note = Tensor(shape, flexible=True), Tensor(shape, flexible=True)
    dy, dx = Given(shape, like=y), Tensor(shape, like=x)
    settings: dict[str, Any] = {
        "size": size,
        "alpha": 0.3,
        "beta": beta,
        "k": 2.0,
        "within_channel": within,
    }
    program.lrn(x, y, note, **settings)
    program.lrn_backward(x, y, dy, note, dx, **settings)
    run(program)
    reach = size // 2

    def neighbours(values: np.ndarray) -> np.ndarray:
        if not within:
            padded = np.pad(values, [(0, 0), (reach, reach), (0, 0), (0, 0)])
            return sum(padded[:, i : i + channels] for i in range(size))  # type: ignore[return-value]
        padded = np.pad(values, [(0, 0), (0, 0), (reach, reach), (reach, reach)])
        return sum(padded[:, :, i : i + 7, j : j + 6] for i in range(size) for j in range(size))  # type: ignore[return-value]

    factor = 0.3 / (size**2 if within else size)
    scale = (1.0 if within else 2.0) + factor * neighbours(x.given**2)
    close(y, x.given * scale**-beta)
    through = neighbours(dy.given * x.given * scale ** (-beta - 1))
    close(dx, dy.given * scale**-beta - 2 * beta * factor * x.given * through)


@pytest.mark.parametrize("row_major", [True, False])
def test_elementwise(row_major: bool) -> None:
    program = Program()
    shape = (2, 20, 5, 4)
    x = Given(shape) if row_major else blocked(program, shape)
    y, z, dx = Tensor(shape, flexible=True), Tensor(shape, flexible=True), Tensor(shape, like=x)
    dy, total = Given(shape, like=y), Given(shape, like=x)
    program.relu(x, y, slope=0.1)
    program.relu_backward(x, dy, dx, slope=0.1)
    program.copy(y, z)
    program.sum([x, total], total, coefficients=[2.0, -1.0])
    run(program)
    expected = np.where(x.given > 0, x.given, 0.1 * x.given)
    close(y, expected)
    close(z, expected)
    close(dx, np.where(x.given > 0, dy.given, 0.1 * dy.given))
    close(total, 2 * x.given - total.given)


@pytest.mark.parametrize("channels", [32, 20])
def test_elu_and_prelu_where_they_lie(channels: int) -> None:
    program = Program()
    shape = (2, channels, 5, 6)
    x, y, z = blocked(program, shape), *(Tensor(shape, flexible=True) for _ in range(2))
    slopes = Given((1, channels, 1, 1))
    program.elementwise([x], [y], formula=ELU, constants={"alpha": 0.7})
    program.broadcast([y, slopes], [z], formula=PRELU)
    program.broadcast([z, slopes], [z], formula=PRELU)
    run(program)
    assert x.layout == y.layout == z.layout is not None
    expected = np.where(x.given > 0, x.given, 0.7 * np.expm1(x.given))
    close(y, expected)
    for _ in range(2):
        expected = np.where(expected > 0, expected, slopes.given * expected)
    close(z, expected)


@pytest.mark.parametrize("channels", [(16, 48, 32), (10, 6)])
def test_concat_and_split(channels: tuple[int, ...]) -> None:
    program = Program()
    xs = [blocked(program, (2, c, 4, 5)) for c in channels]
    y = Tensor((2, sum(channels), 4, 5), flexible=True)
    dy, dxs = Given(y.shape, like=y), [Tensor(x.shape, like=x) for x in xs]
    program.concat(xs, y, axis=1)
    program.split(dy, dxs, axis=1)
    run(program)
    close(y, np.concatenate([x.given for x in xs], 1))
    for dx, part in zip(dxs, np.split(dy.given, np.cumsum(channels)[:-1], 1), strict=True):
        close(dx, part)


def test_split_inside_a_block_is_declined() -> None:
    program = Program()
    y = blocked(program, (2, 32, 4, 5))
    program.split(y, [Tensor((2, 16 + i, 4, 5)) for i in (1, -1)], axis=1)
    assert [DNN.prepare(None, call) is None for call in program.calls] == [False, True]


def test_softmax() -> None:
    program = Program()
    x, y = Given((4, 30)), Tensor((4, 30))
    dy, dx = Given((4, 30)), Tensor((4, 30))
    program.softmax(x, y, axis=1)
    program.softmax_backward(y, dy, dx, axis=1)
    run(program)
    expected = np.exp(x.given) / np.exp(x.given).sum(1, keepdims=True)
    close(y, expected)
    close(dx, expected * (dy.given - (expected * dy.given).sum(1, keepdims=True)))


def test_other_dtypes_are_declined() -> None:
    program = Program()
    program.relu(Tensor((2, 3), "float64"), Tensor((2, 3), "float64"), slope=0.0)
    assert DNN.prepare(None, program.calls[0]) is None


def test_what_is_no_onednn_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "libdnnl.so.3"
    other.write_text("no library")
    for path in (other, "libc.so.6", ""):
        monkeypatch.setenv("OSUCAFFE_ONEDNN", str(path))
        assert onednn.load() is None


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
        assert DNN.prepare(None, runner.calls[0]) is not None
