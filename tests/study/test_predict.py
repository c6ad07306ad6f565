"""Predictions: plans are the real schedules, links are shared, hooks come in training's order;
pushes and pulls of parameter servers come as training asks for them, and take what links and
servers take.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.papers import collective
from osucaffe.cli import main
from osucaffe.comm.algorithms import ALGORITHMS
from osucaffe.comm.tuning.table import Selection
from osucaffe.errors import UserError
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.plan import Pull, Push, Send, Update, Wait
from osucaffe.proto import NetParameter, parse_text
from osucaffe.study.cluster import Cluster, Device, Link, Reading, read_cluster
from osucaffe.study.iteration import DESIGNS, Run, Simulation, Span
from osucaffe.study.messages import Planner, waves
from osucaffe.study.network import Network
from osucaffe.study.predict import parse_ranks
from osucaffe.study.script import Compute, plan_of, write
from osucaffe.study.sketch import Sketch
from osucaffe.study.times import Times, read_times

ROOT = Path(__file__).parents[2]
NET = """
name: "two"
layer { name: "data" type: "Data" top: "x" top: "label" transform_param { crop_size: 8 }
  data_param { source: "nowhere" batch_size: 4 backend: LMDB } }
layer { name: "first" type: "InnerProduct" bottom: "x" top: "h"
  inner_product_param { num_output: 64 bias_term: false } }
layer { name: "second" type: "InnerProduct" bottom: "h" top: "y"
  inner_product_param { num_output: 16 bias_term: false } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }
"""
FIRST, SECOND = 192 * 64, 64 * 16
"""Their weights."""


def cluster(per_host: int = 1, **device: float) -> Cluster:
    """1 GB/s in a host, 0.1 GB/s and 1 ms between hosts."""
    node, network = Link(10.0, 1.0), Link(1000.0, 0.1)
    return Cluster("test", per_host, Device(**device), node, network)


def sketch() -> Sketch:
    return Sketch(parse_text(NET, NetParameter))


def took(made: Cluster, size: int, operation: str, count: int, algorithm: str = "auto") -> float:
    """Milliseconds until the last rank is done."""
    planner = Planner(made, size, Selection(algorithm))
    plan, scale = planner.plan(operation, count)
    return float(Network(made, size).run(plan, np.zeros(size), scale).max() * 1e3)


def test_a_sketch_knows_what_the_net_does() -> None:
    found = sketch()
    assert [layer.label for layer in found.layers] == ["data", "first", "second", "loss"]
    assert (found.batch, len(found.arena)) == (4, FIRST + SECOND)
    assert found.forward[1].flops == 2 * 4 * FIRST
    assert found.backward[2].flops == 2 * 2 * 4 * SECOND  # of the weights, and of what is below
    assert found.backward[1].flops == 2 * 4 * FIRST


def script(name: str, size: int = 2) -> list[Any]:
    config = ParallelConfig(DESIGNS[name].aggregation, DESIGNS[name].propagation, bucket=0)
    return written(sketch(), config, size)


def written(net: Sketch, config: ParallelConfig, size: int) -> list[Any]:
    planner = Planner(cluster(), size, Selection())
    return write(plan_of(net, config, planner, separable=True), net)


def elements(script: list[Any]) -> list[int]:
    return [each.stop - each.start for each in script if isinstance(each, Send)]


def test_scripts_are_what_training_does() -> None:
    forward = [Compute("forward", layer) for layer in range(4)]
    backward = [Compute("backward", layer) for layer in (3, 2, 1, 0)]
    assert script("all-reduce") == [
        *forward, *backward[:2], Send(0, "all_reduce", 0, SECOND), backward[2],
        Send(1, "all_reduce", SECOND, FIRST + SECOND), backward[3],
        Wait(0), Update(0, SECOND), Wait(1), Update(SECOND, FIRST + SECOND),
    ]  # fmt: skip
    assert script("SC-B") == [
        Send(1, "broadcast", 0, FIRST + SECOND, weights=True), Wait(1), *forward, *backward,
        Send(0, "reduce", 0, FIRST + SECOND), Wait(0), Update(0, FIRST + SECOND),
    ]  # fmt: skip
    overlapped = script("SC-OBR")
    assert overlapped[:4] == [
        Send(2, "broadcast", SECOND, FIRST + SECOND, weights=True),
        Send(3, "broadcast", 0, SECOND, weights=True), forward[0], Wait(2),
    ]  # fmt: skip
    assert [each.operation for each in script("sharded") if isinstance(each, Send)] == [
        "all_gather", "reduce_scatter", "all_reduce"
    ]  # fmt: skip
    assert not simulate("all-reduce", cluster(), size=1).exposed


@pytest.mark.parametrize("size", [2, 5, 8])
@pytest.mark.parametrize("operation", ALGORITHMS)
def test_plans_move_all_that_the_schedules_do(operation: str, size: int) -> None:
    for algorithm in ALGORITHMS[operation]:
        plan, scale = Planner(cluster(), size, Selection(algorithm)).plan(operation, 1000)
        moved = sum(wave.nbytes.sum() for wave in plan)
        least = 4000 * (size - 1) * (2 if operation == "all_reduce" else 1)
        assert scale == 1.0
        assert moved == least or (moved > least and "doubl" in algorithm) or "scatter" in algorithm


def test_ranks_of_hosts_reduce_among_themselves_first() -> None:
    """Three ranks on each of two hosts, rails between them: each host's port carries all once."""
    plan, _ = Planner(cluster(3), 6, Selection()).plan("all_reduce", 3 << 20)
    crossed = 0.0
    for wave in plan:
        far = wave.source // 3 != wave.target // 3
        crossed += wave.nbytes[far & (wave.source < 3)].sum()
    assert crossed == 3 << 22


def test_a_message_takes_latency_and_bytes() -> None:
    assert took(cluster(), 2, "broadcast", 25_000) == pytest.approx(1 + 1)
    assert took(cluster(2), 2, "broadcast", 25_000) == pytest.approx(0.01 + 0.1)
    ring = 2 * 3 * (1 + 1.0)
    assert took(cluster(), 4, "all_reduce", 100_000, "ring") == pytest.approx(ring)
    # And adding a byte takes 3 times as long as moving it through memory: 1 ns here.
    adding = cluster(memory_gb_s=3.0)
    assert took(adding, 4, "all_reduce", 100_000, "ring") == pytest.approx(ring + 3 * 0.1)


def test_a_port_carries_one_message_after_the_other() -> None:
    """Two ranks of a host send to two of another: with one port, one waits."""
    both = [([(2, 100_000)], [], 0), ([(3, 100_000)], [], 0)]
    ranks = [[both[0]], [both[1]], [([], [(0, 100_000)], 0)], [([], [(1, 100_000)], 0)]]
    plan = waves(ranks)
    one = Network(cluster(2), 4).run(plan, np.zeros(4)) * 1e3
    assert sorted(one[:2]) == pytest.approx([2, 3])
    ports = Link(1000.0, 0.1, ports=2)
    made = Cluster("two ports", 2, Device(), ports, ports)
    assert Network(made, 4).run(plan, np.zeros(4)) * 1e3 == pytest.approx([2] * 4)
    late = Network(cluster(2), 4).run(plan, np.array([0.005, 0, 0, 0])) * 1e3
    assert late == pytest.approx([7, 2, 7, 2])


def test_small_messages_leave_before_they_are_wanted() -> None:
    plan = waves([[([(1, 1000)], [], 0)], [([], [(0, 1000)], 0)]])
    begin = np.array([0.0, 0.5])
    for eager_kb, sender in ((0, 501.01), (1, 0.01)):
        link = Link(1000.0, 0.1, eager_kb=eager_kb)
        found = Network(Cluster("", 1, Device(), link, link), 2).run(plan, begin) * 1e3
        assert found == pytest.approx([sender, 501.01 if not eager_kb else 500])


def test_what_buffers_hold_travels_before_it_is_wanted() -> None:
    """Its sender waits all the same."""
    plan = waves([[([(1, 1000)], [], 0)], [([], [(0, 1000)], 0)]])
    link = Link(1000.0, 0.1, buffer_kb=1)
    made = Network(Cluster("", 1, Device(), link, link), 2)
    assert made.run(plan, np.array([0.0, 0.5])) == pytest.approx([0.5, 0.5])
    assert made.run(plan, np.array([1.0, 0.5])) == pytest.approx([1.00101, 1.00101])


def test_a_port_that_rested_lets_a_burst_through() -> None:
    """1 ms of latency and 10 ms a megabyte, of which 0.2 come at once after a rest of 2 ms."""
    plan = waves([[([(1, 1_000_000)], [], 0)], [([], [(0, 1_000_000)], 0)]])
    link = Link(1000.0, 0.1, burst_kb=200_000 / 1024)
    made = Network(Cluster("", 1, Device(), link, link), 2)
    begin, ends = np.zeros(2), []
    for rest in (0.0, 0.0, 0.0, 0.005):
        begin = made.run(plan, begin + rest)
        ends.append(begin.max() * 1e3)
    # It rests during each message's latency, too: 1 ms of 10 is saved each time.
    assert ends == pytest.approx([9, 19, 29, 43])
    few = waves([[([(1, 100_000)], [], 0)], [([], [(0, 100_000)], 0)]])
    assert made.run(few, np.ones(2)) == pytest.approx([1.001, 1.001])


def test_who_naps_sees_late_that_a_step_has_ended() -> None:
    made = Network(cluster(), 2)
    plan = waves([[([(1, 100_000)], [], 0)], [([], [(0, 100_000)], 0)]])
    assert made.run(plan, np.zeros(2), nap=1e-3) * 1e3 == pytest.approx([2.5, 2.5])
    short = waves([[([(1, 1)], [], 0)], [([], [(0, 1)], 0)]])
    assert made.run(short, np.ones(2), nap=2e-3) * 1e3 == pytest.approx([1001.5, 1001.5])


def test_padded_parameters_travel_padded(tmp_path: Path) -> None:
    padded = Sketch(parse_text(NET, NetParameter), sizes={"first/0": FIRST + 160, "second/0": 5})
    assert len(padded.arena) == FIRST + 160 + SECOND
    config = ParallelConfig("blocking", "none")
    assert elements(written(padded, config, 2)) == [FIRST + 160 + SECOND]
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"layers": [], "sizes": {"first/0": 7}}))
    assert read_times(path).sizes == {"first/0": 7}
    path.write_text('{"sizes": [1]}')
    with pytest.raises(UserError, match="not times of layers"):
        read_times(path)


def test_what_waits_for_ever_is_told() -> None:
    with pytest.raises(ValueError, match=r"ranks \[0\] wait for messages that nobody sends"):
        waves([[([], [(1, 4)], 0)], []])


def seconds(each: float) -> dict[tuple[str, int], float]:
    return {(way, layer): each for way in ("forward", "backward") for layer in range(4)}


def simulate(name: str, made: Cluster, size: int = 2, each: float = 0.01) -> Any:
    simulation = Simulation(sketch(), seconds(each), made, size, Selection())
    config = ParallelConfig(DESIGNS[name].aggregation, DESIGNS[name].propagation, bucket=0)
    return simulation.predict(name, config, 5, seed=3)


def test_iterations_add_up() -> None:
    """Of 8 layers of 10 ms; all weights need 0.53 ms and 1 ms of latency each way."""
    way = 1 + 4 * (FIRST + SECOND) / 0.1e9 * 1e3
    assert simulate("all-reduce", cluster(), size=1).ms == pytest.approx(80)
    assert simulate("SC-B", cluster()).ms == pytest.approx(80 + 2 * way)
    # The first layer's gradients, complete 10 ms before the end, have arrived by then.
    assert simulate("all-reduce", cluster()).ms == pytest.approx(80)
    found = simulate("all-reduce", cluster(), each=0.0)
    # Nothing to hide behind: two operations of one round trip.
    assert found.ms == pytest.approx(2 + 4 * (FIRST + SECOND) / 0.1e9 * 1e3)
    assert (found.low, found.efficiency) == (pytest.approx(found.ms), 0.0)


def test_what_is_not_hidden_is_exposed() -> None:
    """What ranks only wait for, in the mean: of two, one may wait for the other."""
    for name in ("SC-B", "all-reduce behind", "all-reduce", "SC-OBR"):
        found = simulate(name, cluster())
        assert found.exposed == pytest.approx(found.ms - 80, abs=1e-9)
    beside = Simulation(sketch(), seconds(0.0), cluster(), 2, Selection(), servers=[2])
    found = beside.predict("servers", DESIGNS["servers"])
    assert 0 < found.exposed == pytest.approx(found.ms, rel=0.05)
    run = beside.prepare(DESIGNS["servers"])[1]
    run._now = np.array([0.0, 2.0])
    run._wait(np.array([3.0, 1.0]))
    assert (run.waited, *run._now) == (1.5, 3, 2)


def test_stragglers_widen_the_band_and_slow_all() -> None:
    made = Cluster("", 1, Device(), Link(10, 1), Link(10, 1), sigma=0.1)
    found = simulate("all-reduce", made, size=8)
    assert found.low < found.ms < found.high
    assert found.ms > 80.5
    assert simulate("all-reduce", made, size=8) == found


def test_communication_may_slow_computation() -> None:
    free, stolen = (simulate("all-reduce", cluster(stolen=share)) for share in (0.0, 0.5))
    # 1.04 ms of the second layer's, and 1.49 of the first's, lie beside backward.
    assert stolen.ms - free.ms == pytest.approx(0.5 * (2 + 4 * (FIRST + SECOND) / 0.1e9 * 1e3))


def test_computation_that_is_slowed_meets_more_of_what_travels() -> None:
    """Half the speed from 0 to 3 and from 4 to 6: from 1 on, three seconds take five."""
    made = cluster(stolen=0.5)
    run = Run(Planner(made, 2, Selection()), made, {}, sketch(), overlapped=True)
    run._now = np.array([1.0, 7.0])
    run._spans = [Span(np.full(2, begin), np.full(2, end)) for begin, end in ((0, 3), (4, 6))]
    run._compute(np.array([3.0, 3.0]))
    assert run._now == pytest.approx([6, 10])


def test_communication_that_is_held_up_holds_up_what_follows() -> None:
    """Half the speed beside four seconds of computation: three seconds take five, or
    six beside two more seconds, and the next operation begins later."""
    made = cluster(held=0.5)
    run = Run(Planner(made, 2, Selection()), made, {}, sketch(), overlapped=True)
    first, second = run._spans = [
        Span(np.zeros(2), np.full(2, 3.0)),
        Span(np.full(2, 3.0), np.full(2, 5.0)),
    ]
    run._compute(np.full(2, 4.0))
    assert run._now == pytest.approx([4, 4])
    assert [first.end[0], second.begin[0], second.end[0]] == pytest.approx([5, 5, 7])
    run._compute(np.full(2, 2.0))
    assert run._now == pytest.approx([6, 6])
    assert [first.end[0], second.begin[0], second.end[0]] == pytest.approx([6, 6, 8])


def test_what_make_papers_predicts() -> None:
    """Chains overtake trees between small and large messages, as the models say."""
    small, large = (
        [collective("kesch-k80", 40, "reduce", nbytes, name) for name in ("binomial", "chain")]
        for nbytes in (4096, 16 << 20)
    )
    assert small[0] < small[1]
    assert large[0] > large[1]


def test_ranks_in_words() -> None:
    assert parse_ranks("1,2,4,...,20") == [1, 2, 4, 8, 16, 20]
    assert parse_ranks("3, …, 12") == [3, 6, 12]
    for wrong in ("0", "4,2", "1,...", "...,4", "1,x"):
        with pytest.raises(UserError, match="--ranks"):
            parse_ranks(wrong)


@pytest.mark.parametrize("path", sorted((ROOT / "clusters").glob("*.toml")), ids=lambda p: p.stem)
def test_clusters_say_where_their_figures_are_from(path: Path) -> None:
    found = read_cluster(path)
    named = " ".join(found.sources)
    for part in ("ranks_per_host", "device", "links.node", "links.network", "latency_us"):
        assert part in named, part


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("latency_us = 5", "latency_s = 5"), "no links.node.latency_s .did you mean latency_us"),
        (("gb_s = 50", "gb_s = 0"), "links.node.gb_s must not be 0"),
        (("latency_us = 5\n", ""), r"\[links.node\].*latency_us"),
        (("[links.network]", "[links.far]"), "no links.far"),
        (("ranks_per_host = 4", "ranks_per_host = 0"), "a number from 1 on"),
        (("ranks_per_host = 4", ""), "ranks_per_host is missing"),
        (("[device]", "[device"), "not a cluster file"),
        (("[device]", "[device]\nstolen = 1.0"), "device.stolen is a share: it must be below 1"),
        (("[device]", "[device]\nheld = 2"), "device.held is a share: it must be below 1"),
    ],
)
def test_bad_clusters(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    text = """
ranks_per_host = 4
[device]
[links.node]
latency_us = 5
gb_s = 50
[links.network]
latency_us = 6
gb_s = 12
"""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert read_cluster(path).name == "bad"
    path.write_text(text.replace(*change))
    with pytest.raises(UserError, match=message):
        read_cluster(path)


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed"')
    out, times = tmp_path / "out.json", tmp_path / "times.json"
    words = ["predict", "--solver", str(solver), "--cluster", str(ROOT / "clusters/dgx-h100.toml")]
    common = [*words, "--ranks", "1,2,16", "--out", str(out)]
    assert main([*common, "--measure", "2", "--save_times", str(times), "--threads", "1"]) == 0
    first = json.loads(out.read_text())["predictions"]
    assert [each["ranks"] for each in first] == [1, *[2] * 4, *[16] * 4]
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert "wins" in capsys.readouterr().out
    monkeypatch.setattr("osucaffe.study.predict._draw", lambda *given: None)  # once is enough
    assert main([*common, "--times", str(times)]) == 0
    assert json.loads(out.read_text())["predictions"] == first
    assert main([*common, "--times", str(times), "--scal", "strong", "--batch", "64"]) == 0
    strong = json.loads(out.read_text())["predictions"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "left"))
    (tmp_path / "left").mkdir()
    assert main([*words, "--ranks", "1", "--measure", "1", "--threads", "1"]) == 0
    assert not list((tmp_path / "left").iterdir())
    some = [*words, "--ranks", "2", "--designs", "SC-B,sharded", "--batch", "64"]
    rows = out.with_suffix(".csv")
    measured = ["--scal", "strong", "--measure", "2", "--save_times", str(tmp_path / "two.json")]
    assert main([*some, *measured, "--threads", "1", "--out", str(rows)]) == 0
    head, *lines = rows.read_text().splitlines()
    assert head.startswith("design,ranks,ms,")
    assert [line.split(",")[0] for line in lines] == ["SC-B", "sharded"]
    assert read_times(tmp_path / "two.json").half_batch >= 0
    assert "by batches of 1 and 64" in capsys.readouterr().out
    assert strong[-1]["computing"] < first[-1]["computing"] * 1.01
    read_times(times).of(sketch())
    assert main([*words, "--ranks", "16", "--times", str(times), "--bucket_mb", "auto"]) == 0
    assert "  --bucket_mb " not in capsys.readouterr().out  # of 53 KB: there is one way to cut it
    net = "models/caffenet/solver.prototxt"
    words[2] = str(ROOT / net)
    assert main([*words, "--ranks", "16", "--designs", "all-reduce", "--bucket_mb", "auto"]) == 0
    assert "  --bucket_mb " in capsys.readouterr().out
    words[2] = str(solver)
    for wrong, message in (
        (["--times", str(solver)], "not times of layers"),
        (["--designs", "rings"], "--designs rings: choose among SC-B"),
        (["--algorithm", "rings"], "algorithm 'rings' is not known"),
    ):
        assert main([*words, *wrong]) == 1
        assert message in capsys.readouterr().err


LAYERS = [Compute("forward", layer) for layer in range(4)]
BACK = [Compute("backward", layer) for layer in (3, 2, 1, 0)]
PER_ELEMENT = 4 / 0.1e9
"""Seconds between hosts."""


def milliseconds(
    made: Cluster, workers: int, servers: str = "1", design: str = "servers", **layer: float
) -> float:
    net = sketch()
    seconds = {
        (way, number): layer.get(way, 0.0) for number in range(4) for way in ("forward", "backward")
    }
    hosts = made.server_hosts(servers, workers)
    simulation = Simulation(net, seconds, made, workers, Selection(), servers=hosts)
    return simulation.predict(design, replace(DESIGNS[design], bucket=0)).ms


def served(config: ParallelConfig, servers: int) -> tuple[list[Any], Run]:
    hosts = [2 + server for server in range(servers)]
    simulation = Simulation(sketch(), seconds(0.0), cluster(), 2, Selection(), servers=hosts)
    return simulation.prepare(config)


def test_workers_push_and_pull_as_in_training() -> None:
    assert served(ParallelConfig(bucket=0), 1)[0] == [
        LAYERS[0], Pull(1), LAYERS[1], Pull(0), *LAYERS[2:],
        *BACK[:2], Push(0), BACK[2], Push(1), BACK[3],
    ]  # fmt: skip


def test_buckets_are_divided_as_in_training() -> None:
    pieces = served(ParallelConfig(bucket=0), 2)[1].pieces
    assert pieces == {0: ((0, SECOND),), 1: ((1, FIRST),)}
    with pytest.raises(UserError, match="--servers 2: this net's weights suffice for only 1"):
        served(ParallelConfig("blocking"), 2)


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


def test_the_command_with_servers(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(ROOT / "models/caffenet/solver.prototxt"), str(ROOT / "clusters/dgx-h100.toml")]
    code = main([
        "predict", "--solver", files[0], "--cluster", files[1], "--ranks", "1,4",
        "--servers", "2/host", "--designs", "all-reduce,servers,servers behind",
        "--iterations", "2", "--set", "stragglers.sigma=0", "--set", "device.efficiency=0.2",
    ])  # fmt: skip
    assert code == 0
    out = capsys.readouterr().out
    assert "stragglers.sigma=0, device.efficiency=0.2" in out  # what was assumed can be seen
    rows = [line.split() for line in out.splitlines()]
    assert [row[1] for row in rows if row[0] == "4"] == ["all-reduce", "servers", "servers"]
    common = ["predict", "--solver", files[0], "--cluster", files[1], "--ranks", "2"]
    for wrong, message in (
        (["--designs", "servers"], "--designs servers: needs --servers K, or K/host"),
        (["--servers", "two"], "--servers two: give K, or K/host"),
        (["--set", "sigma"], "--set sigma: give a field"),
        (["--set", "device.speed=2"], "there is no device.speed"),
    ):
        assert main([*common, *wrong]) == 1
        assert message in capsys.readouterr().err


def test_an_update_that_needs_all_gradients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It can't be divided among ranks, and waits for the last gradient."""
    source = (ROOT / "models/caffenet/solver.prototxt").read_text()
    net = ROOT / "models/caffenet/train_val.prototxt"
    found = {}
    for clip in "", "clip_gradients: 1":
        solver = tmp_path / "solver.prototxt"
        solver.write_text(re.sub(r"(?m)^net: .*$", f'net: "{net}"', source) + clip)
        common = ["predict", "--solver", str(solver), "--ranks", "4", "--iterations", "1"]
        common += ["--cluster", str(ROOT / "clusters/edr-k80.toml")]
        common += ["--set", "stragglers.sigma=0"]
        assert main(common) == 0
        out = capsys.readouterr().out
        assert ("sharded can't be trained: the update needs sums" in out) == bool(clip)
        rows = [line.split() for line in out.splitlines()]
        found[clip] = {row[1]: float(row[2]) for row in rows if row[0] == "4"}
    bare, clipped = found.values()
    assert clipped.keys() == bare.keys() - {"sharded"}
    assert "sharded" in bare
    assert clipped["all-reduce"] > bare["all-reduce"]


def test_servers_behind_backward_hide_nothing() -> None:
    """A push and a pull of all weights, whatever computes."""
    way = 1 + (FIRST + SECOND) * PER_ELEMENT * 1e3
    beside, behind = (
        milliseconds(cluster(), 1, design=design, backward=0.1)
        for design in ("servers", "servers behind")
    )
    assert beside == pytest.approx(400)
    assert behind == pytest.approx(400 + 2 * way)


def test_servers_beside_workers_spare_the_network() -> None:
    """Half of what each of two workers pushes stays on its host."""
    made = cluster()
    assert made.server_hosts("2", 3) == [3, 4]
    assert cluster(2).server_hosts("2/host", 4) == [0, 0, 1, 1]
    apart, beside = (milliseconds(made, 2, text) for text in ("2", "1/host"))
    # The larger layer goes between hosts once each way, not twice.
    assert beside == pytest.approx(2 + 2 * FIRST * PER_ELEMENT * 1e3)
    assert apart - beside > FIRST * PER_ELEMENT * 1e3


def test_messages_to_servers_share_a_port() -> None:
    """All workers have their weights when the last one has: none goes ahead meanwhile."""
    made = cluster()
    run = Simulation(sketch(), seconds(0.0), made, 3, Selection(), servers=[3]).prepare(
        DESIGNS["servers behind"]
    )[1]
    run._push(0, ((0, FIRST + SECOND),))
    run._pull(np.inf)
    whole = (FIRST + SECOND) * PER_ELEMENT
    assert run._pulled[0].max() == pytest.approx(2e-3 + 6 * whole)
    assert run._pulled[0].min() > 2e-3 + 5.7 * whole


def test_gradients_of_16_bits_take_half_of_the_bytes() -> None:
    simulations = [
        Simulation(sketch(), seconds(0.0), cluster(), 2, Selection(), narrow=narrow)
        for narrow in (False, True)
    ]
    config = ParallelConfig("blocking", "none")
    whole, half = (each.predict("all-reduce behind", config).ms - 1 for each in simulations)
    assert whole == pytest.approx(4 * (FIRST + SECOND) / 0.1e9 * 1e3)
    assert half == pytest.approx(whole / 2)


def test_horovod_sends_buffers_behind_backward() -> None:
    config = ParallelConfig("buckets", "none", bucket=4096)
    kinds = [type(each) for each in written(sketch(), config, 2)]
    assert kinds.count(Send) == 2
    assert kinds.index(Send) > max(n for n, kind in enumerate(kinds) if kind is Compute)
    assert kinds.index(Send) + 1 < kinds.index(Wait)


def test_a_call_costs_what_the_ports_are_busy() -> None:
    made = cluster()
    costly = replace(made, network=replace(made.network, call_us=500))
    plan = waves([[([(1, 0), (1, 0)], [], 0)], [([], [(0, 0), (0, 0)], 0)]])
    took = [Network(each, 2).run(plan, np.zeros(2)).max() * 1e3 for each in (made, costly)]
    assert took == pytest.approx([1, 2])


def test_small_batches_take_more_for_an_image() -> None:
    device = Device(half_batch=8, images_per_second={"large": 100.0, "of 8": [50.0, 8]})
    assert device.seconds("large", 24) == pytest.approx(32 / 100)
    assert device.seconds("of 8", 8) == pytest.approx(8 / 50)
    assert device.seconds("of 8", 24) == pytest.approx(32 / 100)
    assert device.seconds("other", 1) is None
    rows = [(layer.label, 1.0, 2.0) for layer in sketch().layers]
    found = Times("", rows, 8, {}, half_batch=8).of(sketch())  # of 4 images
    assert found["backward", 0] == pytest.approx(2e-3 * (4 + 8) / (8 + 8))
    with pytest.raises(UserError, match=r'images_per_second."x" must be a rate, or \[a rate'):
        Device(images_per_second={"x": [1.0]})


def test_readers_limit_the_ranks() -> None:
    """Each of four images, from readers of 100 a second, of which two count."""
    made = replace(cluster(), reading=Reading(100.0, readers=2))
    slow, fast = simulate("all-reduce", made, 4, 0.0), simulate("all-reduce", made, 2, 0.02)
    assert slow.images == pytest.approx(200)
    assert fast.ms == pytest.approx(160)  # 8 layers of 20 ms: reading takes 40


def test_compression_takes_what_it_sends() -> None:
    """The largest tenth of each bucket, with indices, by a ring of two; or two digits each."""
    buckets = (SECOND, FIRST)
    for config, elements in (
        (ParallelConfig(compression="topk:0.1"), [2 * math.ceil(0.1 * each) for each in buckets]),
        (ParallelConfig(reproducible=True), [2 * each + 1 for each in buckets]),
    ):
        simulation = Simulation(sketch(), seconds(0.0), cluster(), 2, Selection("ring"))
        found = simulation.predict("", replace(config, bucket=0)).ms
        messages = 1 if config.compression != "none" else 3  # a ring's all-reduce has two rounds
        least = len(buckets) * messages + sum(elements) * PER_ELEMENT * 1e3
        assert found == pytest.approx(least, rel=1e-3)
        slow = Simulation(sketch(), seconds(0.0), cluster(memory_gb_s=1), 2, Selection("ring"))
        assert slow.predict("", replace(config, bucket=0)).ms > found + 1


def test_local_steps_send_now_and_then() -> None:
    way = 1 + 4 * (FIRST + SECOND) / 0.1e9 * 1e3
    simulation = Simulation(sketch(), seconds(0.01), cluster(), 2, Selection())
    every, fourth = (
        simulation.predict("", ParallelConfig(local_steps=steps)).ms for steps in (1, 4)
    )
    assert every == pytest.approx(80 + way)
    assert fourth == pytest.approx(80 + way / 4)


def test_a_prediction_does_not_depend_on_what_else_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With strong scaling, batches of the same sizes are measured for any numbers of ranks."""
    (tmp_path / "net.prototxt").write_text(NET)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed"')
    files = ["--solver", str(solver), "--cluster", str(ROOT / "clusters/edr-k80.toml")]
    measured: list[list[int]] = []

    def measure(net: Any, count: int) -> list[Any]:
        measured[-1].append(net.blobs["x"].shape[0])
        cost = SimpleNamespace(milliseconds=1.0 + net.blobs["x"].shape[0])
        return [
            SimpleNamespace(name=layer.label, type=layer.type, forward=cost, backward=cost)
            for layer in net.layers
        ]

    monkeypatch.setattr("osucaffe.study.predict.measure", measure)
    rows = []
    for ranks in ("2", "2,4"):
        measured.append([])
        more = ["--ranks", ranks, "--scal", "strong", "--measure", "1", "--compression", "sign"]
        assert main(["predict", *files, *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows.append([line for line in lines if line.startswith("      2 ")])
    assert measured[0] == measured[1] == [4, 1]
    assert rows[0] == rows[1]
    assert [row.split()[1] for row in rows[0]][-1] == "sign"
