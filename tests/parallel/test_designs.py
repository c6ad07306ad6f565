"""`osucaffe tune --designs`: each design trains, and what is told to use is what was fastest."""

from __future__ import annotations

from pathlib import Path

import pytest

from osucaffe.cli import _parser
from osucaffe.cli.launch import ranks
from osucaffe.parallel.tuning import designs, render_designs
from tests.comm.ranks import mpiexec, needs_mpi

from .equivalence import NET, make_data


@pytest.mark.parametrize("count", [2, 3, 8])
def test_flags_ask_train_for_what_was_measured(count: int) -> None:
    parser = _parser("train")
    found = list(designs(count))
    assert len({each.name for each in found}) == len(found)
    assert all(each.servers < count for each in found)
    for design in found:
        args = parser.parse_args(["train", "--solver", "s", *design.flags.split()])
        given = ranks._comm_config(args)
        assert (given.kind, given.algorithm) == (design.comm.kind, design.comm.algorithm)
        assert args.servers == design.servers
        # Left out on CPUs, "auto" means none.
        assert args.propagation.replace("auto", "none") == design.parallel.propagation
        assert args.aggregation == design.parallel.aggregation
        assert int(args.bucket_mb * 2**20) == design.parallel.bucket


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
    source = make_data(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET.format(source=source, batch=6))
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 9 snapshot_prefix: "run" '
        "test_iter: 2 test_interval: 1 display: 1 snapshot: 1"
    )
    tune = ["-m", "osucaffe", "tune", "--designs", "solver.prototxt", "--seconds", "0"]
    done = mpiexec(2, *tune, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "use: " in done.stdout
    for design in designs(2):
        assert done.stdout.count(f"\n{design.name} ") >= 3
    assert not list(tmp_path.glob("run*"))
