"""Owns the random settings of data layers, of what they read, and of how it is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..search import Case

DEFAULTS: Case = {
    "layer": "Data",
    "seed": 1,
    "records": 5,
    "batch": 3,
    "batches": 6,
    "phase": "TRAIN",
    "channels": 3,
    "extents": (6, 7),
    "varied": False,
    "labelled": True,
    "coded": "",
    "mixed": False,
    "force": "",
    "colour": True,
    "resized": (0, 0),
    "root": False,
    "crop": 0,
    "mirror": False,
    "mean": "",
    "scale": 1.0,
    "shuffle": False,
    "block": 0,
    "rand_skip": 0,
    "prefetch": 4,
    "files": 1,
    "dtype": "float32",
    "added": False,
    "fraction": 0.25,
    "thresholds": (0.5, 0.5),
    "context": 0,
    "square": False,
    "cache_images": False,
    "readers": 1,
    "cache": "none",
    "raw": False,
    "ranks": 2,
    "stop": 2,
    "before": 0,
}


def draw(random: np.random.Generator) -> Case:
    """A case that no layer may refuse."""

    def one(*values: Any) -> Any:
        return values[random.integers(len(values))]

    def number(first: int, last: int) -> int:
        return int(random.integers(first, last + 1))

    large = one(True, False, False)
    extents = (number(75, 90), number(75, 90)) if large else (number(5, 20), number(5, 20))
    layer = one("Data", "Data", "HDF5Data", "ImageData", "WindowData", "MemoryData")
    case: Case = {
        "layer": layer,
        "seed": number(0, 999),
        "records": number(1, 13),
        "batch": number(1, 7),
        "phase": one("TRAIN", "TRAIN", "TEST"),
        "channels": one(1, 3),
        "extents": extents,
        "readers": number(1, 3),
        "cache": one("none", "host", "device", "auto"),
        "raw": one(True, False),
        "ranks": one(2, 3),
    }
    case["batches"] = max(4, 3 * case["records"] // case["batch"] + 1)
    case["stop"], case["before"] = number(1, case["batches"] - 1), number(0, 3)
    if layer == "HDF5Data":
        case |= {"shuffle": one(True, False), "files": number(1, 4)}
        return case | {"dtype": one("float32", "float64", "uint8", "int32")}
    case |= {
        "crop": one(0, min(extents) - number(0, 3) if large else number(3, 5)),
        "mirror": one(True, False),
        "mean": one("", "file", "one", "each"),
        "scale": one(1.0, 0.00390625, 0.3),
    }
    if layer == "MemoryData":
        return case | {"added": one(True, False), "records": case["batch"] * number(1, 4)}
    if layer == "WindowData":
        low, high = sorted(number(0, 10) / 10 for _ in range(2))
        return case | {
            "crop": number(4, 9),
            "batch": number(1, 10),
            "fraction": number(0, 10) / 10,
            "thresholds": (high, low),
            "context": one(0, 0, 1),
            "square": one(True, False),
            "cache_images": one(True, False),
            "coded": one("jpg", "png"),
            "root": one(True, False),
        }
    case |= {
        "rand_skip": one(0, 0, number(1, 20)),
        "varied": bool(case["crop"]) and case["mean"] != "file" and one(True, False),
    }
    if layer == "ImageData":
        size = (0, 0) if large else one((0, 0), (number(5, 16), number(5, 16)))
        return case | {
            "shuffle": one(True, False),
            "resized": size,
            "varied": case["varied"] or (size != (0, 0) and one(True, False)),
            "colour": one(True, False),
            "root": one(True, False),
            "coded": one("jpg", "png"),
        }
    coded = one("", "", "jpg", "png", "float")
    return case | {
        "coded": coded,
        "force": one("", "color", "gray") if coded in ("jpg", "png") else "",
        "mixed": coded != "float" and one(True, False, False),
        "labelled": one(True, True, False),
        "prefetch": one(4, 1, 2),
        "block": one(0, 0, 1, 2, 3),
    }
