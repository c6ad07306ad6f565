"""Owns the order of records: where a position of a stream lies, and shuffles that a seed decides.

An order depends on the seed and the epoch only: not on ranks, threads or what was read before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from ...backends.random import mix64


@lru_cache(maxsize=8)
def permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """The numbers 0 to count - 1, shuffled for an epoch."""
    order = np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, epoch, count]).permutation(count)
    order.flags.writeable = False
    return order


def runs(
    position: int, wanted: int, count: int, *, block: int = 0, seed: int = 0
) -> Iterator[tuple[int, int, int]]:
    """The next `wanted` places of an endless stream of `count` records, as runs of consecutive
    records (epoch, start, stop).

    block: 0 for the order of the records; else their blocks of so many come in another order in
    each epoch, and each record once. The last block may be short.
    """
    while wanted:
        epoch, place = divmod(position, count)
        start, stop = place, count
        if block:
            start, stop = _block_run(
                permutation(seed, epoch, -(-count // block)), place, count, block
            )
        stop = min(stop, start + wanted)
        yield epoch, start, stop
        position += stop - start
        wanted -= stop - start


def _block_run(order: np.ndarray, place: int, count: int, block: int) -> tuple[int, int]:
    """The record at a place of a shuffled epoch, and the end of its block."""
    lacking = len(order) * block - count
    if lacking and place >= _behind_short(order, block) - lacking:  # as if all blocks were whole
        place += lacking
    number = int(order[place // block])
    return number * block + place % block, min((number + 1) * block, count)


def _behind_short(order: np.ndarray, block: int) -> int:
    """The place behind the last block, which is short, if all were whole."""
    return (int(np.flatnonzero(order == len(order) - 1)[0]) + 1) * block


def records_at(
    positions: np.ndarray, count: int, *, block: int = 0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The epochs and the records at these places of the stream that `runs` describes."""
    epochs, places = np.divmod(positions, count)
    if not block:
        return epochs, places
    records = np.empty_like(places)
    for epoch in np.unique(epochs).tolist():
        chosen = epochs == epoch
        order = permutation(seed, epoch, -(-count // block))
        place = places[chosen]
        lacking = len(order) * block - count
        if lacking:
            place += np.where(place >= _behind_short(order, block) - lacking, lacking, 0)
        records[chosen] = order[place // block] * block + place % block
    return epochs, records


def first_record(seed: int, rand_skip: int) -> int:
    """How many records a stream passes over at its beginning: fewer than `rand_skip`."""
    return mix64(mix64(seed) + 1) % rand_skip if rand_skip else 0
