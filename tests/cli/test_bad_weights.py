"""Tests that weights and snapshots that cannot be read are named before any net is built."""

from __future__ import annotations

import pytest

from .conftest import Cli
from .test_bad_input import TRAIN, Spoil, message, trained

BUILT = "Memory for blobs and scratch"
"""What the log says of a net that was built."""


def corrupt_snapshot(cli: Cli) -> tuple[str, ...]:
    trained(cli)
    file = cli.folder / "run_iter_10.solverstate"
    file.write_bytes(file.read_bytes()[:-1000])
    return (*TRAIN, "--max_iter=20", "--snapshot=run_iter_10.solverstate")


def snapshot_without_its_model(cli: Cli) -> tuple[str, ...]:
    trained(cli)
    (cli.folder / "run_iter_10.caffemodel").unlink()
    return (*TRAIN, "--max_iter=20", "--snapshot=run_iter_10.solverstate")


def snapshot_that_is_not_there(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, "--snapshot=run_iter_10.solverstate")


def truncated_weights(cli: Cli) -> tuple[str, ...]:
    trained(cli)
    file = cli.folder / "run_iter_10.caffemodel"
    file.write_bytes(file.read_bytes()[:-1000])
    return (*TRAIN, "--weights=run_iter_10.caffemodel")


def truncated_hdf5_weights(cli: Cli) -> tuple[str, ...]:
    file = cli.fixtures / "formats" / "h5lenet_iter_200.caffemodel.h5"
    (cli.folder / "half.caffemodel.h5").write_bytes(file.read_bytes()[:100_000])
    return (*TRAIN, "--weights=half.caffemodel.h5")


def missing_weights(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, "--weights=none.caffemodel")


def missing_weights_of_the_solver(cli: Cli) -> None:
    cli.write_solver('weights: "none.caffemodel"')


def truncated_weights_to_test(cli: Cli) -> tuple[str, ...]:
    *_, weights = truncated_weights(cli)
    return ("test", "--model=net.prototxt", weights)


def truncated_weights_to_time(cli: Cli) -> tuple[str, ...]:
    *_, weights = truncated_weights(cli)
    return ("time", "--model=net.prototxt", weights)


def prototxt_as_weights(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, "--weights=net.prototxt")


CASES: list[tuple[Spoil, list[str]]] = [
    (corrupt_snapshot, ["run_iter_10.solverstate"]),
    (snapshot_without_its_model, ["run_iter_10.caffemodel"]),
    (snapshot_that_is_not_there, ["run_iter_10.solverstate"]),
    (truncated_weights, ["run_iter_10.caffemodel"]),
    (truncated_hdf5_weights, ["half.caffemodel.h5"]),
    (missing_weights, ["none.caffemodel"]),
    (missing_weights_of_the_solver, ["none.caffemodel"]),
    (truncated_weights_to_test, ["run_iter_10.caffemodel"]),
    (truncated_weights_to_time, ["run_iter_10.caffemodel"]),
    (prototxt_as_weights, ["net.prototxt"]),
]


@pytest.mark.parametrize(("spoil", "words"), CASES, ids=[case[0].__name__ for case in CASES])
def test_files_are_read_before_nets_are_built(cli: Cli, spoil: Spoil, words: list[str]) -> None:
    cli.write_net()
    cli.write_solver()
    result = cli(*(spoil(cli) or TRAIN))
    said = message(result)
    assert [word for word in words if word not in said] == [], said
    assert BUILT not in result.err


def test_the_log_tells_of_a_net_that_was_built(cli: Cli) -> None:
    cli.write_net()
    assert BUILT in cli("time", "--model=net.prototxt", "--iterations=1").err
