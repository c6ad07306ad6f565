"""Workers that need not wait for one another: how far they drift, and that they are not slower."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.comm.tuning.table import Selection
from osucaffe.errors import UserError
from osucaffe.study.drift import Drift, Worker
from osucaffe.study.iteration import DESIGNS, Prediction, Simulation
from osucaffe.study.predict import Case
from osucaffe.study.servers.shards import Consistency

from .test_predict import cluster, seconds, sketch

EACH = 0.01
"""Seconds of each of four layers, forward as backward."""
WHOLE = 8 * EACH


def simulation(text: str, workers: int = 2) -> Simulation:
    return Simulation(
        sketch(), seconds(EACH), cluster(), workers, Selection(), servers=[workers],
        consistency=Consistency.parse(text),
    )  # fmt: skip


def drifted(text: str, slow: float = 2.0, count: int = 20) -> tuple[Drift, list[Worker]]:
    """Of two workers the second takes `slow` times as long."""
    script, run = simulation(text).prepare(DESIGNS["servers"])
    parsed = Consistency.parse(text)
    drift = Drift(cluster(), 2, [2], run.pieces, seconds(EACH), parsed)
    return drift, drift.run(script, np.tile([1.0, slow], (count, 1)))


def took(worker: Worker) -> float:
    return float(np.diff(worker.ends)[5:15].mean())


def test_alone_it_is_as_sync() -> None:
    def of(text: str) -> Prediction:
        return simulation(text, 1).predict("servers", DESIGNS["servers"], 5)

    for text in ("async", "ssp:2", "backup:0"):
        assert of(text).ms == pytest.approx(of("sync").ms, rel=0.02)


def test_nobody_waits_for_others() -> None:
    _, workers = drifted("async")
    waits = [worker.waited for worker in workers]
    assert took(workers[0]) == pytest.approx(WHOLE, rel=0.1)
    assert took(workers[1]) == pytest.approx(2 * WHOLE, rel=0.1)
    assert max(waits) < 20 * EACH


@pytest.mark.parametrize("bound", [0, 3])
def test_the_fast_wait_within_the_bound(bound: int) -> None:
    _, (fast, slow) = drifted(f"ssp:{bound}")
    assert took(fast) == pytest.approx(took(slow), rel=0.1)
    ahead = [sum(end > at for end in slow.ends[:number]) for number, at in enumerate(fast.ends, 1)]
    assert max(ahead) == bound + 1


def test_backups_leave_the_slow_behind() -> None:
    """The slow one has a gradient in no update, and leaves out what it has missed."""
    drift, (fast, slow) = drifted("backup:1", slow=2.5)
    assert took(fast) == pytest.approx(WHOLE, rel=0.1)
    assert (len(fast.ends), fast.done, slow.done) == (20, 20, 20)
    assert len(slow.ends) < 10
    assert {number for _, number in drift.updates} == {*range(20)}
    found = simulation("backup:1").predict("servers", DESIGNS["servers"], 5)
    assert found.images == pytest.approx(4 / found.ms * 1e3)  # one batch of four, not two


def test_it_goes_with_servers() -> None:
    from osucaffe.cli import parse

    given = ["predict", "--solver", "s", "--cluster", "clusters/dgx-h100.toml", "--ranks", "2"]
    options = parse([*given, "--consistency", "async"])[1]
    with pytest.raises(UserError, match="--consistency async goes with --servers"):
        Case(options, ["all-reduce"])
