"""That a net waits for its records is said once, where it is much."""

from __future__ import annotations

import logging

import pytest

from osucaffe.data.ahead.stalls import StallMonitor


def log_of(caplog: pytest.LogCaptureFixture, waits: float, computes: float) -> str:
    waiting, now = StallMonitor('layer "data" (Data), TRAIN', "--readers"), 100.0
    with caplog.at_level(logging.INFO, "osucaffe"):
        waiting.note(now, now + 60)  # the first batch does not count
        now += 60
        for _ in range(2000):
            now += computes
            waiting.note(now, now + waits)
            now += waits
    return caplog.text


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    text = log_of(caplog, waits=0.03, computes=0.01)
    said = 'layer "data" (Data), TRAIN: the net waits for its records 75 % of the time'
    assert text.count(said) == 1
    assert "--readers" in text


def test_nothing_is_said_where_it_is_little(caplog: pytest.LogCaptureFixture) -> None:
    assert log_of(caplog, waits=0.001, computes=0.04) == ""
