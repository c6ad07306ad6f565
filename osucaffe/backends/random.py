"""Owns the counter-based random numbers that every backend draws alike (dropout and the like).

squares32 (Widynski 2020, arXiv 2004.06278): a 64-bit counter and key give 32 random bits. The
counter is (step << 32) + element index, the key comes from (seed, key of the call): so the numbers
depend on nothing but these, and the state of a run's random numbers is one integer, `step`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RandomState:
    """The seed of a net and the number of forward passes that it has made."""

    seed: int = 0
    step: int = 0


def mix64(value: int) -> int:
    """A good 64-bit hash of a 64-bit number (the finalizer of splitmix64, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def call_key(seed: int, key: int) -> int:
    """The key of squares32 for one call in a net with this seed: odd, bits well mixed."""
    return mix64(mix64(seed & 0xFFFFFFFFFFFFFFFF) ^ mix64(key)) | 1
