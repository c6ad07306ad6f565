"""The confidence interval of a share that is right."""

from __future__ import annotations

import pytest

from osucaffe.cli.score.predictions import confidence_interval, percents


@pytest.mark.parametrize(
    ("right", "total", "text"),
    [
        (14, 14, "77–100 %"),
        (0, 14, "0–23 %"),
        (0, 0, "0–100 %"),
        # The exact intervals of Newcombe, Two-sided confidence intervals for the single proportion,
        # Statistics in Medicine 17 (1998), table I.
        (81, 263, "25–37 %"),
        (15, 148, "6–16 %"),
        (0, 20, "0–17 %"),
        (49_999, 50_000, "99.99–100.00 %"),
    ],
)
def test_intervals(right: int, total: int, text: str) -> None:
    assert percents(confidence_interval(right, total)) == text


def test_its_bounds_have_the_tails() -> None:
    low, high = confidence_interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2527, 0.3676)
