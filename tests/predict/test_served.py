"""Predictions of parameter servers: pushes and pulls come as training asks for them, and take what
links and servers take."""

from __future__ import annotations

import itertools

import pytest

from osucaffe.cli import main
from osucaffe.comm.tuning.table import Selection
from osucaffe.errors import UserError
from osucaffe.parallel.config import ParallelConfig
from osucaffe.predict.cluster import Cluster
from osucaffe.predict.iteration import Simulation
from osucaffe.predict.script import Compute, Pull, Push, record_served

from .test_predict import FIRST, ROOT, SECOND, cluster, sketch

LAYERS = [Compute("forward", layer) for layer in range(4)]
BACK = [Compute("backward", layer) for layer in (3, 2, 1, 0)]
PER_ELEMENT = 4 / 0.1e9
"""Seconds between hosts."""


def milliseconds(made: Cluster, workers: int, servers: int = 1, **layer: float) -> float:
    net = sketch()
    seconds = {
        (way, number): layer.get(way, 0.0) for number in range(4) for way in ("forward", "backward")
    }
    simulation = Simulation(net, seconds, made, workers, Selection(), servers=servers)
    return simulation.predict("servers", ParallelConfig(bucket=0)).ms


def test_workers_push_and_pull_as_in_training() -> None:
    script = record_served(sketch(), ParallelConfig(bucket=0), 2, 1)
    assert script == [
        LAYERS[0], Pull(1), LAYERS[1], Pull(0), *LAYERS[2:],
        *BACK[:2], Push(0, ((0, SECOND),)), BACK[2], Push(1, ((0, FIRST),)), BACK[3],
    ]  # fmt: skip


def test_buckets_are_divided_as_in_training() -> None:
    pushes = record_served(sketch(), ParallelConfig(bucket=0), 2, 2)
    assert [each for each in pushes if isinstance(each, Push)] == [
        Push(0, ((0, SECOND),)), Push(1, ((1, FIRST),))
    ]  # fmt: skip
    with pytest.raises(UserError, match="--servers 2: this net's weights make work for only 1"):
        record_served(sketch(), ParallelConfig("blocking"), 2, 2)


def test_a_push_and_a_pull_take_their_messages() -> None:
    alone = 2 + (SECOND + 2 * FIRST) * PER_ELEMENT * 1e3
    assert milliseconds(cluster(), 1) == pytest.approx(alone)
    # One port of the server carries all workers' gradients, then all their weights.
    more = [milliseconds(cluster(), workers) for workers in (1, 2, 3, 4)]
    steps = [after - before for before, after in itertools.pairwise(more)]
    assert steps == pytest.approx([2 * FIRST * PER_ELEMENT * 1e3] * 3)


def test_what_is_pushed_travels_beside_computation() -> None:
    # Gradients leave before the data layer's backward, weights come before its forward has ended.
    assert milliseconds(cluster(), 1, backward=0.1) == pytest.approx(400)
    assert milliseconds(cluster(), 1, forward=0.1) == pytest.approx(400)


def test_a_server_adds_and_updates() -> None:
    quick = milliseconds(cluster(), 2)
    busy = milliseconds(cluster(add_gb_s=0.01, memory_gb_s=0.1), 2)
    adding, updating = 2 * 4 / 0.01e9, 5 * 4 / 0.1e9
    assert busy - quick == pytest.approx((FIRST + SECOND) * (adding + updating) * 1e3, rel=0.15)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(ROOT / "models/caffenet/solver.prototxt"), str(ROOT / "clusters/dgx-h100.toml")]
    code = main([
        "predict", "--solver", files[0], "--cluster", files[1], "--ranks", "1,4",
        "--servers", "2", "--designs", "all-reduce", "--iterations", "2",
    ])  # fmt: skip
    assert code == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[1] for row in rows if row[0] == "4"] == ["all-reduce", "servers"]
