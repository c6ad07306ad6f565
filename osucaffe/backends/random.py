"""The counter-based random numbers that every backend draws alike (dropout and the like).

squares32 (Widynski 2020, arXiv 2004.06278): a 64-bit counter and key give 32 random bits. The
counter is (step << 32) + element index, the key comes from (seed, key of the call): so the numbers
depend on nothing but these, and the state of a run's random numbers is one integer, `step`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MASK = 0xFFFFFFFFFFFFFFFF
_HALF = np.uint64(32)
_INDEX = np.arange(1 << 15, dtype=np.uint64)


@dataclass(eq=False)
class RandomState:
    """The seed of a net and the number of forward passes that it has made.

    rank: of several processes that share out a batch. Each draws the numbers that its part of the
    whole batch would get: those after the parts of the ranks before it.
    """

    seed: int = 0
    step: int = 0
    rank: int = 0

    def counter(self, size: int, index: int) -> int:
        """The counter of an element of a tensor that has `size` elements on every rank."""
        return (self.step << 32) + self.rank * size + index


def new_seed() -> int:
    """A seed for who was given none."""
    return int.from_bytes(os.urandom(4), "little")


def mix64(value: int) -> int:
    """A good 64-bit hash of a 64-bit number (the finalizer of splitmix64, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def call_key(seed: int, key: int) -> int:
    """The key of squares32 for one call in a net with this seed: odd, bits well mixed."""
    return mix64((mix64(seed & _MASK) + key) & _MASK) | 1


def keep_threshold(ratio: float) -> int:
    """Dropout keeps an element when its 32 random bits are at least this."""
    return round(ratio * 2**32)


def squares32(counter: int, key: int, out: np.ndarray, scratch: Sequence[np.ndarray]) -> None:
    """32 random bits for each of the counters counter, counter + 1, ...

    out and three arrays of scratch are uint64 of one length, at most 2^15; nothing is allocated.
    Each round squares, adds, and swaps the halves (Widynski 2020, section 4).
    """
    x, (y, z, high) = out, scratch
    np.add(_INDEX[: len(x)], np.uint64(counter & _MASK), out=x)
    np.multiply(x, np.uint64(key), out=x)
    np.copyto(y, x)
    np.add(y, np.uint64(key), out=z)
    for addend in (y, z, y):
        np.multiply(x, x, out=x)
        np.add(x, addend, out=x)
        np.right_shift(x, _HALF, out=high)
        np.left_shift(x, _HALF, out=x)
        np.bitwise_or(x, high, out=x)
    np.multiply(x, x, out=x)
    np.add(x, z, out=x)
    np.right_shift(x, _HALF, out=x)
