"""squares32 by NumPy against the same rounds with Python's integers; and what it is good for."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.random import call_key, keep_threshold, mix64, squares32
from tests.backends import reference


def draw(counter: int, key: int, count: int) -> np.ndarray:
    out, *scratch = (np.empty(count, np.uint64) for _ in range(4))
    squares32(counter, key, out, scratch)
    return out


@pytest.mark.parametrize("counter", [0, 5 << 32, 2**64 - 3])
def test_numpy_draws_what_the_paper_says(counter: int) -> None:
    key = call_key(1, 2)
    wanted = [reference.squares32((counter + i) % 2**64, key) for i in range(10)]
    assert draw(counter, key, 10).tolist() == wanted


def test_numbers_are_spread_evenly() -> None:
    numbers = draw(3 << 32, call_key(7, 7), 1 << 14) / 2**32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_seed_key_and_step_all_matter() -> None:
    draws = {
        tuple(draw(step << 32, call_key(seed, key), 3))
        for seed in (0, 1, 2**63) for key in (0, 1, 2) for step in (0, 1, 2)
    }  # fmt: skip
    assert len(draws) == 27


def test_mix64_is_splitmix64() -> None:
    # The first outputs of splitmix64 seeded with 0: its state after one step hashed, and so on.
    assert mix64(0) == 0xE220A8397B1DCDAF
    assert mix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4


def test_keep_threshold() -> None:
    assert keep_threshold(0.0) == 0
    assert keep_threshold(0.5) == 2**31
