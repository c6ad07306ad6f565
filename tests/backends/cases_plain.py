"""The cases of the primitives without windows or weights: moves, formulas, draws, updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from osucaffe.backends.formula import ELU, PRELU
from osucaffe.backends.random import call_key
from osucaffe.comm.communicator import DONE, Handle
from tests.backends import cases, reference
from tests.backends.cases import STATE, Gradients, case, eighths, labels, normal
from tests.backends.running import Output


def _negate(array: Any, stream: Any = None) -> Handle:
    """Stands for an operation of a communicator, which gets bfloat16 as bits."""
    if array.dtype == np.uint16:
        array ^= 0x8000
    else:
        array *= -1
    return DONE


def movement_cases() -> None:
    x, y, z = normal(2, 3, 4, 5), normal(2, 1, 4, 5), normal(2, 18, 4, 5)
    case("zero", "fill", {}, {"value": 0.0}, {"y": np.zeros(x.shape)})
    case("value", "fill", {}, {"value": -1.5}, {"y": np.full(x.shape, -1.5)})
    case("", "copy", {"x": x}, {}, {"y": x})
    case("", "collective", {"x": x}, {"operation": _negate, "blocks": True}, {"x": -x})
    together = np.concatenate([x, y, z], axis=1)
    case("channels", "concat", {"xs": [x, y, z]}, {"axis": 1}, {"y": together})
    case("last axis", "concat", {"xs": [x, x]}, {"axis": 3}, {"y": np.concatenate([x, x], axis=3)})
    slices = [(2, 1), None, (0, 2)]
    some = np.concatenate([together[:, 2:3], x, together[:, :2]], axis=1)
    case(
        "of parts",
        "concat",
        {"xs": [together, x, together]},
        {"axis": 1, "slices": slices},
        {"y": some},
    )
    one = {"axis": 1, "slices": [(3, 1)]}  # in memory it lies alike in either order
    case("of one channel", "concat", {"xs": [together]}, one, {"y": together[:, 3:4]})
    case("with a gap", "split", {"x": together}, {"axis": 1}, {"ys": [x, None, z]})
    case("batch", "split", {"x": x}, {"axis": 0}, {"ys": [x[:1], x[1:]]})

    case("", "permute", {"x": x}, {"axes": (2, 0, 3, 1)}, {"y": x.transpose(2, 0, 3, 1)})
    deep = normal(2, 12, 4, 6)
    for label, shape, axes, result in (
        ("channels to blocks", (2, 3, 2, 2, 4, 6), (0, 1, 4, 2, 5, 3), (2, 3, 8, 12)),
        ("blocks to channels", (2, 12, 2, 2, 3, 2), (0, 1, 3, 5, 2, 4), (2, 48, 2, 3)),
        ("darknet's blocks", (2, 3, 4, 2, 6, 2), (0, 3, 5, 1, 2, 4), (2, 48, 2, 3)),
        ("groups of channels", (2, 3, 4, 24), (0, 2, 1, 3), deep.shape),
    ):
        found = deep.reshape(shape).transpose(axes).reshape(result)
        case(label, "permute", {"x": deep}, {"axes": axes, "shape": shape}, {"y": found})
    small, box = normal(1, 2, 4, 3), (slice(1, 2), slice(0, 2), slice(0, 4), slice(2, 5))
    offsets = {"offsets": (1, 0, 0, 2)}
    case("", "crop", {"x": x}, offsets, {"y": x[box]})
    surrounded = np.zeros(x.shape)
    surrounded[box] = small
    case("", "crop_backward", {"dy": small}, offsets, {"dx": surrounded})
    for label, table, index in [
        ("rows", normal(5, 3, 2), labels(5, 4, 2)), ("numbers", normal(6), labels(6, 9)),
        ("more than a block", normal(3, 140), labels(3, 300)),
    ]:  # fmt: skip
        rows = index.astype(int)
        dy = normal(*table[rows].shape)
        picked = (lambda table, rows=rows: table[rows]), table, dy
        case(label, "gather", {"x": table, "index": index}, {}, {"y": table[rows]})
        case(label, "gather_backward", {"dy": dy, "index": index}, {}, Gradients(dx=picked))
    outside = {"x": np.ones((3, 2)), "index": np.array([0.0, 3, -1])}
    nothing = [np.nan, np.nan]
    case("out of range", "gather", outside, {}, {"y": np.array([[1, 1], nothing, nothing])})
    case("", "arange", {}, {}, {"y": np.arange(24).reshape(2, 3, 4)})


def _transformed(records: np.ndarray, mean: Any, scale: float, size: int, rows: Any) -> np.ndarray:
    """Crops of records, by rows of (record, top, left, mirrored, ...)."""
    found = []
    for number, top, left, mirrored, *_ in rows:
        crop = (records[number] - (0 if mean is None else mean)) * scale
        crop = crop[:, top : top + size, left : left + size]
        found.append(crop[:, :, ::-1] if mirrored else crop)
    return np.stack(found)


def record_cases() -> None:
    images = cases.random.integers(0, 256, (4, 3, 9, 8)).astype(np.uint8)
    crops = np.array([[0, 0, 0], [3, 2, 1], [1, 0, 1], [2, 1, 0]], np.int32)
    for label, mean, scale, size in [
        ("whole image", None, 1.0, 9),
        ("crop", None, 1 / 256, 6),
        ("mean of channels", 128 * normal(3, 1, 1), 1.0, 6),
        ("mean image", 128 * normal(3, 9, 8), 0.5, 6),
    ]:
        table = crops if size < 9 else crops * np.int32([0, 0, 1])
        rows = np.insert(table, 0, range(4), axis=1)
        y = {"y": _transformed(images, mean, scale, size, rows)}
        tensors, settings = {"table": table, "mean": mean}, {"scale": scale}
        case(label, "transform", tensors | {"x": images}, settings, y)
        case(f"{label}, interleaved", "transform", tensors | {"x": images.transpose(0, 2, 3, 1)},
             settings | {"interleaved": True}, y)  # fmt: skip

    records = cases.random.integers(0, 256, (9, 3, 9, 8)).astype(np.uint8)
    rows = np.array([[8, 0, 0, 0, 3], [2, 3, 2, 1, -1], [2, 1, 0, 0, 70_000]], np.int32)
    tensors, settings = {"rows": rows, "mean": 128 * normal(3, 9, 8)}, {"scale": 0.25}
    y = {"y": _transformed(records, tensors["mean"], 0.25, 6, rows)}
    labelled = y | {"labels": rows[:, 4]}
    case("", "cached_batch", tensors | {"records": records}, settings, labelled)
    case("interleaved", "cached_batch", tensors | {"records": records.transpose(0, 2, 3, 1)},
         settings | {"interleaved": True}, labelled)  # fmt: skip
    case("without labels", "cached_batch", tensors | {"records": records}, settings, y)

    table, numbers = normal(6, 2, 3), np.array([[5], [0], [5], [3]], np.int32)
    case("", "cached_rows", {"records": table, "rows": numbers}, {}, {"y": table[numbers[:, 0]]})
    for label, table, dtype in [
        ("floats", normal(4, 300), "float32"), ("numbers", rows.reshape(3, 1, 5), "int32")
    ]:  # fmt: skip
        for at in 1, len(table):  # the first row comes behind the last
            cursor = at % len(table)
            case(f"{label} from {at}", "next_row",
                 {"table": table, "cursor": np.array([at], np.int32),
                  "row": Output(table.shape[1:], dtype)}, {},
                 {"row": table[cursor], "cursor": np.array([cursor + 1])})  # fmt: skip


def elementwise_cases() -> None:
    a, b, c = (eighths(2, 16, 5, 5) for _ in range(3))
    large, wide, t = normal(300_000), eighths(2, 30, 4, 3), np.exp(-abs(a))
    for label, formula, constants, inputs, outputs in [
        ("one statement", "y = where(a > b, a, slope * b)", {"slope": 0.25}, [a, b],
         [np.where(a > b, a, 0.25 * b)]),
        ("temporaries", "t = exp(-abs(a)); y = log1p(t) + max(a, 0); z = t * b + 1", None, [a, b],
         [np.log1p(np.exp(a)), t * b + 1]),
        ("several threads", "y = tanh(a) * a", None, [large], [np.tanh(large) * large]),
        ("zero stays", "y = a * 2 + tanh(a)", None, [wide], [wide * 2 + np.tanh(wide)]),
        ("zero does not stay", "y = a + 1", None, [wide], [wide + 1]),
        ("ELU", ELU, {"alpha": 0.7}, [a], [np.where(a > 0, a, 0.7 * np.expm1(a))]),
    ]:  # fmt: skip
        settings: dict[str, Any] = {"formula": formula}
        settings |= {"constants": constants} if constants else {}
        case(label, "elementwise", {"inputs": inputs}, settings, {"outputs": outputs})
    case("in place", "elementwise", {"inputs": [a, b], "outputs": [a, b]},
         {"formula": "y = a * 2 + b; z = a - b"}, {"outputs": [2 * a + b, a - b]})  # fmt: skip
    case("plain", "sum", {"xs": [a, b]}, {}, {"y": a + b})
    case("coefficients", "sum", {"xs": [a, b, c]}, {"coefficients": [1.0, -2.0, 0.5]},
         {"y": a - 2 * b + c / 2})  # fmt: skip
    case("onto the second", "sum", {"xs": [a, b, c], "y": b}, {}, {"y": a + b + c})
    for slope in 0.0, 0.1:
        y, dx = {"y": np.where(a > 0, a, slope * a)}, {"dx": np.where(a > 0, b, slope * b)}
        settings, label = {"slope": slope}, f"slope {slope}"
        case(label, "relu", {"x": a}, settings, y)
        case(f"in place, {label}", "relu", {"x": a, "y": a}, settings, y)
        case(label, "relu_backward", {"x": a, "dy": b}, settings, dx)
        case(f"in place, {label}", "relu_backward", {"x": a, "dy": b, "dx": b}, settings, dx)


def broadcast_cases() -> None:
    for label, shapes, axes in [
        ("channel", [(2, 3, 4, 5), (1, 3, 1, 1)], (0, 2, 3)),
        ("both ways", [(2, 1, 4), (1, 3, 1)], (1,)),
        ("last axis", [(6, 7), (6, 1)], (0,)),
        ("large", [(3, 5, 170, 120), (1, 5, 1, 120)], (0, 2)),
        ("one long axis", [(40_000,), (1,)], (0,)),
        ("nothing to sum", [(2, 3), (1, 3)], ()),
    ]:
        inputs = [a, b] = [normal(*shape) for shape in shapes]
        y, z = a * b + b, np.exp(-abs(a * b))
        formula = "t = a * b; y = t + b; z = exp(-abs(t))"
        case(label, "broadcast", {"inputs": inputs}, {"formula": formula}, {"outputs": [y, z]})
        total = 2 * y.sum(axis=axes)
        settings = {"formula": "y = k * (a * b + b)", "axes": axes, "constants": {"k": 2.0}}
        case(label, "reduce", {"inputs": inputs}, settings, {"y": total})
    x, slopes = normal(2, 3, 4, 5), normal(1, 3, 1, 1)
    case("PReLU", "broadcast", {"inputs": [x, slopes], "outputs": [x]}, {"formula": PRELU},
         {"outputs": [np.where(x > 0, x, slopes * x)]})  # fmt: skip
    case("in place", "broadcast", {"inputs": [a, b], "outputs": [a]}, {"formula": "y = a - b"},
         {"outputs": [a - b]})  # fmt: skip


def dropout_cases() -> None:
    for ratio, shape in (0.5, (4, 19, 3, 3)), (0.2, (40_000,)):
        x, dy, mask = normal(*shape), normal(*shape), Output(shape, "uint8")
        key, start = call_key(STATE.seed, 5), STATE.step << 32
        drawn = [reference.squares32(start + i, key) for i in range(x.size)]
        scale = (np.array(drawn).reshape(shape) >= ratio * 2**32) / (1 - ratio)
        settings, label = {"ratio": ratio, "key": 5}, f"ratio {ratio}"
        forward = ("dropout", {"x": x, "y": Output(shape), "mask": mask}, settings)
        case(label, *forward, {"y": x * scale})
        case(f"in place, {label}", "dropout", {"x": x, "y": x, "mask": mask}, settings,
             {"y": x * scale})  # fmt: skip
        case(label, "dropout_backward", {"dy": dy, "mask": mask}, settings, {"dx": dy * scale},
             forward)  # fmt: skip


def solver_cases() -> None:
    x = normal(70_000)
    case("", "sum_of_squares", {"x": x}, {}, {"y": np.array([(x**2).sum()])})
    g, slices = normal(70_000) + 1, [(0, 3), (5, 69_000), (69_000, 70_000)]
    sums = [[(a * b)[i:j].sum() for a, b in ((x, x), (g, g), (x, g))] for i, j in slices]
    case(
        "",
        "segment_sums",
        {"x": x, "g": g},
        {"segments": slices},
        {"y": np.array(sums).reshape(-1)},
    )

    for size, segments in [
        (10, [(0, 4, 1.0, 1.0), (4, 6, 2.0, 0.0), (8, 10, 1.0, 0.5)]),
        (300_000, [(0, 100, 1.0, 1.0), (100, 200_000, 1.0, 1.0), (200_000, 300_000, 2.0, 0.0)]),
    ]:
        w, g, h, h2 = normal(size), normal(size), normal(size), normal(size) ** 2
        rates, decays, inside = np.zeros(size), np.zeros(size), np.zeros(size, bool)
        for start, stop, rate, decay in segments:
            rates[start:stop], decays[start:stop], inside[start:stop] = rate, decay, True
        step = 0.9 * h + 0.25 * rates * (0.5 * g + 0.01 * decays * w)
        m, v = 0.9 * h + 0.1 * g, 0.99 * h2 + 0.01 * g**2
        for label, formula, constants, history, new in [
            ("momentum", "t = scale * g + l2 * decay * w; h = momentum * h + lr * rate * t;"
             " w = w - h", {"momentum": 0.9, "l2": 0.01}, [h], [w - step, step]),
            ("adam", "h = b1 * h + (1 - b1) * g; h2 = b2 * h2 + (1 - b2) * g * g;"
             " w = w - lr * rate * h / (sqrt(h2) + delta)",
             {"b1": 0.9, "b2": 0.99, "delta": 1e-3}, [h, h2],
             [w - 0.25 * rates * m / (np.sqrt(v) + 1e-3), m, v]),
        ]:  # fmt: skip
            weights, *after = (
                np.where(inside, value, before)
                for value, before in zip(new, [w, *history], strict=True)
            )
            tensors = {"weights": w, "gradients": g, "history": history}
            if label == "momentum":
                sums = normal(len(segments), 3) ** 2
                of_each = np.zeros((size, 3))
                for (start, stop, *_), row in zip(segments, sums, strict=True):
                    of_each[start:stop] = row
                ww, gg, wg = of_each.T
                case(
                    f"by sums, {size}",
                    "update",
                    {
                        "weights": w,
                        "gradients": g,
                        "history": [],
                        "sums": sums.reshape(-1),
                        "scalars": np.array([0.25]),
                    },
                    {
                        "names": ["lr"],
                        "segments": segments,
                        "constants": {},
                        "formula": "w = w - lr * (ww + 2 * gg + 3 * wg) * g",
                    },
                    {"weights": w - 0.25 * (ww + 2 * gg + 3 * wg) * g, "history": []},
                )
            case(f"{label}, {size}", "update", tensors | {"scalars": np.array([0.25, 0.5])},
                 {"names": ["lr", "scale"], "segments": segments, "formula": formula,
                  "constants": constants}, {"weights": weights, "history": after})  # fmt: skip
