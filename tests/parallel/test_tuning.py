"""What is tuned: --bucket_mb auto (which sizes are tried, which is chosen, and that training is the
same) and `osucaffe tune --designs` (each design trains, and what is told to use is what was
fastest).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.cli.launch import ranks
from osucaffe.comm.job.topology import Location, Topology
from osucaffe.errors import UserError
from osucaffe.parallel import tuning
from osucaffe.parallel.config import TUNED, ParallelConfig
from osucaffe.parallel.tuning import (
    candidates,
    choose_size,
    describe_sizes,
    designs,
    render_designs,
)
from osucaffe.proto import read_net
from osucaffe.study.sketch import Sketch
from tests.comm.ranks import all_say, mpiexec, needs_mpi

from .program import write_run
from .test_designs import options
from .test_exchange import build

MB = 1 << 20


def test_sizes_that_cut_alike_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build("", "", "")  # parameters of 448 bytes
    monkeypatch.setattr(tuning, "SIZES", (16, 64, 500, 5000))
    assert list(candidates(net, ParallelConfig())) == [16, 500, 5000]
    assert list(candidates(net, ParallelConfig("blocking", "overlapped"))) == [16, 500, 5000]
    # Nothing travels beside anything.
    assert list(candidates(net, ParallelConfig("blocking", "blocking"))) == []
    resnet: Any = Sketch(read_net("models/resnet50/train_val.prototxt"))
    monkeypatch.undo()
    sizes = [MB // 4, MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB]  # the last one is the whole net
    assert list(candidates(resnet, ParallelConfig())) == sizes


def test_the_fastest_is_chosen_and_of_equals_the_default() -> None:
    assert choose_size({MB: 2.0, 4 * MB: 1.0, 16 * MB: 1.5}, 16 * MB) == 4 * MB
    assert choose_size({MB: 1.0, 4 * MB: 1.01, 16 * MB: 1.019}, 16 * MB) == 16 * MB
    assert choose_size({MB: 1.0, 4 * MB: 1.01, 16 * MB: 1.03}, 16 * MB) == 4 * MB
    assert choose_size({MB: 1.0}, 0) == MB
    told = describe_sizes({16: 0.002, 500: 0.001, 5000: 0.003}, 500, build("", "", ""))
    assert "chose 0.000476837 MB (--bucket_mb 0.000476837 begins with it)" in told
    assert "all at once 3.000" in told


def test_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert ParallelConfig().bucket == options().parallel.bucket == 16 * MB
    assert options("--bucket_mb", "auto").parallel.bucket == TUNED
    assert options("--bucket_mb", "0.5").parallel.bucket == MB // 2
    with pytest.raises(SystemExit):
        options("--bucket_mb", "best")
    assert "--bucket_mb: invalid number value: 'best'" in capsys.readouterr().err
    job: Any = SimpleNamespace(size=2)
    args = options("--bucket_mb", "auto", "--comm_profile", "x.json")
    with pytest.raises(
        UserError, match="auto cannot be combined with --comm_profile: give a number"
    ):
        ranks.make_process_group(args, job, Topology(Location(0, 0, "here", 1)))


@needs_mpi
def test_training_is_the_same(tmp_path: Path) -> None:
    told = all_say("tuned alike", 2, "tests.parallel.tuning", str(tmp_path))
    assert told.count("--bucket_mb auto: chose") == 3


@pytest.mark.parametrize("count", [2, 3, 8])
def test_flags_ask_train_for_what_was_measured(count: int) -> None:
    found = list(designs(count))
    assert len({each.name for each in found}) == len(found)
    assert all(each.servers < count for each in found)
    for design in found:
        given = options(*design.flags.split())
        assert given.comm == design.comm
        assert given.servers.servers == design.servers
        propagation = given.parallel.propagation.replace("auto", "none")  # which it means on CPUs
        assert replace(given.parallel, propagation=propagation) == design.parallel


def test_the_fastest_is_told_and_what_is_about_as_fast() -> None:
    ring, second, third, *_ = list(designs(4))[1:]
    told = render_designs([(ring, 10.0), (second, 9.6), (third, 5.0)])
    assert "use: ring: osucaffe train --algorithm ring" in told
    assert f"as fast, within 5%: {second.name}" in told
    assert third.name not in told.splitlines()[-1]
    assert f"100% faster than {third.name}, the second" in render_designs(
        [(ring, 10.0), (third, 5.0)]
    )


@needs_mpi
def test_all_are_tried_on_a_net_that_is_tested_too(tmp_path: Path) -> None:
    solver = (
        'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 9 snapshot_prefix: "run" '
        "test_iter: 2 test_interval: 1 display: 1 snapshot: 1"
    )
    write_run(tmp_path, solver, 6)
    tune = ["-m", "osucaffe", "tune", "--designs", "solver.prototxt", "--seconds", "0"]
    done = mpiexec(2, *tune, "--out", "designs.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "use: " in done.stdout
    assert (tmp_path / "designs.png").stat().st_size > 5_000
    for design in designs(2):
        assert done.stdout.count(f"\n{design.name} ") >= 3
    assert not list(tmp_path.glob("run*"))
