"""Owns the cases of the primitives without windows or weights: moves, formulas, draws, updates."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from osucaffe.backends.formula import ELU, PRELU
from osucaffe.backends.random import call_key

from . import cases, reference
from .cases import STATE, Gradients, case, eighths, labels, normal
from .running import Output


def movement_cases() -> None:
    x, y, z = normal(2, 3, 4, 5), normal(2, 1, 4, 5), normal(2, 18, 4, 5)
    out = Output((2, 3, 4, 5))
    case("zero", "fill", {"y": out}, {"value": 0.0}, {"y": np.zeros(x.shape)})
    case("value", "fill", {"y": out}, {"value": -1.5}, {"y": np.full(x.shape, -1.5)})
    case("", "copy", {"x": x, "y": out}, {}, {"y": x})
    together = np.concatenate([x, y, z], axis=1)
    case("channels", "concat", {"xs": [x, y, z]}, {"axis": 1}, {"y": together})
    case("last axis", "concat", {"xs": [x, x]}, {"axis": 3}, {"y": np.concatenate([x, x], axis=3)})
    parts = [Output(x.shape), None, Output(z.shape)]
    case("with a gap", "split", {"x": together, "ys": parts}, {"axis": 1}, {"ys": [x, None, z]})
    case("batch", "split", {"x": x, "ys": [Output((1, 3, 4, 5)), Output((1, 3, 4, 5))]},
         {"axis": 0}, {"ys": [x[:1], x[1:]]})  # fmt: skip

    case("", "permute", {"x": x}, {"axes": (2, 0, 3, 1)}, {"y": x.transpose(2, 0, 3, 1)})
    small, box = normal(1, 2, 4, 3), (slice(1, 2), slice(0, 2), slice(0, 4), slice(2, 5))
    offsets = {"offsets": (1, 0, 0, 2)}
    case("", "crop", {"x": x}, offsets, {"y": x[box]})

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
        picked = (lambda table, rows=rows: table[rows]), table, dy
        case(label, "gather", {"x": table, "index": index}, {}, {"y": table[rows]})
        case(label, "gather_backward", {"dy": dy, "index": index}, {}, Gradients(dx=picked))
        case(label, "gather_gradient", {"dy": dy, "index": index}, {}, Gradients(dw=picked))
    outside = {"x": np.ones((3, 2)), "index": np.array([0.0, 3, -1]), "y": Output((3, 2))}
    case("out of range", "gather", outside, {}, {"y": [[1, 1], [np.nan, np.nan], [np.nan, np.nan]]})
    case("", "positions", {}, {}, {"y": np.arange(24).reshape(2, 3, 4)})


def record_cases() -> None:
    images = cases.random.integers(0, 256, (4, 3, 9, 8)).astype(np.uint8)
    table = np.array([[0, 0, 0], [3, 2, 1], [1, 0, 1], [2, 1, 0]], np.int32)
    for label, mean, scale, extents in [
        ("whole image", None, 1.0, (9, 8)),
        ("crop", None, 1 / 256, (6, 6)),
        ("mean of channels", 128 * normal(3, 1, 1), 1.0, (6, 6)),
        ("mean image", 128 * normal(3, 9, 8), 0.5, (6, 6)),
    ]:
        crops = table if extents != (9, 8) else table * [0, 0, 1]

        def expected(
            mean: np.ndarray | None = mean,
            scale: float = scale,
            extents: tuple[int, int] = extents,
            crops: np.ndarray = crops,
        ) -> dict[str, Any]:
            plain = (images - (0 if mean is None else mean)) * scale
            found = []
            for image, (top, left, mirror) in zip(plain, crops, strict=True):
                crop = image[:, top : top + extents[0], left : left + extents[1]]
                found.append(crop[:, :, ::-1] if mirror else crop)
            return {"y": found}

        tensors = {"x": images, "table": crops.astype(np.int32), "mean": mean}
        out = {"y": Output((4, 3, *extents))}
        case(label, "transform", tensors | out, {"scale": scale}, expected)
        tensors["x"] = images.transpose(0, 2, 3, 1)
        case(f"{label}, interleaved", "transform", tensors | out,
             {"scale": scale, "interleaved": True}, expected)  # fmt: skip
    cached_cases()


def cached_cases() -> None:
    records = cases.random.integers(0, 256, (9, 3, 9, 8)).astype(np.uint8)
    rows = np.array([[8, 0, 0, 0, 3], [2, 3, 2, 1, -1], [2, 1, 0, 0, 70_000]], np.int32)
    mean = 128 * normal(3, 9, 8)

    def batch() -> dict[str, Any]:
        crops = []
        for number, top, left, mirror, _ in rows:
            crop = (records[number] - mean)[:, top : top + 6, left : left + 6] / 4
            crops.append(crop[:, :, ::-1] if mirror else crop)
        return {"y": crops, "labels": rows[:, 4]}

    tensors = {"records": records, "rows": rows, "mean": mean, "y": Output((3, 3, 6, 6))}
    labelled = tensors | {"labels": Output((3,))}
    case("", "cached_batch", labelled, {"scale": 0.25}, batch)
    case("interleaved", "cached_batch", labelled | {"records": records.transpose(0, 2, 3, 1)},
         {"scale": 0.25, "interleaved": True}, batch)  # fmt: skip
    case("without labels", "cached_batch", tensors, {"scale": 0.25}, lambda: {"y": batch()["y"]})

    table, numbers = normal(6, 2, 3), np.array([[5], [0], [5], [3]], np.int32)
    case("", "cached_rows", {"records": table, "rows": numbers}, {}, {"y": table[numbers[:, 0]]})
    for label, values in ("floats", normal(4, 300)), ("numbers", rows.reshape(3, 1, 5)):
        out, dtype = Output(values.shape[1:], str(values.dtype)), values.dtype
        out.dtype = "int32" if dtype == np.int32 else "float32"
        for at in 1, len(values):  # the first row comes behind the last
            case(f"{label} from {at}", "next_row",
                 {"table": values, "cursor": np.array([at], np.int32), "row": out}, {},
                 lambda values=values, at=at: {
                     "row": values[at % len(values)], "cursor": [at % len(values) + 1],
                 })  # fmt: skip


def elementwise_cases() -> None:
    a, b, c = (eighths(2, 16, 5, 5) for _ in range(3))
    y, z = Output(a.shape), Output(a.shape)
    case("one statement", "elementwise", {"inputs": [a, b], "outputs": [y]},
         {"formula": "y = where(a > b, a, slope * b)", "constants": {"slope": 0.25}},
         {"outputs": [np.where(a > b, a, 0.25 * b)]})  # fmt: skip
    case("temporaries", "elementwise", {"inputs": [a, b], "outputs": [y, z]},
         {"formula": "t = exp(-abs(a)); y = log1p(t) + max(a, 0); z = t * b + 1"},
         {"outputs": [np.log1p(np.exp(a)), np.exp(-abs(a)) * b + 1]})  # fmt: skip
    case("in place", "elementwise", {"inputs": [a, b], "outputs": [a, b]},
         {"formula": "y = a * 2 + b; z = a - b"}, {"outputs": [2 * a + b, a - b]})  # fmt: skip
    large = normal(300_000)
    case("several threads", "elementwise", {"inputs": [large], "outputs": [Output(large.shape)]},
         {"formula": "y = tanh(a) * a"}, {"outputs": [np.tanh(large) * large]})  # fmt: skip
    case("ELU", "elementwise", {"inputs": [a], "outputs": [y]},
         {"formula": ELU, "constants": {"alpha": 0.7}},
         {"outputs": [np.where(a > 0, a, 0.7 * np.expm1(a))]})  # fmt: skip
    case("plain", "sum", {"xs": [a, b], "y": y}, {}, {"y": a + b})
    case("coefficients", "sum", {"xs": [a, b, c], "y": y}, {"coefficients": [1.0, -2.0, 0.5]},
         {"y": a - 2 * b + c / 2})  # fmt: skip
    case("onto the second", "sum", {"xs": [a, b, c], "y": b}, {}, {"y": a + b + c})
    for slope in 0.0, 0.1:
        value, derivative = np.where(a > 0, a, slope * a), np.where(a > 0, b, slope * b)
        settings = {"slope": slope}
        case(f"slope {slope}", "relu", {"x": a, "y": y}, settings, {"y": value})
        case(f"in place, slope {slope}", "relu", {"x": a, "y": a}, settings, {"y": value})
        case(f"slope {slope}", "relu_backward", {"x": a, "dy": b, "dx": y}, settings,
             {"dx": derivative})  # fmt: skip
        case(f"in place, slope {slope}", "relu_backward", {"x": a, "dy": b, "dx": b}, settings,
             {"dx": derivative})  # fmt: skip


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
        formula = "t = a * b; y = t + b; z = exp(-abs(t))"
        case(label, "broadcast", {"inputs": [a, b], "outputs": outputs}, {"formula": formula},
             {"outputs": [y, z]})  # fmt: skip
        total = y.sum(axis=axes)
        settings = {"formula": "y = k * (a * b + b)", "axes": axes, "constants": {"k": 2.0}}
        tensors = {"inputs": [a, b]}
        case(label, "reduce", tensors, settings, {"y": 2 * total})
        case(label, "reduce_gradient", tensors, settings, {"dw": 2 * total})
    x, slopes = normal(2, 3, 4, 5), normal(1, 3, 1, 1)
    case("PReLU", "broadcast", {"inputs": [x, slopes], "outputs": [x]}, {"formula": PRELU},
         {"outputs": [np.where(x > 0, x, slopes * x)]})  # fmt: skip
    case("in place", "broadcast", {"inputs": [a, b], "outputs": [a]}, {"formula": "y = a - b"},
         {"outputs": [a - b]})  # fmt: skip


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


def solver_cases() -> None:
    x = normal(70_000)
    case("", "sum_of_squares", {"x": x}, {}, {"y": [(x**2).sum()]})

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
