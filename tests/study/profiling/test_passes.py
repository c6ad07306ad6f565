"""`train --comm_profile`: what notes add up to, and what a real run of several ranks notes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.cli.options import Device
from osucaffe.cli.train.options import Train
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import Job
from osucaffe.comm.job.topology import discover
from osucaffe.errors import UserError
from osucaffe.parallel import data_parallel
from osucaffe.parallel.config import ParallelConfig, ServerConfig
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers import Solver
from osucaffe.study.profiling import views as comm_profile
from osucaffe.study.profiling.passes import (
    PUSH,
    WARM_UP,
    Gradient,
    Pass,
    Profiled,
    Records,
    lanes,
    size_bucket,
    summarize,
)
from osucaffe.study.profiling.recorder import Clock, Message, Posted, Profile
from tests.comm.ranks import mpiexec, needs_mpi
from tests.parallel.program import saved, train, write_run
from tests.study.profiling.test_recorder import Silent

SOLVER = """
net: "net.prototxt" base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" display: 0 max_iter: 7
random_seed: 1 snapshot_prefix: "{prefix}"
"""


def records(rank: int, late: float, offset: float) -> Records:
    """A pass of 10 s: an all-reduce from 5 to 8, begun `late`, is waited for from 6.5 on."""

    def at(seconds: float) -> float:
        return seconds + offset

    message = Message("all_reduce", "ring", "node", 1 << 20, at(5 + late), at(8))
    operation = Posted(
        "all_reduce", 1 << 20, 4096, at(4.5), at(5 + late), at(8), [(at(6.5), at(8))], [message]
    )
    whole = Pass(True, at(0), at(1), at(3), at(6.25), at(10), {2: at(4.25)})
    gradients = [Gradient(2, "fc", 1000, 4096, 5096), Gradient(1, "unsent", 8, 0, 8)]
    return Records(rank, "host", [whole], [operation], gradients, offset)


def test_what_notes_add_up_to() -> None:
    found = summarize([records(0, 0.0, 0.0), records(1, 1.0, 70.0)])
    assert (found["ranks"], found["iterations"], found["wall_ms"]) == (2, 1, 10e3)
    parts = {"data": 1, "forward": 2, "backward": 3.25, "update": 2.25, "waiting": 1.5}
    expected = {name: 1e3 * seconds for name, seconds in parts.items()}
    assert found["parts_ms"] == pytest.approx(expected | {"between": 0.0})
    [row] = found["operations"]
    key = [row[name] for name in ("operation", "algorithm", "level", "size")]
    assert key == ["all_reduce", "ring", "node", "128 KB - 1 MB"]
    assert (row["calls"], row["bytes"]) == (1, 1 << 20)
    # Rank 0 needs 3 s, of which it waits 1.5, and the first is for rank 1; rank 1 needs 2.
    times = [row[name] for name in ("ms", "hidden_ms", "exposed_ms", "slowest_ms")]
    assert times == pytest.approx([2.5e3, 1e3, 1.5e3, 0.5e3])
    sent, unsent = found["layers"]
    assert (sent.pop("name"), sent.pop("bytes")) == ("fc", 1000)
    assert sent == pytest.approx(
        {"ready_ms": 1250, "sent_ms": 2e3, "arrived_ms": 5e3, "needed_ms": 3.5e3, "waited_ms": 1500}
    )
    assert unsent["waited_ms"] == 0


def test_sizes() -> None:
    sizes = [4, 4096, 4097, 1 << 20, 16 << 20, 65 << 20]
    assert [size_bucket(each) for each in sizes] == [
        "0 - 4 KB", "0 - 4 KB", "4 KB - 128 KB", "128 KB - 1 MB", "1 MB - 16 MB", "> 64 MB",
    ]  # fmt: skip


class Ticks(Clock):
    """Each look at it is one second after the one before."""

    def __init__(self) -> None:
        self._now = 0

    def mark(self, stream: Any = None) -> int:
        self._now += 1
        return self._now


LAYERS = """
layer { name: "x" type: "DummyData" top: "x" top: "y"
  dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 3 } } }
layer { name: "one" type: "InnerProduct" bottom: "x" top: "one" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "two" type: "InnerProduct" bottom: "one" top: "two" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "two" bottom: "y" top: "loss" }
"""


@pytest.mark.parametrize("propagation", ["none", "overlapped"])
@pytest.mark.parametrize("iter_size", [1, 2])
def test_parts_and_iterations_are_by_one_clock(
    monkeypatch: pytest.MonkeyPatch, propagation: str, iter_size: int
) -> None:
    """The parts of all iterations are the time from the begin of the first to the end of the last,
    as who makes the iterations sees it, but for its own looks at the clock."""
    clock, iterations, reports = Ticks(), 5, list[list[Records]]()
    monkeypatch.setattr(Profile, "make_clock", lambda profile, comm: clock)
    monkeypatch.setattr(data_parallel, "make_communicator", lambda *_, **__: Silent(2, "node"))
    config = ParallelConfig(propagation=propagation, bucket=0)
    job = Job()
    group = Profiled(reports.append, job, discover(job), CommConfig(), config)
    param = parse_text(
        f'base_lr: 0.1 lr_policy: "fixed" iter_size: {iter_size} net_param {{ {LAYERS} }}',
        SolverParameter,
    )
    solver = Solver(param, Cpu(threads=1, onednn=False), group=group)
    solver.step(WARM_UP)
    begun = clock.mark()
    for _ in range(iterations):
        solver.step(1)
    ended = clock.mark()
    solver.close()
    [[rank]] = reports
    found = summarize([rank])
    assert found["iterations"] == iterations
    seen = ended - begun - 2  # from the mark behind the one look to that before the other
    parts = {name: ms * iterations / 1e3 for name, ms in found["parts_ms"].items()}
    assert sum(parts.values()) == pytest.approx(seen) == found["wall_ms"] * iterations / 1e3
    passes = iterations * iter_size
    assert parts["between"] == pytest.approx(passes - 1)  # from an end to the next begin
    # Each wait is two looks, one second apart; nothing else happens while a rank waits.
    waits = [end - begin for each in rank.counted for begin, end in each.waits]
    assert parts["waiting"] == pytest.approx(sum(waits))
    sent = iterations * (4 if propagation == "none" else 8)  # four parameters, and their weights
    assert len(rank.counted) == sent


def test_options_are_left_as_they_were(tmp_path: Path) -> None:
    job: Any = SimpleNamespace(size=2, rank=1)
    options = Train(solver="s", comm_profile=str(tmp_path / "x.json"))
    for gpu, without in ((None, False), ("0", True)):
        assert comm_profile.prepare(options, Device(gpu=gpu), job).no_graph == without
    served = replace(options, servers=ServerConfig(servers=1))
    with pytest.raises(UserError, match="leave out --gpu, or --servers"):
        comm_profile.prepare(served, Device(gpu="0"), job)


@needs_mpi
def test_a_run(tmp_path: Path) -> None:
    design = ["--propagation", "overlapped", "--bucket_mb", "0"]
    for prefix, more in (("plain", []), ("noted", ["--comm_profile", "out.json"])):
        write_run(tmp_path, SOLVER.format(prefix=prefix))
        log = train(tmp_path, 2, "--ranks", "2", *design, *more)
        assert ("Communication of 4 iterations on 2 ranks" in log) == (prefix == "noted")
    assert saved(tmp_path / "plain_iter_7.caffemodel") == saved(
        tmp_path / "noted_iter_7.caffemodel"
    )
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert sum(found["parts_ms"].values()) == pytest.approx(found["wall_ms"], rel=0.02)
    rows, calls = found["operations"], Counter[str]()
    for row in rows:
        calls[row["operation"]] += row["calls"]
        assert row["level"] == "node"
        assert row["ms"] == pytest.approx(row["hidden_ms"] + row["exposed_ms"])
    assert calls == {"reduce": 8, "broadcast": 10}  # two of these are frozen
    exposed = sum(row["exposed_ms"] for row in rows)
    assert exposed <= found["parts_ms"]["waiting"] * 1.001
    assert len(found["layers"]) == 4  # of five with weights, one is frozen, two share theirs
    for layer in found["layers"]:
        assert layer["ready_ms"] <= layer["sent_ms"] <= layer["arrived_ms"]
    events = json.loads((tmp_path / "out.trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert (tmp_path / "out.png").stat().st_size > 10_000


@needs_mpi
def test_one_rank_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, SOLVER.format(prefix="alone"))
    # Not forked: mpiexec passes on another exit code of a fork that aborts.
    start = "from osucaffe.cli import main; main()"
    command = ["-c", start, "train", "--solver", "solver.prototxt"]
    done = mpiexec(1, *command, "--comm_profile", "out.json", cwd=tmp_path)
    assert done.returncode == 1
    assert "--comm_profile: one rank sends nothing: give --ranks, too" in done.stderr


@needs_mpi
@pytest.mark.parametrize("channel", ["mpi", "adaptive"])
def test_a_run_with_servers(tmp_path: Path, channel: str) -> None:
    """Each of two workers pushes and pulls each bucket once an iteration; all that it waits for is
    for what is recorded; weights are those without a profile."""
    design = ["--ranks", "3", "--servers", "1", "--bucket_mb", "0", "--channel", channel]
    for prefix, more in (("plain", []), ("noted", ["--comm_profile", "out.json"])):
        write_run(tmp_path, SOLVER.format(prefix=prefix))
        train(tmp_path, 3, *design, *more)
    assert saved(tmp_path / "plain_iter_7.caffemodel") == saved(
        tmp_path / "noted_iter_7.caffemodel"
    )
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert (found["ranks"], found["iterations"]) == (2, 4)
    assert found["low_ms"] <= found["median_ms"] <= found["high_ms"]
    assert sum(found["parts_ms"].values()) == pytest.approx(found["wall_ms"], rel=0.02)
    calls, nbytes = Counter[str](), Counter[str]()
    for row in found["operations"]:
        assert (row["algorithm"], row["level"]) == (channel, "node")
        assert row["ms"] == pytest.approx(row["hidden_ms"] + row["exposed_ms"])
        calls[row["operation"]] += row["calls"]
        nbytes[row["operation"]] += row["bytes"]
    assert calls["push"] == calls["pull"] >= 4
    assert nbytes["push"] == nbytes["pull"] > 0
    assert found["parts_ms"]["waiting"] > 0
    assert len(found["layers"]) == 4
    for layer in found["layers"]:
        assert layer["ready_ms"] <= layer["sent_ms"] <= layer["arrived_ms"]


def test_waits_for_what_was_pushed_before_count() -> None:
    """Weights of the pass before the first that counts are waited for in it, and not its own."""
    pushed = Message("push", "mpi", "node", 8, -2.0, -1.0)
    before = Posted(PUSH, 8, 0, -2.0, -2.0, 2.0, [(1.0, 2.0)], [pushed])
    within = Posted(PUSH, 8, 0, 4.0, 4.0, 7.0, [(6.5, 7.0)], [pushed._replace(begun=4, ended=6)])
    one = Pass(True, 0.0, 0.5, 3.0, 5.0, 6.0, {})
    found = summarize([Records(0, "host", [one], [before, within], [])])
    assert found["parts_ms"]["waiting"] == pytest.approx(1e3)
    assert [row["calls"] for row in found["operations"]] == [1]


def test_messages_that_overlap_have_lanes() -> None:
    spans = [(0, 3), (1, 2), (2, 5), (3, 4), (6, 7)]
    messages = [Message("push", "", "", 1, *span) for span in spans]
    assert [(lane, m.begun) for lane, m in lanes(reversed(messages))] == [
        (0, 0), (1, 1), (1, 2), (0, 3), (0, 6),
    ]  # fmt: skip
