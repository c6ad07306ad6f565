"""Tests of `osucaffe snapshot verify`."""

from __future__ import annotations

from ..conftest import Cli


def test_verify_tells_which_files_are_good(cli: Cli, fixtures) -> None:
    cli.write_net()
    cli.write_solver("snapshot: 5")
    cli.ok("train", "--solver=solver.prototxt")
    done = cli("snapshot", "verify", "run_iter_5.solverstate", "run_iter_10.caffemodel")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "run_iter_5.solverstate: good: iteration 5, its model run_iter_5.caffemodel\n"
        "run_iter_10.caffemodel: good: weights of 1 layer\n"
    )

    model = cli.folder / "run_iter_5.caffemodel"
    model.write_bytes(model.read_bytes()[:-1])
    done = cli("snapshot", "verify", "run_iter_5.solverstate")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("osucaffe: run_iter_5.caffemodel: damaged or cut short")
    theirs = str(fixtures / "formats" / "h5lenet_iter_200.solverstate.h5")
    done = cli("snapshot", "verify", "none", "run_iter_5.solverstate", theirs)
    assert (done.code, done.err) == (1, "osucaffe: 2 of 3 files are bad\n")
    first, second, third = done.out.splitlines()
    assert first.startswith("none: cannot read it")
    assert second.startswith("run_iter_5.caffemodel: damaged")
    assert f"{theirs}: good as far as one can tell (no checksum): iteration 200" in third
