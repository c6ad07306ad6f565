"""Owns the cases of the primitives that make up layers: convolution, pooling, losses ..."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import numpy as np

from osucaffe.backends.random import call_key

from . import reference
from .cases import STATE, Gradients, case, distinct, eighths, labels, normal
from .running import Output


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
        (
            "depthwise, 40 channels",
            (2, 40, 6, 7),
            (40, 1, 3, 2),
            geometry([1, 2], [2, 1], [2, 1], 40),
        ),
        ("dilated", (1, 2, 8, 9), (3, 2, 3, 2), geometry([2, 1], [2, 1], [2, 3], 1)),
        ("few channels", (2, 3, 9, 14), (2, 3, 5, 4), geometry([2, 2], [1, 2], [1, 1], 1)),
        ("1-d", (2, 3, 9), (4, 3, 4), geometry([2], [1], [1], 1)),
        ("3-d", (1, 2, 4, 5, 3), (3, 2, 2, 3, 2), geometry([1, 2, 1], [1, 0, 1], [1, 1, 1], 1)),
        ("channel blocks", (1, 16, 4, 4), (32, 16, 3, 3), geometry([1, 1], [1, 1], [1, 1], 1)),
    ]
    for label, image, kernel, settings in table:
        x, w, b = normal(*image), normal(*kernel), normal(kernel[0])
        forward = partial(reference.convolution, **settings)
        y = forward(x, w, b)
        dy = normal(*y.shape)
        case(label, "convolution", {"x": x, "w": w, "b": b}, settings, {"y": y})
        of_x, of_w = partial(forward, w=w, b=None), partial(forward, x, b=None)
        case(label, "convolution_backward_data", {"dy": dy, "w": w}, settings,
             Gradients(dx=(of_x, x, dy)))  # fmt: skip
        if label == "channel blocks":  # too many weights for finite differences
            continue
        db = dy.sum(axis=(0, *range(2, dy.ndim)))
        case(label, "convolution_backward_filter", {"x": x, "dy": dy}, settings,
             Gradients({"db": db}, dw=(lambda w, f=of_w: f(w=w), w, dy)))  # fmt: skip

        if settings["group"] > 1:
            continue
        window = {k: v for k, v in settings.items() if k != "group"} | {"kernel": kernel[2:]}
        columns = partial(reference.im2col, **window)
        shape = columns(x).shape
        dy = normal(*shape)
        case(label, "im2col", {"x": x, "y": Output(shape)}, window,
             lambda f=columns, x=x: {"y": f(x)})  # fmt: skip
        case(label, "im2col_backward", {"dy": dy}, window, Gradients(dx=(columns, x, dy)))

    label, image, kernel, settings = table[0]
    x, w = normal(*image), normal(*kernel)
    y = reference.convolution(x, w, None, **settings)
    for slope in 0.0, 0.1:
        case(f"no bias, ReLU {slope}", "convolution", {"x": x, "w": w, "b": None},
             settings | {"relu": slope}, {"y": np.where(y > 0, y, slope * y)})  # fmt: skip
    dy = normal(*y.shape)
    of_w = lambda w: reference.convolution(x, w, None, **settings)  # noqa: E731
    case("weights only", "convolution_backward_filter", {"x": x, "dy": dy, "db": None}, settings,
         Gradients(dw=(of_w, w, dy)))  # fmt: skip
    case("bias only", "convolution_backward_filter", {"x": x, "dy": dy, "dw": None}, settings,
         {"db": dy.sum(axis=(0, 2, 3))})  # fmt: skip


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
        y = forward(x, w, b)
        dy = normal(*y.shape)
        case(label, "inner_product", {"x": x, "w": w, "b": b}, settings, {"y": y})
        case(f"{label}, ReLU", "inner_product", {"x": x, "w": w, "b": None, "y": Output(y.shape)},
             settings | {"relu": 0.1},
             lambda y=y - b: {"y": np.where(y > 0, y, 0.1 * y)})  # fmt: skip
        case(label, "inner_product_backward_data", {"dy": dy, "w": w}, settings,
             Gradients(dx=(partial(forward, w=w, b=None), x, dy)))  # fmt: skip
        of_w = lambda w, f=forward, x=x, b=b: f(x, w, b)  # noqa: E731
        case(label, "inner_product_backward_filter", {"x": x, "dy": dy}, settings,
             Gradients(dw=(of_w, w, dy), db=(partial(forward, x, w), b, dy)))  # fmt: skip


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
        # Which is the largest must not depend on how the values are rounded.
        x = distinct(*image) / 8 - 3
        shape = (*image[:2], *out)
        dy, index = normal(*shape), Output(shape, "int32")
        largest = partial(reference.max_pooling, out=out, **settings)
        mean = partial(reference.average_pooling, out=out, **settings)
        forward = ("max_pooling", {"x": x, "y": Output(shape), "index": index}, settings)
        case(label, *forward, lambda f=largest, x=x: {"y": f(x)[0]})
        case(f"{label}, no index", "max_pooling", forward[1] | {"index": None}, settings,
             lambda f=largest, x=x: {"y": f(x)[0]})  # fmt: skip
        case(label, "average_pooling", {"x": x, "y": Output(shape)}, settings,
             lambda f=mean, x=x: {"y": f(x)})  # fmt: skip
        if label == "blocks":
            continue
        maxima = lambda x, f=largest: f(x)[0]  # noqa: E731
        case(label, "max_pooling_backward", {"dy": dy, "index": index}, settings,
             Gradients(dx=(maxima, x, dy)), forward)  # fmt: skip
        case(label, "average_pooling_backward", {"dy": dy}, settings, Gradients(dx=(mean, x, dy)))

    # What is drawn must not depend on how the values are rounded: all types hold these exactly.
    x = np.round(np.maximum(normal(2, 3, 7, 6), 0) * 64) / 64
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
        function = partial(reference.lrn, **settings)
        forward = ("lrn", {"x": x, "y": y, "note": note}, settings)
        case(label, *forward, lambda f=function, x=x: {"y": f(x)})
        case(label, "lrn_backward", {"x": x, "y": y, "dy": dy, "note": note}, settings,
             Gradients(dx=(function, x, dy)), forward)  # fmt: skip
    for shape, axis in ((4, 7), 1), ((2, 5, 3, 2), 1), ((2, 3, 4), 2), ((3, 4), 0):
        x, dy = normal(*shape), normal(*shape)
        function = partial(reference.softmax, axis=axis)
        y = function(x)
        label = f"{len(shape)}-d, axis {axis}"
        case(label, "softmax", {"x": x}, {"axis": axis}, {"y": y})
        case(f"{label}, in place", "softmax", {"x": x, "y": x}, {"axis": axis}, {"y": y})
        derivative = Gradients(dx=(function, x, dy))
        case(label, "softmax_backward", {"y": y, "dy": dy}, {"axis": axis}, derivative)
        case(f"{label}, in place", "softmax_backward", {"y": y, "dy": dy, "dx": dy},
             {"axis": axis}, derivative)  # fmt: skip
    huge = 64 * np.round(normal(3, 4)) + 8192  # bfloat16 holds these
    case("huge scores", "softmax", {"x": huge, "y": Output((3, 4))}, {"axis": 1},
         lambda: {"y": reference.softmax(huge - huge.max(), 1)})  # fmt: skip


def batch_norm_cases() -> None:
    for shape in (3, 16, 5, 7), (2, 3, 4, 5), (9, 5), (2, 40, 3, 2, 2):
        label = "x".join(map(str, shape))
        channels = shape[1:2]
        mean, scale, bias = (normal(*channels) for _ in range(3))
        means, variances, weight = normal(*channels), normal(*channels) ** 2, normal(1)
        # What a ReLU stops must not depend on how x is rounded: all types hold it exactly.
        x = eighths(*shape) + np.round(3 * mean).reshape(1, -1, *[1] * (len(shape) - 2))
        past = {"past_means": means, "past_variances": variances, "past_weight": weight}
        settings = {"eps": 0.01, "fraction": 0.9}
        case(label, "batch_norm_statistics",
             {"x": x, "mean": Output(channels), "rate": Output(channels), **past}, settings,
             lambda x=x, past=past: reference.batch_norm_statistics(x, *past.values(), 0.01, 0.9),
             )  # fmt: skip
        mean, variance = reference.moments(x)
        rate = 1 / np.sqrt(variance + 0.01)
        addend, dy, more = normal(*shape), normal(*shape), normal(*shape)
        both = {"mean": mean, "rate": rate}
        affine = {"scale": scale, "bias": bias}
        nothing = dict.fromkeys((*both, *affine))
        for what, small, added, relu in [
            ("whole", both | affine, None, False),
            ("plain", both | {"scale": None, "bias": None}, None, False),
            ("scale", nothing | {"scale": scale}, None, False),
            ("ReLU", both | affine, None, True),
            ("residual", both | affine, addend, True),
        ]:

            def forward(x, small=small, added=added, constant=True, relu=relu):
                if not constant:
                    mean, variance = reference.moments(x)
                    small = small | {"mean": mean, "rate": 1 / np.sqrt(variance + 0.01)}
                return reference.batch_norm(x, **small, addend=added, relu=relu)

            y = forward(x)
            given = {"x": x, **small, "addend": added}
            case(f"{label}, {what}", "batch_norm", given, {"relu": relu}, {"y": y})
            for constant in {small["mean"] is None, True}:
                for parts in ([dy], [dy, more]):
                    whole = sum(parts) * (y > 0) if relu else sum(parts)
                    tensors = {
                        "x": x, "dys": parts, **small, "relu_output": None if added is None else y,
                        "dy": Output(shape) if len(parts) > 1 else None, "dx": Output(shape),
                        "dscale": None if small["scale"] is None else Output(channels),
                        "dbias": None if small["bias"] is None else Output(channels),
                    }  # fmt: skip
                    case(f"{label}, {what}, {len(parts)} parts{', constant' * constant}",
                         "batch_norm_backward", tensors, {"constant": constant, "relu": relu},
                         lambda f=forward, g=whole, x=x, t=tensors, constant=constant: {
                             name: values for name, values in reference.batch_norm_backward(
                                 f, x, g, t["mean"], t["rate"], constant).items()
                             if t[name] is not None
                         })  # fmt: skip


def loss_cases() -> None:
    table = [
        (shape, axis, ignore, normalization)
        for normalization in ("FULL", "VALID", "BATCH_SIZE", "NONE")
        for shape, axis, ignore in (((5, 4), 1, None), ((2, 5, 3, 2), 1, 2), ((2, 3, 4), 2, 0))
    ]
    table = [(*row, None) for row in table]
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
        name = f"{len(shape)}-d, ignore {ignore}, {normalization}"
        name += ", weighted" if weights else ""
        probability = Output(shape)
        forward = (
            "softmax_loss",
            {"x": x, "label": label, "probability": probability, "loss": Output(())},
            settings,
        )
        case(name, *forward,
             lambda f=function, x=x: {"loss": f(x)[0], "probability": f(x)[1]})  # fmt: skip
        case(name, "softmax_loss_backward",
             {"probability": probability, "label": label, "dloss": dloss}, settings,
             Gradients(dx=(lambda x, f=function: f(x)[0], x, dloss)), forward)  # fmt: skip
    settings = {"axis": 1, "ignore": -1, "normalization": "VALID"}
    for name, label, wrong in [
        ("all ignored", [-1, -1, -1], False), ("too large", [0, 4, -1], True),
        ("too small", [0, 1, -2], True),
    ]:  # fmt: skip
        case(f"label {name}", "softmax_loss",
             {"x": normal(3, 4), "label": np.array(label, np.float64),
              "probability": Output((3, 4))}, settings,
             {"loss": np.nan if wrong else 0.0})  # fmt: skip
    far = np.array([[200.0, 0, -200], [0, 0, 500]])
    case("at most 87.33", "softmax_loss",
         {"x": far, "label": np.array([2.0, 0]), "probability": Output((2, 3))}, settings,
         {"loss": 126 * np.log(2)})  # fmt: skip

    for shape, axis, top_k, ignore in [
        ((20, 5), 1, 1, None), ((20, 5), 1, 3, 2), ((3, 4, 2, 3), 1, 2, None), ((2, 3, 6), 2, 1, 0),
    ]:  # fmt: skip
        x = np.round(normal(*shape))  # many ties
        label = labels(shape[axis], *shape[:axis], *shape[axis + 1 :])
        settings = {"axis": axis, "top_k": top_k, "ignore": ignore}
        function = partial(reference.accuracy, x, label, **settings)
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
        function = partial(reference.top_k, x, k, axis)
        case(f"{k} on axis {axis}", "top_k", {"x": x} | both, {"axis": axis},
             lambda f=function: {"index": f()[0], "value": f()[1]})  # fmt: skip
        case(f"{k} on axis {axis}, index only", "top_k", {"x": x} | both | {"value": None},
             {"axis": axis}, lambda f=function: {"index": f()[0]})  # fmt: skip
    xs = [normal(2, 3), normal(1)]
    case("", "total", {"xs": xs}, {"weights": [0.5, -2.0]},
         {"y": xs[0].sum() / 2 - 2 * xs[1].sum()})  # fmt: skip
