"""Owns the order of records: where a position of a stream lies, and shuffles that a seed decides.

An order depends on the seed and the epoch only: not on ranks, threads or what was read before.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from osucaffe.backends.random import mix64


@lru_cache(maxsize=8)
def permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """The numbers 0 to count - 1, shuffled for an epoch."""
    order = np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, epoch, count]).permutation(count)
    order.flags.writeable = False
    return order


def first_record(seed: int, rand_skip: int) -> int:
    """How many records a stream passes over at its beginning: fewer than `rand_skip`."""
    return mix64(mix64(seed) + 1) % rand_skip if rand_skip else 0
