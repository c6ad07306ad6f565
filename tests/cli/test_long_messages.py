"""Messages that name what there is stay short where there is much."""

from __future__ import annotations

from collections.abc import Callable

import h5py
import pytest

from .conftest import Cli

TRAIN = ("train", "--solver", "solver.prototxt")
WRONG = 'layer { name: "x" type: "ReLU" bottom: "dta" top: "x" }'


def unknown_bottom_in_a_long_net(cli: Cli) -> tuple[str, ...]:
    layers = (
        f'layer {{ name: "{n}" type: "ReLU" bottom: "data" top: "{n}" }}' for n in range(2000)
    )
    (path := cli.folder / "net.prototxt").write_text("\n".join([path.read_text(), *layers, WRONG]))
    return TRAIN


def no_such_data_set_among_many(cli: Cli) -> tuple[str, ...]:
    with h5py.File(cli.folder / "x.h5", "w") as file:
        for number in range(1500):
            file[str(number)] = [1.0]
    cli.write("list.txt", "x.h5\n")
    layer = 'layer { name: "d" type: "HDF5Data" top: "x" hdf5_data_param { source: "list.txt" '
    cli.write("net.prototxt", layer + "batch_size: 1 } }")
    return TRAIN


def many_surplus_arguments(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, *(f"photo{number}.jpg" for number in range(1500)))


@pytest.mark.parametrize(
    ("spoil", "more"),
    [
        (unknown_bottom_in_a_long_net, "1,984 more"),
        (no_such_data_set_among_many, "1,480 more"),
        (many_surplus_arguments, "1,480 more"),
    ],
)
def test_long_lists_are_cut(cli: Cli, spoil: Callable[[Cli], tuple[str, ...]], more: str) -> None:
    cli.write_net()
    cli.write_solver()
    said = cli(*spoil(cli)).err
    assert f" and {more}" in said
    assert len(said) < 2000
