"""The payloads of TF-gRPC-Bench (Biswas et al., 2018): so many buffers of three categories."""

from __future__ import annotations

import numpy as np

SIZES = {"small": 10, "medium": 10 << 10, "large": 1 << 20}
"""Bytes of a buffer of each category."""
PAYLOADS = ("small", "medium", "large", "uniform", "random", "skew")
"""Buffers of one category; all three, evenly; two or three of them at random; 60 % large, 30 %
medium, 10 % small."""

LATENCY = ("64", "2097152", *PAYLOADS)
BANDWIDTH = ("2097152", "uniform", "random", "skew")
THROUGHPUT = ("small", "uniform", "random", "skew")
"""Those of each benchmark; a number is one buffer of so many bytes."""


def sizes(payload: str, buffers: int = 10, seed: int = 1) -> list[int]:
    """The bytes of each buffer of a payload; a number is one buffer of so many bytes."""
    if payload.isdecimal():
        return [int(payload)]
    if payload in SIZES:
        return [SIZES[payload]] * buffers
    each = list(SIZES.values())
    if payload == "uniform":
        return [each[n % 3] for n in range(buffers)]
    if payload == "skew":
        large, medium = round(0.6 * buffers), round(0.3 * buffers)
        return [each[2]] * large + [each[1]] * medium + [each[0]] * (buffers - large - medium)
    generator = np.random.default_rng(seed)
    kinds = generator.choice(3, generator.integers(2, 4), replace=False)
    rest = generator.choice(kinds, buffers - len(kinds))
    return [each[kind] for kind in generator.permutation([*kinds, *rest])]


def make(payload: str) -> list[np.ndarray]:
    """Its buffers, filled at random."""
    generator = np.random.default_rng(2)
    return [generator.integers(0, 256, size, np.uint8) for size in sizes(payload)]
