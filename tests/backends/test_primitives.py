"""Every primitive, by its name, on every backend, against plain versions in float64.

A new backend joins with one entry in BACKENDS, a new primitive with its cases in CASES.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.primitives import NAMES
from osucaffe.backends.random import RandomState, call_key

from . import reference
from .running import Output, Spec, run_call

BACKENDS: dict[str, tuple[Callable[[], Any], bool]] = {
    "numpy": (lambda: Cpu(onednn=False), True),
    "numpy float64": (lambda: Cpu("float64"), True),
    "onednn": (Cpu, False),
    "onednn blocked": (Cpu, True),
}
"""How to make each variant, and whether it is offered flexible tensors."""

STATE = RandomState(seed=7, step=3)


@functools.cache
def make(variant: str) -> Any:
    backend = BACKENDS[variant][0]()
    backend.random = STATE
    return backend


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    made = make(request.param)
    if request.param.startswith("onednn") and made.onednn is None:
        pytest.skip("no oneDNN library here")
    return made


@dataclass
class Case:
    """One call and what it should write: computed when the case first runs, for all backends."""

    label: str
    name: str
    tensors: dict[str, Spec]
    settings: dict[str, Any]
    expect: Callable[[], dict[str, Any]]
    first: tuple[str, dict[str, Spec], dict[str, Any]] | None = None
    expected: dict[str, Any] = field(default_factory=dict)


CASES: list[Case] = []
random = np.random.default_rng(0)


def case(
    label: str,
    name: str,
    tensors: dict[str, Spec],
    settings: dict[str, Any],
    expect: Callable[[], dict[str, Any]],
    first: tuple[str, dict[str, Spec], dict[str, Any]] | None = None,
) -> None:
    CASES.append(Case(label, name, tensors, settings, expect, first))


def normal(*shape: int) -> np.ndarray:
    """Random numbers that float32 holds, in float64."""
    return random.standard_normal(shape).astype(np.float32).astype(np.float64)


def labels(classes: int, *shape: int) -> np.ndarray:
    return random.integers(classes, size=shape).astype(np.float64)


def assert_close(found: Any, wanted: Any, tolerance: float, what: str) -> None:
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape, what
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=what)
    scale = np.max(np.abs(wanted), initial=1e-3, where=~np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale, err_msg=what)


def movement_cases() -> None:
    x, y, z = normal(2, 3, 4, 5), normal(2, 1, 4, 5), normal(2, 18, 4, 5)
    out = Output((2, 3, 4, 5))
    case("zero", "fill", {"y": out}, {"value": 0.0}, lambda: {"y": np.zeros(x.shape)})
    case("value", "fill", {"y": out}, {"value": -1.5}, lambda: {"y": np.full(x.shape, -1.5)})
    case("", "copy", {"x": x, "y": out}, {}, lambda: {"y": x})
    together = np.concatenate([x, y, z], axis=1)
    case("channels", "concat", {"xs": [x, y, z], "y": Output(together.shape)}, {"axis": 1},
         lambda: {"y": together})  # fmt: skip
    case("last axis", "concat", {"xs": [x, x], "y": Output((2, 3, 4, 10))}, {"axis": 3},
         lambda: {"y": np.concatenate([x, x], axis=3)})  # fmt: skip
    parts = [Output(x.shape), None, Output(z.shape)]
    case("with a gap", "split", {"x": together, "ys": parts}, {"axis": 1},
         lambda: {"ys": [x, None, z]})  # fmt: skip
    case("batch", "split", {"x": x, "ys": [Output((1, 3, 4, 5)), Output((1, 3, 4, 5))]},
         {"axis": 0}, lambda: {"ys": [x[:1], x[1:]]})  # fmt: skip

    case("", "permute", {"x": x, "y": Output((4, 2, 5, 3))}, {"axes": (2, 0, 3, 1)},
         lambda: {"y": x.transpose(2, 0, 3, 1)})  # fmt: skip
    small, box = normal(1, 2, 4, 3), (slice(1, 2), slice(0, 2), slice(0, 4), slice(2, 5))
    offsets = {"offsets": (1, 0, 0, 2)}
    case("", "crop", {"x": x, "y": Output(small.shape)}, offsets, lambda: {"y": x[box]})

    def surrounded() -> dict[str, Any]:
        dx = np.zeros(x.shape)
        dx[box] = small
        return {"dx": dx}

    case("", "crop_backward", {"dy": small, "dx": Output(x.shape)}, offsets, surrounded)
    for label, table, index in [
        ("rows", normal(5, 3, 2), labels(5, 4, 2)), ("numbers", normal(6), labels(6, 9)),
    ]:  # fmt: skip
        shape = (*index.shape, *table.shape[1:])
        rows, dy = index.astype(int), normal(*shape)
        scattered = functools.partial(
            reference.gradient, lambda table, rows=rows: table[rows], table, dy
        )
        case(label, "gather", {"x": table, "index": index, "y": Output(shape)}, {},
             lambda table=table, rows=rows: {"y": table[rows]})  # fmt: skip
        case(label, "gather_backward", {"dy": dy, "index": index, "dx": Output(table.shape)}, {},
             lambda f=scattered: {"dx": f()})  # fmt: skip
        case(label, "gather_gradient", {"dy": dy, "index": index, "dw": Output(table.shape)}, {},
             lambda f=scattered: {"dw": f()})  # fmt: skip
    outside = {"x": np.ones((3, 2)), "index": np.array([0.0, 3, -1]), "y": Output((3, 2))}
    case("out of range", "gather", outside, {},
         lambda: {"y": [[1, 1], [np.nan, np.nan], [np.nan, np.nan]]})  # fmt: skip
    case("", "positions", {"y": Output((2, 3, 4))}, {},
         lambda: {"y": np.arange(24).reshape(2, 3, 4)})  # fmt: skip


def elementwise_cases() -> None:
    a, b, c = normal(2, 16, 5, 5), normal(2, 16, 5, 5), normal(2, 16, 5, 5)
    y, z = Output(a.shape), Output(a.shape)
    case("one statement", "elementwise", {"inputs": [a, b], "outputs": [y]},
         {"formula": "y = where(a > b, a, slope * b)", "constants": {"slope": 0.25}},
         lambda: {"outputs": [np.where(a > b, a, 0.25 * b)]})  # fmt: skip
    case("temporaries", "elementwise", {"inputs": [a, b], "outputs": [y, z]},
         {"formula": "t = exp(-abs(a)); y = log1p(t) + max(a, 0); z = t * b + 1"},
         lambda: {"outputs": [np.log1p(np.exp(a)), np.exp(-abs(a)) * b + 1]})  # fmt: skip
    case("in place", "elementwise", {"inputs": [a, b], "outputs": [a, b]},
         {"formula": "y = a * 2 + b; z = a - b"},
         lambda: {"outputs": [2 * a + b, a - b]})  # fmt: skip
    large = normal(300_000)
    case("several threads", "elementwise", {"inputs": [large], "outputs": [Output(large.shape)]},
         {"formula": "y = tanh(a) * a"},
         lambda: {"outputs": [np.tanh(large) * large]})  # fmt: skip
    case("plain", "sum", {"xs": [a, b], "y": y}, {}, lambda: {"y": a + b})
    case("coefficients", "sum", {"xs": [a, b, c], "y": y}, {"coefficients": [1.0, -2.0, 0.5]},
         lambda: {"y": a - 2 * b + c / 2})  # fmt: skip
    case("onto the second", "sum", {"xs": [a, b, c], "y": b}, {}, lambda: {"y": a + b + c})
    for slope in 0.0, 0.1:
        value, derivative = np.where(a > 0, a, slope * a), np.where(a > 0, b, slope * b)
        settings = {"slope": slope}
        case(f"slope {slope}", "relu", {"x": a, "y": y}, settings, lambda v=value: {"y": v})
        case(f"in place, slope {slope}", "relu", {"x": a, "y": a}, settings,
             lambda v=value: {"y": v})  # fmt: skip
        case(f"slope {slope}", "relu_backward", {"x": a, "dy": b, "dx": y}, settings,
             lambda v=derivative: {"dx": v})  # fmt: skip
        case(f"in place, slope {slope}", "relu_backward", {"x": a, "dy": b, "dx": b}, settings,
             lambda v=derivative: {"dx": v})  # fmt: skip


def broadcast_cases() -> None:
    for label, shapes, axes in [
        ("channel", [(2, 3, 4, 5), (1, 3, 1, 1)], (0, 2, 3)),
        ("both ways", [(2, 1, 4), (1, 3, 1)], (1,)),
        ("last axis", [(6, 7), (6, 1)], (0,)),
        ("large", [(3, 5, 170, 120), (1, 5, 1, 120)], (0, 2)),
        ("one long axis", [(40_000,), (1,)], (0,)),
        ("nothing to sum", [(2, 3), (1, 3)], ()),
    ]:
        a, b = (normal(*shape) for shape in shapes)
        y, z = a * b + b, np.exp(-abs(a * b))
        outputs = [Output(y.shape), Output(y.shape)]
        case(label, "broadcast", {"inputs": [a, b], "outputs": outputs},
             {"formula": "t = a * b; y = t + b; z = exp(-abs(t))"},
             lambda y=y, z=z: {"outputs": [y, z]})  # fmt: skip
        total = y.sum(axis=axes)
        settings = {"formula": "y = k * (a * b + b)", "axes": axes, "constants": {"k": 2.0}}
        tensors = {"inputs": [a, b]}
        case(label, "reduce", tensors | {"y": Output(total.shape)}, settings,
             lambda total=total: {"y": 2 * total})  # fmt: skip
        case(label, "reduce_gradient", tensors | {"dw": Output(total.shape)}, settings,
             lambda total=total: {"dw": 2 * total})  # fmt: skip
    case("in place", "broadcast", {"inputs": [a, b], "outputs": [a]}, {"formula": "y = a - b"},
         lambda: {"outputs": [a - b]})  # fmt: skip


def dropout_cases() -> None:
    for ratio, shape in (0.5, (4, 19, 3, 3)), (0.2, (40_000,)):
        x, dy, mask = normal(*shape), normal(*shape), Output(shape, "uint8")

        @functools.cache
        def scale(ratio: float = ratio, shape: tuple[int, ...] = shape) -> np.ndarray:
            key, start = call_key(STATE.seed, 5), STATE.step << 32
            drawn = [reference.squares32(start + i, key) for i in range(np.prod(shape))]
            keep = np.array(drawn).reshape(shape) >= ratio * 2**32
            return keep / (1 - ratio)

        settings = {"ratio": ratio, "key": 5}
        forward = ("dropout", {"x": x, "y": Output(shape), "mask": mask}, settings)
        case(f"ratio {ratio}", "dropout", {"x": x, "y": Output(shape), "mask": mask}, settings,
             lambda x=x, s=scale: {"y": x * s()})  # fmt: skip
        case(f"in place, ratio {ratio}", "dropout", {"x": x, "y": x, "mask": mask}, settings,
             lambda x=x, s=scale: {"y": x * s()})  # fmt: skip
        case(f"ratio {ratio}", "dropout_backward", {"dy": dy, "mask": mask, "dx": Output(shape)},
             settings, lambda dy=dy, s=scale: {"dx": dy * s()}, forward)  # fmt: skip


def convolution_cases() -> None:
    def geometry(stride, pad, dilation, group) -> dict[str, Any]:
        return {"stride": stride, "pad": pad, "dilation": dilation, "group": group}

    table = [
        ("3x3", (2, 3, 6, 5), (4, 3, 3, 3), geometry([1, 1], [1, 1], [1, 1], 1)),
        ("uneven", (2, 3, 8, 7), (2, 3, 2, 3), geometry([3, 2], [0, 2], [1, 1], 1)),
        ("1x1", (2, 5, 3, 4), (3, 5, 1, 1), geometry([1, 1], [0, 0], [1, 1], 1)),
        ("1x1 stride 2", (2, 5, 5, 4), (3, 5, 1, 1), geometry([2, 2], [0, 0], [1, 1], 1)),
        ("groups", (2, 4, 5, 5), (6, 2, 3, 3), geometry([1, 1], [1, 1], [1, 1], 2)),
        ("depthwise", (1, 4, 5, 5), (4, 1, 3, 3), geometry([2, 2], [1, 1], [1, 1], 4)),
        ("dilated", (1, 2, 8, 9), (3, 2, 3, 2), geometry([2, 1], [2, 1], [2, 3], 1)),
        ("1-d", (2, 3, 9), (4, 3, 4), geometry([2], [1], [1], 1)),
        ("3-d", (1, 2, 4, 5, 3), (3, 2, 2, 3, 2), geometry([1, 2, 1], [1, 0, 1], [1, 1, 1], 1)),
        ("channel blocks", (1, 16, 4, 4), (32, 16, 3, 3), geometry([1, 1], [1, 1], [1, 1], 1)),
    ]
    for label, image, kernel, settings in table:
        x, w, b = normal(*image), normal(*kernel), normal(kernel[0])
        forward = functools.partial(reference.convolution, **settings)
        y = forward(x, w, b)
        dy = normal(*y.shape)
        case(label, "convolution", {"x": x, "w": w, "b": b, "y": Output(y.shape)}, settings,
             lambda y=y: {"y": y})  # fmt: skip
        case(label, "convolution_backward_data", {"dy": dy, "w": w, "dx": Output(image)}, settings,
             lambda f=forward, x=x, w=w, dy=dy: {
                 "dx": reference.gradient(lambda x: f(x, w, None), x, dy)
             })  # fmt: skip
        if label == "channel blocks":  # too many weights for finite differences
            continue
        case(label, "convolution_backward_filter",
             {"x": x, "dy": dy, "dw": Output(kernel), "db": Output((kernel[0],))}, settings,
             lambda f=forward, x=x, w=w, dy=dy: {
                 "dw": reference.gradient(lambda w: f(x, w, None), w, dy),
                 "db": dy.sum(axis=(0, *range(2, dy.ndim))),
             })  # fmt: skip

        if settings["group"] > 1:
            continue
        window = {k: v for k, v in settings.items() if k != "group"} | {"kernel": kernel[2:]}
        columns = functools.partial(reference.im2col, **window)
        shape = columns(x).shape
        dy = normal(*shape)
        case(label, "im2col", {"x": x, "y": Output(shape)}, window,
             lambda f=columns, x=x: {"y": f(x)})  # fmt: skip
        case(label, "im2col_backward", {"dy": dy, "dx": Output(image)}, window,
             lambda f=columns, x=x, dy=dy: {"dx": reference.gradient(f, x, dy)})  # fmt: skip

    label, image, kernel, settings = table[0]
    x, w = normal(*image), normal(*kernel)
    y = reference.convolution(x, w, None, **settings)
    for slope in 0.0, 0.1:
        case(f"no bias, ReLU {slope}", "convolution",
             {"x": x, "w": w, "b": None, "y": Output(y.shape)}, settings | {"relu": slope},
             lambda y=y, s=slope: {"y": np.where(y > 0, y, s * y)})  # fmt: skip
    dy = normal(*y.shape)
    case("weights only", "convolution_backward_filter",
         {"x": x, "dy": dy, "dw": Output(kernel), "db": None}, settings,
         lambda: {"dw": reference.gradient(
             lambda w: reference.convolution(x, w, None, **settings), w, dy)})  # fmt: skip
    case("bias only", "convolution_backward_filter",
         {"x": x, "dy": dy, "dw": None, "db": Output(kernel[:1])}, settings,
         lambda: {"db": dy.sum(axis=(0, 2, 3))})  # fmt: skip


def inner_product_cases() -> None:
    for label, shape, axis, outputs, transpose in [
        ("matrix", (4, 6), 1, 5, False),
        ("transposed", (4, 6), 1, 5, True),
        ("image", (3, 2, 4, 2), 1, 7, False),
        ("axis 2", (2, 3, 4, 2), 2, 3, False),
        ("axis 0", (5, 3), 0, 2, True),
        ("one row", (1, 12), 1, 5, False),
    ]:
        inside = int(np.prod(shape[axis:]))
        x, b = normal(*shape), normal(outputs)
        w = normal(inside, outputs) if transpose else normal(outputs, inside)
        settings = {"axis": axis, "transpose": transpose}
        forward = functools.partial(reference.inner_product, **settings)
        y = forward(x, w, b)
        dy = normal(*y.shape)
        case(label, "inner_product", {"x": x, "w": w, "b": b, "y": Output(y.shape)}, settings,
             lambda y=y: {"y": y})  # fmt: skip
        case(f"{label}, ReLU", "inner_product", {"x": x, "w": w, "b": None, "y": Output(y.shape)},
             settings | {"relu": 0.1},
             lambda y=y - b: {"y": np.where(y > 0, y, 0.1 * y)})  # fmt: skip
        case(label, "inner_product_backward_data", {"dy": dy, "w": w, "dx": Output(shape)},
             settings, lambda f=forward, x=x, w=w, dy=dy: {
                 "dx": reference.gradient(lambda x: f(x, w, None), x, dy)
             })  # fmt: skip
        case(label, "inner_product_backward_filter",
             {"x": x, "dy": dy, "dw": Output(w.shape), "db": Output((outputs,))}, settings,
             lambda f=forward, x=x, w=w, b=b, dy=dy: {
                 "dw": reference.gradient(lambda w: f(x, w, b), w, dy),
                 "db": reference.gradient(lambda b: f(x, w, b), b, dy),
             })  # fmt: skip


def pooling_cases() -> None:
    for label, image, out, settings in [
        ("2x2", (2, 3, 6, 8), (3, 4), {"kernel": [2, 2], "stride": [2, 2], "pad": [0, 0]}),
        ("overlapping", (2, 3, 7, 7), (3, 3), {"kernel": [3, 3], "stride": [2, 2], "pad": [0, 0]}),
        ("rounded up", (1, 2, 6, 7), (3, 4), {"kernel": [3, 2], "stride": [2, 2], "pad": [0, 0]}),
        ("padded", (1, 4, 5, 5), (3, 3), {"kernel": [3, 3], "stride": [2, 2], "pad": [1, 1]}),
        ("padded, rounded up", (1, 2, 6, 6), (4, 3),
         {"kernel": [3, 4], "stride": [2, 3], "pad": [1, 1]}),
        ("global", (2, 3, 4, 5), (1, 1), {"kernel": [4, 5], "stride": [1, 1], "pad": [0, 0]}),
        ("gaps", (1, 2, 7, 7), (2, 2), {"kernel": [2, 2], "stride": [4, 5], "pad": [0, 0]}),
        ("1-d", (2, 3, 9), (5,), {"kernel": [3], "stride": [2], "pad": [1]}),
        ("3-d", (1, 2, 4, 5, 4), (2, 2, 2),
         {"kernel": [2, 3, 2], "stride": [2, 2, 2], "pad": [0, 0, 0]}),
        ("blocks", (2, 17, 6, 6), (3, 3), {"kernel": [3, 3], "stride": [2, 2], "pad": [0, 0]}),
    ]:  # fmt: skip
        x = normal(*image)
        shape = (*image[:2], *out)
        dy, index = normal(*shape), Output(shape, "int32")
        largest = functools.partial(reference.max_pooling, out=out, **settings)
        mean = functools.partial(reference.average_pooling, out=out, **settings)
        forward = ("max_pooling", {"x": x, "y": Output(shape), "index": index}, settings)
        case(label, *forward, lambda f=largest, x=x: {"y": f(x)[0]})
        case(f"{label}, no index", "max_pooling", forward[1] | {"index": None}, settings,
             lambda f=largest, x=x: {"y": f(x)[0]})  # fmt: skip
        case(label, "average_pooling", {"x": x, "y": Output(shape)}, settings,
             lambda f=mean, x=x: {"y": f(x)})  # fmt: skip
        if label == "blocks":
            continue
        case(label, "max_pooling_backward", {"dy": dy, "index": index, "dx": Output(image)},
             settings, lambda f=largest, x=x, dy=dy: {
                 "dx": reference.gradient(lambda x: f(x)[0], x, dy)
             }, forward)  # fmt: skip
        case(label, "average_pooling_backward", {"dy": dy, "dx": Output(image)}, settings,
             lambda f=mean, x=x, dy=dy: {"dx": reference.gradient(f, x, dy)})  # fmt: skip

    x = np.maximum(normal(2, 3, 7, 6), 0)
    x[0, 0, :4, :4] = 0
    out, shape, dy = (3, 3), (2, 3, 3, 3), normal(2, 3, 3, 3)
    window = {"kernel": [3, 2], "stride": [2, 2]}
    settings = window | {"key": 11, "train": True}
    index = Output(shape, "int32")

    @functools.cache
    def drawn() -> tuple[np.ndarray, np.ndarray]:
        return reference.stochastic_pooling(
            x, out, **window, key=call_key(STATE.seed, 11), start=STATE.step << 32
        )

    def scattered() -> np.ndarray:
        dx = np.zeros((2, 3, 42))
        for n, c, i, j in np.ndindex(*shape):
            dx[n, c, drawn()[1][n, c, i, j]] += dy[n, c, i, j]
        return dx.reshape(x.shape)

    forward = ("stochastic_pooling", {"x": x, "y": Output(shape), "index": index}, settings)
    case("train", *forward, lambda: {"y": drawn()[0], "index": drawn()[1]})
    case("test", "stochastic_pooling", forward[1], settings | {"train": False},
         lambda: {"y": reference.expected_pooling(x, out, **window)})  # fmt: skip
    case("stochastic", "max_pooling_backward", {"dy": dy, "index": index, "dx": Output(x.shape)},
         window | {"pad": [0, 0]}, lambda: {"dx": scattered()}, forward)  # fmt: skip


def normalization_cases() -> None:
    for label, shape, settings in [
        ("across", (2, 6, 3, 4),
         {"size": 5, "alpha": 0.5, "beta": 0.75, "k": 1.0, "within_channel": False}),
        ("across, wide", (1, 3, 3, 2),
         {"size": 7, "alpha": 2.0, "beta": 0.5, "k": 2.0, "within_channel": False}),
        ("within", (1, 2, 5, 4),
         {"size": 3, "alpha": 1.5, "beta": 0.75, "k": 1.0, "within_channel": True}),
        ("within, wide", (2, 2, 3, 3),
         {"size": 5, "alpha": 1.5, "beta": 0.4, "k": 1.0, "within_channel": True}),
    ]:  # fmt: skip
        x, dy = normal(*shape), normal(*shape)
        y, note = Output(shape), Output(shape)
        function = functools.partial(reference.lrn, **settings)
        forward = ("lrn", {"x": x, "y": y, "note": note}, settings)
        case(label, *forward, lambda f=function, x=x: {"y": f(x)})
        case(label, "lrn_backward", {"x": x, "y": y, "dy": dy, "note": note, "dx": Output(shape)},
             settings, lambda f=function, x=x, dy=dy: {"dx": reference.gradient(f, x, dy)},
             forward)  # fmt: skip
    for shape, axis in ((4, 7), 1), ((2, 5, 3, 2), 1), ((2, 3, 4), 2), ((3, 4), 0):
        x, dy = normal(*shape), normal(*shape)
        function = functools.partial(reference.softmax, axis=axis)
        y = function(x)
        label = f"{len(shape)}-d, axis {axis}"
        case(label, "softmax", {"x": x, "y": Output(shape)}, {"axis": axis}, lambda y=y: {"y": y})
        case(f"{label}, in place", "softmax", {"x": x, "y": x}, {"axis": axis},
             lambda y=y: {"y": y})  # fmt: skip
        derivative = lambda f=function, x=x, dy=dy: {  # noqa: E731
            "dx": reference.gradient(f, x, dy)
        }
        case(label, "softmax_backward", {"y": y, "dy": dy, "dx": Output(shape)}, {"axis": axis},
             derivative)  # fmt: skip
        case(f"{label}, in place", "softmax_backward", {"y": y, "dy": dy, "dx": dy},
             {"axis": axis}, derivative)  # fmt: skip
    huge = np.round(normal(3, 4)) + 1e4
    case("huge scores", "softmax", {"x": huge, "y": Output((3, 4))}, {"axis": 1},
         lambda: {"y": reference.softmax(huge - huge.max(), 1)})  # fmt: skip


def loss_cases() -> None:
    table = [
        (shape, axis, ignore, normalization)
        for normalization in ("FULL", "VALID", "BATCH_SIZE", "NONE")
        for shape, axis, ignore in (((5, 4), 1, None), ((2, 5, 3, 2), 1, 2), ((2, 3, 4), 2, 0))
    ]
    for shape, axis, ignore, normalization in table:
        x, dloss = normal(*shape), np.array(1.5)
        label = labels(shape[axis], *shape[:axis], *shape[axis + 1 :])
        label.flat[:2] = 0, 2
        settings = {"axis": axis, "ignore": ignore, "normalization": normalization}
        function = functools.partial(reference.softmax_loss, label=label, **settings)
        name = f"{len(shape)}-d, ignore {ignore}, {normalization}"
        probability = Output(shape)
        forward = (
            "softmax_loss",
            {"x": x, "label": label, "probability": probability, "loss": Output(())},
            settings,
        )
        case(name, *forward,
             lambda f=function, x=x: {"loss": f(x)[0], "probability": f(x)[1]})  # fmt: skip
        case(name, "softmax_loss_backward",
             {"probability": probability, "label": label, "dloss": dloss, "dx": Output(shape)},
             settings, lambda f=function, x=x, d=dloss: {
                 "dx": reference.gradient(lambda x: f(x)[0], x, d)
             }, forward)  # fmt: skip
    settings = {"axis": 1, "ignore": -1, "normalization": "VALID"}
    for name, label, wrong in [
        ("all ignored", [-1, -1, -1], False), ("too large", [0, 4, -1], True),
        ("too small", [0, 1, -2], True),
    ]:  # fmt: skip
        case(f"label {name}", "softmax_loss",
             {"x": normal(3, 4), "label": np.array(label, np.float64),
              "probability": Output((3, 4)), "loss": Output(())}, settings,
             lambda wrong=wrong: {"loss": np.nan if wrong else 0.0})  # fmt: skip
    far = np.array([[200.0, 0, -200], [0, 0, 500]])
    case("no underflow", "softmax_loss",
         {"x": far, "label": np.array([2.0, 0]), "probability": Output((2, 3)),
          "loss": Output(())}, settings, lambda: {"loss": 450.0})  # fmt: skip

    for shape, axis, top_k, ignore in [
        ((20, 5), 1, 1, None), ((20, 5), 1, 3, 2), ((3, 4, 2, 3), 1, 2, None), ((2, 3, 6), 2, 1, 0),
    ]:  # fmt: skip
        x = np.round(normal(*shape))  # many ties
        label = labels(shape[axis], *shape[:axis], *shape[axis + 1 :])
        settings = {"axis": axis, "top_k": top_k, "ignore": ignore}
        function = functools.partial(reference.accuracy, x, label, **settings)
        tensors = {"x": x, "label": label, "y": Output(())}
        name = f"{len(shape)}-d, top {top_k}, ignore {ignore}"
        case(name, "accuracy", tensors | {"per_class": Output((shape[axis],))}, settings,
             lambda f=function: {"y": f()[0], "per_class": f()[1]})  # fmt: skip
        case(f"{name}, no classes", "accuracy", tensors | {"per_class": None}, settings,
             lambda f=function: {"y": f()[0]})  # fmt: skip
    for shape, axis, k in ((3, 6), 1, 4), ((2, 5, 3), 1, 5), ((4, 3), 0, 1):
        x = np.round(normal(*shape))  # many ties
        size = (*shape[:axis], k, *shape[axis + 1 :])
        both = {"index": Output(size), "value": Output(size)}
        function = functools.partial(reference.top_k, x, k, axis)
        case(f"{k} on axis {axis}", "top_k", {"x": x} | both, {"axis": axis},
             lambda f=function: {"index": f()[0], "value": f()[1]})  # fmt: skip
        case(f"{k} on axis {axis}, index only", "top_k", {"x": x} | both | {"value": None},
             {"axis": axis}, lambda f=function: {"index": f()[0]})  # fmt: skip
    xs = [normal(2, 3), normal(1)]
    case("", "total", {"xs": xs, "y": Output(())}, {"weights": [0.5, -2.0]},
         lambda: {"y": xs[0].sum() / 2 - 2 * xs[1].sum()})  # fmt: skip


def solver_cases() -> None:
    x = normal(70_000)
    case("", "sum_of_squares", {"x": x, "y": Output((1,))}, {}, lambda: {"y": [(x**2).sum()]})

    for size, segments in [
        (10, [(0, 4, 1.0, 1.0), (4, 6, 2.0, 0.0), (8, 10, 1.0, 0.5)]),
        (300_000, [(0, 100, 1.0, 1.0), (100, 200_000, 1.0, 1.0), (200_000, 300_000, 2.0, 0.0)]),
    ]:
        w, g, h, h2 = normal(size), normal(size), normal(size), normal(size) ** 2
        rates, decays, inside = np.zeros(size), np.zeros(size), np.zeros(size, bool)
        for start, stop, rate, decay in segments:
            rates[start:stop], decays[start:stop], inside[start:stop] = rate, decay, True
        settings = {"names": ["lr", "scale"], "segments": segments}
        given = np.array([0.25, 0.5])

        def momentum(w=w, g=g, h=h, rates=rates, decays=decays, inside=inside) -> dict[str, Any]:
            step = 0.9 * h + 0.25 * rates * (0.5 * g + 0.01 * decays * w)
            return {
                "weights": np.where(inside, w - step, w),
                "history": [np.where(inside, step, h)],
            }

        case(f"momentum, {size}", "update",
             {"weights": w, "gradients": g, "history": [h], "scalars": given},
             settings | {
                 "formula": "t = scale * g + l2 * decay * w; h = momentum * h + lr * rate * t;"
                            " w = w - h",
                 "constants": {"momentum": 0.9, "l2": 0.01},
             }, momentum)  # fmt: skip

        def adam(w=w, g=g, h=h, h2=h2, rates=rates, inside=inside) -> dict[str, Any]:
            m, v = 0.9 * h + 0.1 * g, 0.99 * h2 + 0.01 * g**2
            new = w - 0.25 * rates * m / (np.sqrt(v) + 1e-3)
            return {
                "weights": np.where(inside, new, w),
                "history": [np.where(inside, m, h), np.where(inside, v, h2)],
            }

        case(f"adam, {size}", "update",
             {"weights": w, "gradients": g, "history": [h, h2], "scalars": given},
             settings | {
                 "formula": "h = b1 * h + (1 - b1) * g; h2 = b2 * h2 + (1 - b2) * g * g;"
                            " w = w - lr * rate * h / (sqrt(h2) + delta)",
                 "constants": {"b1": 0.9, "b2": 0.99, "delta": 1e-3},
             }, adam)  # fmt: skip


for define in (
    movement_cases, elementwise_cases, broadcast_cases, dropout_cases, convolution_cases,
    inner_product_cases, pooling_cases, normalization_cases, loss_cases, solver_cases,
):  # fmt: skip
    define()


@pytest.mark.parametrize("each", CASES, ids=lambda case: f"{case.name}: {case.label}".strip(": "))
def test_primitive(each: Case, backend: Any, request: pytest.FixtureRequest) -> None:
    flexible = BACKENDS[request.node.callspec.params["backend"]][1]
    found = run_call(
        backend, each.name, each.tensors, each.settings, flexible=flexible, first=each.first
    )
    each.expected = each.expected or each.expect()
    tolerance = 1e-7 if backend.dtype == "float64" else 1e-5
    for argument, wanted in each.expected.items():
        if isinstance(wanted, list) and isinstance(each.tensors[argument], list):
            for i, (got, want) in enumerate(zip(found[argument], wanted, strict=True)):
                if want is not None:
                    assert_close(got, want, tolerance, f"{argument}[{i}]")
        else:
            assert_close(found[argument], wanted, tolerance, argument)


def test_every_primitive_has_a_case() -> None:
    assert {each.name for each in CASES} | {"host"} == set(NAMES)


GRADIENTS = ["convolution_backward_filter", "inner_product_backward_filter"]


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("added", [("dw",), ("dw", "db"), ("db",)], ids=" and ".join)
def test_gradients_are_added_when_the_call_accumulates(
    name: str, added: tuple[str, ...], backend: Any
) -> None:
    each = next(case for case in CASES if case.name == name)
    before = {k: normal(*each.tensors[k].shape) for k in ("dw", "db")}  # type: ignore[union-attr]
    found = run_call(backend, name, each.tensors | before, each.settings, accumulates=added)
    each.expected = each.expected or each.expect()
    for argument, gradient in each.expected.items():
        wanted = gradient + before[argument] if argument in added else gradient
        assert_close(found[argument], wanted, 1e-5, argument)
