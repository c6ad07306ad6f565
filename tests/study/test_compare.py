"""Which design `tune --designs` names: those that it compares are what options of train make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from osucaffe.study.compare import designs, render_designs
from tests.comm.ranks import mpiexec, needs_mpi
from tests.parallel.program import write_run
from tests.study.designs.test_designs import options


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
