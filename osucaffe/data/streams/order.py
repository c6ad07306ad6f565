"""The order of records: the record at each position of a stream, and seeded shuffles.

An order depends only on the seed and the epoch: not on ranks, threads or earlier reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...backends.random import mix64


class Arrangement(NamedTuple):
    """What an order depends on besides the seed: streams in which it is the same bring the same
    records together. start: the record that comes first, where `block` is 0."""

    records: int
    block: int
    start: int


@lru_cache(maxsize=8)
def permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """The numbers 0 to count - 1, shuffled for an epoch."""
    order = np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, epoch, count]).permutation(count)
    order.flags.writeable = False
    return order


def records_at(
    positions: np.ndarray, count: int, *, block: int = 0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The epochs and the records at these positions of an endless stream of `count` records.

    block: 0 for the order of the records; else blocks of this many records come in another order
    in each epoch, and each record once. The last block may be short.
    """
    epochs, indices = np.divmod(positions, count)
    if not block:
        return epochs, indices
    records = np.empty_like(indices)
    for epoch in np.unique(epochs).tolist():
        chosen = epochs == epoch
        order = permutation(seed, epoch, -(-count // block))
        index = indices[chosen]
        lacking = len(order) * block - count
        if lacking:  # after the short block, continue as if all blocks were full
            short_end = (int(np.flatnonzero(order == len(order) - 1)[0]) + 1) * block
            index += np.where(index >= short_end - lacking, lacking, 0)
        records[chosen] = order[index // block] * block + index % block
    return epochs, records


def consecutive(numbers: np.ndarray, *others: np.ndarray, step: int = 1) -> Iterator[slice]:
    """The runs in which numbers increase by one, and others by `step`."""
    if not len(numbers):
        return
    breaks = numbers[1:] - numbers[:-1] != 1
    for other in others:
        breaks |= other[1:] - other[:-1] != step
    start = 0
    for stop in [*(breaks.nonzero()[0] + 1).tolist(), len(numbers)]:
        yield slice(start, stop)
        start = stop


def first_record(seed: int, rand_skip: int) -> int:
    """How many records a stream skips at its beginning: fewer than `rand_skip`."""
    return mix64(mix64(seed) + 1) % rand_skip if rand_skip else 0
