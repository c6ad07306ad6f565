"""The cases of the primitives that make up layers: convolution, pooling, losses ..."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from osucaffe.backends.random import call_key
from tests.backends import reference
from tests.backends.cases import (
    STATE,
    Gradients,
    both_ways,
    case,
    distinct,
    eighths,
    labels,
    normal,
)
from tests.backends.running import Output

CONVOLUTIONS = {
    "3x3": ((2, 3, 6, 5), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1),
    "uneven": ((2, 3, 8, 7), (2, 3, 2, 3), [3, 2], [0, 2], [1, 1], 1),
    "1x1": ((2, 5, 3, 4), (3, 5, 1, 1), [1, 1], [0, 0], [1, 1], 1),
    "1x1 stride 2": ((2, 5, 5, 4), (3, 5, 1, 1), [2, 2], [0, 0], [1, 1], 1),
    "groups": ((2, 4, 5, 5), (6, 2, 3, 3), [1, 1], [1, 1], [1, 1], 2),
    "depthwise": ((1, 4, 5, 5), (4, 1, 3, 3), [2, 2], [1, 1], [1, 1], 4),
    "depthwise, 40 channels": ((2, 40, 6, 7), (40, 1, 3, 2), [1, 2], [2, 1], [2, 1], 40),
    "dilated": ((1, 2, 8, 9), (3, 2, 3, 2), [2, 1], [2, 1], [2, 3], 1),
    "few channels": ((2, 3, 9, 14), (2, 3, 5, 4), [2, 2], [1, 2], [1, 1], 1),
    "1-d": ((2, 3, 9), (4, 3, 4), [2], [1], [1], 1),
    "3-d": ((1, 2, 4, 5, 3), (3, 2, 2, 3, 2), [1, 2, 1], [1, 0, 1], [1, 1, 1], 1),
    "channel blocks": ((1, 16, 4, 4), (32, 16, 3, 3), [1, 1], [1, 1], [1, 1], 1),
}
"""Shapes of image and weights, stride, pad, dilation, group."""


def convolution_cases() -> None:
    for label, (image, kernel, *geometry) in CONVOLUTIONS.items():
        settings = dict(zip(("stride", "pad", "dilation", "group"), geometry, strict=True))
        x, w, b = normal(*image), normal(*kernel), normal(kernel[0])
        forward = partial(reference.convolution, **settings)
        y = forward(x, w, b)
        dy = normal(*y.shape)
        case(label, "convolution", {"x": x, "w": w, "b": b}, settings, {"y": y})
        case(label, "convolution_backward_data", {"dy": dy, "w": w}, settings,
             Gradients(dx=(partial(forward, w=w, b=None), x, dy)))  # fmt: skip
        dw = (lambda w, f=forward, x=x: f(x, w, None)), w, dy
        db = dy.sum(axis=(0, *range(2, dy.ndim)))
        if label == "channel blocks":  # too many weights for finite differences
            continue
        read = {"x": x, "dy": dy}
        case(label, "convolution_backward_filter", read, settings, Gradients({"db": db}, dw=dw))
        if label == "3x3":
            case("weights only", "convolution_backward_filter", read | {"db": None}, settings,
                 Gradients(dw=dw))  # fmt: skip
            case("bias only", "convolution_backward_filter", read | {"dw": None}, settings,
                 {"db": db})  # fmt: skip
            plain = forward(x, w, None)
            for slope in 0.0, 0.1:
                case(f"no bias, ReLU {slope}", "convolution", {"x": x, "w": w, "b": None},
                     settings | {"relu": slope},
                     {"y": np.where(plain > 0, plain, slope * plain)})  # fmt: skip
        if settings["group"] == 1:
            window = {name: settings[name] for name in settings.keys() - {"group"}}
            window["kernel"] = kernel[2:]
            both_ways(label, "im2col", partial(reference.im2col, **window), x, window)


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
        forward = partial(reference.inner_product, **settings)
        y, plain = forward(x, w, b), forward(x, w, None)
        dy = normal(*y.shape)
        case(label, "inner_product", {"x": x, "w": w, "b": b}, settings, {"y": y})
        case(f"{label}, ReLU", "inner_product", {"x": x, "w": w, "b": None},
             settings | {"relu": 0.1}, {"y": np.where(plain > 0, plain, 0.1 * plain)})  # fmt: skip
        case(label, "inner_product_backward_data", {"dy": dy, "w": w}, settings,
             Gradients(dx=(partial(forward, w=w, b=None), x, dy)))  # fmt: skip
        of_w = lambda w, f=forward, x=x, b=b: f(x, w, b)  # noqa: E731
        case(label, "inner_product_backward_filter", {"x": x, "dy": dy}, settings,
             Gradients(dw=(of_w, w, dy), db=(partial(forward, x, w), b, dy)))  # fmt: skip


POOLINGS = {
    "2x2": ((2, 3, 6, 8), (3, 4), [2, 2], [2, 2], [0, 0]),
    "overlapping": ((2, 3, 7, 7), (3, 3), [3, 3], [2, 2], [0, 0]),
    "rounded up": ((1, 2, 6, 7), (3, 4), [3, 2], [2, 2], [0, 0]),
    "padded": ((1, 4, 5, 5), (3, 3), [3, 3], [2, 2], [1, 1]),
    "padded, rounded up": ((1, 2, 6, 6), (4, 3), [3, 4], [2, 3], [1, 1]),
    "global": ((2, 3, 4, 5), (1, 1), [4, 5], [1, 1], [0, 0]),
    "gaps": ((1, 2, 7, 7), (2, 2), [2, 2], [4, 5], [0, 0]),
    "1-d": ((2, 3, 9), (5,), [3], [2], [1]),
    "3-d": ((1, 2, 4, 5, 4), (2, 2, 2), [2, 3, 2], [2, 2, 2], [0, 0, 0]),
    "blocks": ((2, 17, 6, 6), (3, 3), [3, 3], [2, 2], [0, 0]),
}
"""Shape of the image, extents of the output, kernel, stride, pad."""


def pooling_cases() -> None:
    for label, (image, out, *window) in POOLINGS.items():
        settings = dict(zip(("kernel", "stride", "pad"), window, strict=True))
        # Which is the largest must not depend on how the values are rounded.
        x = distinct(*image) / 8 - 3
        largest = lambda x, out=out, s=settings: reference.max_pooling(x, out, **s)[0]  # noqa: E731
        mean = partial(reference.average_pooling, out=out, **settings)
        y = {"y": largest(x)}
        dy, index = normal(*y["y"].shape), Output(y["y"].shape, "int32")
        forward = ("max_pooling", {"x": x, "y": Output(dy.shape), "index": index}, settings)
        case(label, *forward, y)
        case(f"{label}, no index", "max_pooling", {"x": x, "index": None}, settings, y)
        if label == "blocks":  # too many elements for finite differences
            case(label, "average_pooling", {"x": x}, settings, {"y": mean(x)})
            continue
        case(label, "max_pooling_backward", {"dy": dy, "index": index}, settings,
             Gradients(dx=(largest, x, dy)), forward)  # fmt: skip
        both_ways(label, "average_pooling", mean, x, settings)

    # What is drawn must not depend on how the values are rounded: all types hold these exactly.
    x = np.round(np.maximum(normal(2, 3, 7, 6), 0) * 64) / 64
    x[0, 0, :4, :4] = 0
    out, shape = (3, 3), (2, 3, 3, 3)
    window = {"kernel": [3, 2], "stride": [2, 2]}
    y, index = reference.stochastic_pooling(
        x, out, **window, key=call_key(STATE.seed, 11), start=STATE.step << 32
    )
    dx, dy = np.zeros((2, 3, 42)), normal(*shape)
    for n, c, i, j in np.ndindex(*shape):
        dx[n, c, index[n, c, i, j]] += dy[n, c, i, j]
    settings, where = window | {"key": 11, "train": True}, Output(shape, "int32")
    forward = ("stochastic_pooling", {"x": x, "y": Output(shape), "index": where}, settings)
    case("train", *forward, {"y": y, "index": index})
    case("test", "stochastic_pooling", {"x": x, "index": where}, settings | {"train": False},
         {"y": reference.expected_pooling(x, out, **window)})  # fmt: skip
    case("stochastic", "max_pooling_backward", {"dy": dy, "index": where},
         window | {"pad": [0, 0]}, {"dx": dx.reshape(x.shape)}, forward)  # fmt: skip


def normalization_cases() -> None:
    for label, shape, *numbers in [
        ("across", (2, 6, 3, 4), 5, 0.5, 0.75, 1.0, False),
        ("across, wide", (1, 3, 3, 2), 7, 2.0, 0.5, 2.0, False),
        ("within", (1, 2, 5, 4), 3, 1.5, 0.75, 1.0, True),
        ("within, wide", (2, 2, 3, 3), 5, 1.5, 0.4, 1.0, True),
    ]:
        names = ("size", "alpha", "beta", "k", "within_channel")
        settings = dict(zip(names, numbers, strict=True))
        x, dy, y, note = normal(*shape), normal(*shape), Output(shape), Output(shape)
        function = partial(reference.lrn, **settings)
        forward = ("lrn", {"x": x, "y": y, "workspace": note}, settings)
        case(label, *forward, {"y": function(x)})
        case(label, "lrn_backward", {"x": x, "y": y, "dy": dy, "workspace": note}, settings,
             Gradients(dx=(function, x, dy)), forward)  # fmt: skip
    for shape, axis in ((4, 7), 1), ((2, 5, 3, 2), 1), ((2, 3, 4), 2), ((3, 4), 0):
        x, dy = normal(*shape), normal(*shape)
        function = partial(reference.softmax, axis=axis)
        y, derivative = function(x), Gradients(dx=(function, x, dy))
        label, settings = f"{len(shape)}-d, axis {axis}", {"axis": axis}
        case(label, "softmax", {"x": x}, settings, {"y": y})
        case(f"{label}, in place", "softmax", {"x": x, "y": x}, settings, {"y": y})
        case(label, "softmax_backward", {"y": y, "dy": dy}, settings, derivative)
        case(f"{label}, in place", "softmax_backward", {"y": y, "dy": dy, "dx": dy}, settings,
             derivative)  # fmt: skip
    huge = 64 * np.round(normal(3, 4)) + 8192  # bfloat16 holds these
    case("huge scores", "softmax", {"x": huge}, {"axis": 1},
         {"y": reference.softmax(huge - huge.max(), 1)})  # fmt: skip


def _statistics(x: np.ndarray) -> dict[str, np.ndarray]:
    mean, variance = reference.moments(x)
    return {"mean": mean, "inv_std": 1 / np.sqrt(variance + 0.01)}


def batch_norm_cases() -> None:
    for shape in (3, 16, 5, 7), (2, 3, 4, 5), (9, 5), (2, 40, 3, 2, 2):
        channels = shape[1:2]
        mean, scale, bias = (normal(*channels) for _ in range(3))
        past = {"running_mean": normal(*channels), "running_variance": normal(*channels) ** 2,
                "running_weight": normal(1)}  # fmt: skip
        # What a ReLU stops must not depend on how x is rounded: all types hold it exactly.
        x = eighths(*shape) + np.round(3 * mean).reshape(1, -1, *[1] * (len(shape) - 2))
        case("x".join(map(str, shape)), "batch_norm_statistics", {"x": x, **past},
             {"eps": 0.01, "momentum": 0.9},
             reference.batch_norm_statistics(x, *past.values(), 0.01, 0.9))  # fmt: skip
        both = _statistics(x)
        affine = {"scale": scale, "bias": bias}
        addend, nothing = normal(*shape), dict.fromkeys((*both, *affine))
        for what, small, added, relu, *subsample in [
            ("whole", both | affine, None, False),
            ("plain", nothing | both, None, False),
            ("scale", nothing | {"scale": scale}, None, False),
            ("ReLU", both | affine, None, True),
            ("residual", both | affine, addend, True),
            ("parts, ReLU", both | affine, None, True, 1, 2),
            ("parts, residual", both | affine, addend, True, 2, 3),
        ]:
            if not subsample or shape == (3, 16, 5, 7):
                _batch_norm(what, x, small, added, relu, tuple(subsample))

    far = eighths(8, 2, 64, 64) + 3
    far[0, :, 0, 0] = 35  # whoever subtracts the first number from all loses digits
    past = {
        "running_mean": np.zeros(2),
        "running_variance": np.zeros(2),
        "running_weight": np.zeros(1),
    }
    case("first far from the others", "batch_norm_statistics", {"x": far, **past},
         {"eps": 0.01, "momentum": 0.9},
         reference.batch_norm_statistics(far, *past.values(), 0.01, 0.9))  # fmt: skip


def _batch_norm(
    what: str,
    x: np.ndarray,
    small: dict[str, Any],
    addend: Any,
    relu: bool,
    subsample: tuple[int, ...],
) -> None:
    """Forward, and backward with constant statistics or not, from one gradient or from two. every:
    as of the primitive, if it is not empty."""
    label = f"{'x'.join(map(str, x.shape))}, {what}"

    def forward(x: np.ndarray, constant: bool = True, relu: bool = relu) -> np.ndarray:
        of_x = {} if constant else _statistics(x)
        return reference.batch_norm(x, **small | of_x, addend=addend, relu=relu)

    there = (..., *(slice(None, None, step) for step in subsample))
    whole = forward(x)
    y = np.ascontiguousarray(whole[there])
    dys, settings = (
        [normal(*y.shape), normal(*y.shape)],
        {"subsample": subsample} if subsample else {},
    )
    case(label, "batch_norm", {"x": x, **small, "addend": addend}, {"relu": relu} | settings,
         {"y": y})  # fmt: skip
    normalized = reference.batch_norm(x, small["mean"], small["inv_std"], None, None, None, False)
    axes = (0, *range(2, x.ndim))
    for constant in {small["mean"] is None, True} - ({True} if subsample else set()):
        for parts in dys[:1], dys:
            dy = np.zeros(x.shape)
            dy[there] = sum(parts) * (y > 0) if relu else sum(parts)
            expected = {
                "dy": dy if len(parts) > 1 else None,
                "dscale": None if small["scale"] is None else (normalized * dy).sum(axis=axes),
                "dbias": None if small["bias"] is None else dy.sum(axis=axes),
            }
            absent = {name: None for name, values in expected.items() if values is None}
            read = {"x": x, "dys": parts, **small, "relu_output": None if addend is None else y}
            case(f"{label}, {len(parts)} parts{', constant' * constant}", "batch_norm_backward",
                 read | absent, {"constant": constant, "relu": relu} | settings,
                 Gradients({name: expected[name] for name in expected.keys() - absent.keys()},
                           dx=(partial(forward, constant=constant, relu=False), x, dy)),
                 )  # fmt: skip


def batch_norm_pooling_cases() -> None:
    for label in "padded, rounded up", "8 channels":
        image, out, *window = POOLINGS.get(label) or ((2, 8, 4, 5), (3, 3), [3, 2], [2, 2], [1, 0])
        settings = dict(zip(("kernel", "stride", "pad"), window, strict=True))
        # What is the largest, and what a ReLU stops, must not depend on how values are rounded.
        x, channels = distinct(*image) / 8 - 2, image[1:2]
        scale, bias, dy = normal(*channels), normal(*channels), normal(*image[:2], *out)
        scale[:2] = 0, -1.5  # all are equal, and the first is the largest; the order turns around
        both = _statistics(x)
        affine = {"scale": scale, "bias": bias}
        for what, small, relu in [
            ("whole", both | affine, False),
            ("ReLU", both | affine, True),
            ("plain", both | dict.fromkeys(affine), True),
            ("scale", dict.fromkeys(both) | {"scale": scale, "bias": None}, False),
        ]:
            _batch_norm_pooling(f"{label}, {what}", x, small, dy, settings | {"relu": relu})


def _batch_norm_pooling(
    label: str, x: np.ndarray, small: dict[str, Any], dy: np.ndarray, settings: dict[str, Any]
) -> None:
    """Forward, and backward with constant statistics or not."""
    window = {name: settings[name] for name in ("kernel", "stride", "pad")}

    def forward(x: np.ndarray, constant: bool = True) -> Any:
        of_x = {} if constant else _statistics(x)
        y = reference.batch_norm(x, **small | of_x, addend=None, relu=False)
        y, index = reference.max_pooling(y, dy.shape[2:], **window)
        return (np.maximum(y, 0) if settings["relu"] else y), index

    y, index = forward(x)
    of_image = [array.reshape(*y.shape[:2], -1) for array in (x, index)]
    max_input = np.take_along_axis(*of_image, 2).reshape(y.shape)
    tensors = {"x": x, **small, "y": Output(y.shape), "index": Output(y.shape, "int32"),
               "max_input": Output(y.shape)}  # fmt: skip
    call = ("batch_norm_pooling", tensors, settings)
    case(label, *call, {"y": y, "max_input": max_input})
    read = {name: tensors[name] for name in ("x", "index", "max_input", *small)} | {"dy": dy}
    passed = dy * (y > 0) if settings["relu"] else dy
    normalized = reference.batch_norm(
        max_input, small["mean"], small["inv_std"], None, None, None, False
    )
    given = {
        "dscale": (normalized * passed).sum(axis=(0, 2, 3)),
        "dbias": passed.sum(axis=(0, 2, 3)),
    }
    absent = {f"d{name}": None for name in ("scale", "bias") if small[name] is None}
    for constant in {small["mean"] is None, True}:
        of_x = (lambda x, constant=constant: forward(x, constant)[0]), x, dy
        values = {name: given[name] for name in given.keys() - absent.keys()}
        case(f"{label}{', constant' * constant}", "batch_norm_pooling_backward", read | absent,
             settings | {"constant": constant}, Gradients(values, dx=of_x), call)  # fmt: skip


def loss_cases() -> None:
    table = [
        (shape, axis, ignore, normalization, None)
        for normalization in ("FULL", "VALID", "BATCH_SIZE", "NONE")
        for shape, axis, ignore in (((5, 4), 1, None), ((2, 5, 3, 2), 1, 2), ((2, 3, 4), 2, 0))
    ]
    table += [
        ((9, 3), 1, 1, "VALID", (0.25, 9.0, 2.0)),
        ((2, 3, 20, 13), 1, None, "BATCH_SIZE", (0.25, 3.0, 2.0)),
    ]
    for shape, axis, ignore, normalization, weights in table:
        x, dloss = normal(*shape), np.array(1.5)
        label = labels(shape[axis], *shape[:axis], *shape[axis + 1 :])
        label.flat[:2] = 0, 2
        settings = {"axis": axis, "ignore": ignore, "normalization": normalization}
        settings |= {"weights": weights} if weights else {}
        function = partial(reference.softmax_loss, label=label, **settings)
        name = f"{len(shape)}-d, ignore {ignore}, {normalization}{', weighted' * bool(weights)}"
        probability = Output(shape)
        tensors = {"x": x, "label": label, "probability": probability, "loss": Output(())}
        forward = ("softmax_loss", tensors, settings)
        loss, wanted = function(x)
        case(name, *forward, {"loss": loss, "probability": wanted})
        case(name, "softmax_loss_backward",
             {"probability": probability, "label": label, "dloss": dloss}, settings,
             Gradients(dx=(lambda x, f=function: f(x)[0], x, dloss)), forward)  # fmt: skip
    settings = {"axis": 1, "ignore": -1, "normalization": "VALID"}
    far = np.array([[200.0, 0, -200], [0, 0, 500]])
    for name, x, label, loss in [
        ("label all ignored", normal(3, 4), [-1, -1, -1], 0.0),
        ("label too large", normal(3, 4), [0, 4, -1], np.nan),
        ("label too small", normal(3, 4), [0, 1, -2], np.nan),
        ("at most 87.33", far, [2, 0], 126 * np.log(2)),
    ]:
        case(name, "softmax_loss",
             {"x": x, "label": np.array(label, np.float64), "probability": Output(x.shape)},
             settings, {"loss": loss})  # fmt: skip

    for shape, axis, top_k, ignore in [
        ((20, 5), 1, 1, None), ((20, 5), 1, 3, 2), ((3, 4, 2, 3), 1, 2, None), ((2, 3, 6), 2, 1, 0),
    ]:  # fmt: skip
        x = np.round(normal(*shape))  # many ties
        label = labels(shape[axis], *shape[:axis], *shape[axis + 1 :])
        settings = {"axis": axis, "top_k": top_k, "ignore": ignore}
        y, per_class = reference.accuracy(x, label, **settings)
        read, name = {"x": x, "label": label}, f"{len(shape)}-d, top {top_k}, ignore {ignore}"
        case(name, "accuracy", read, settings, {"y": y, "per_class": per_class})
        case(f"{name}, no classes", "accuracy", read | {"per_class": None}, settings, {"y": y})
    for shape, axis, k in ((3, 6), 1, 4), ((2, 5, 3), 1, 5), ((4, 3), 0, 1):
        x = np.round(normal(*shape))  # many ties
        index, value = reference.top_k(x, k, axis)
        label, settings = f"{k} on axis {axis}", {"axis": axis}
        case(label, "top_k", {"x": x}, settings, {"index": index, "value": value})
        case(f"{label}, index only", "top_k", {"x": x, "value": None}, settings, {"index": index})
    xs = [normal(2, 3), normal(1)]
    case("", "total", {"xs": xs}, {"weights": [0.5, -2.0]},
         {"y": xs[0].sum() / 2 - 2 * xs[1].sum()})  # fmt: skip
