"""Weights that are not those of the net: every command that takes some tells, or refuses."""

from __future__ import annotations

import re

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.net import Net
from osucaffe.proto import read_net, write_weights

from .conftest import Cli

COMMANDS = {
    "train": ("train", "--solver=solver.prototxt", "--weights=w.caffemodel", "--max_iter=1"),
    "test": ("test", "--model=net.prototxt", "--weights=w.caffemodel", "--iterations=1"),
    "time": ("time", "--model=net.prototxt", "--weights=w.caffemodel", "--iterations=1"),
    "extract": ("extract_features", "w.caffemodel", "net.prototxt", "ip", "features", "1"),
}


@pytest.fixture
def ready(cli: Cli) -> Cli:
    """A net, a solver, and w.caffemodel with weights for the net."""
    path = cli.folder / cli.write_net()
    cli.write_solver()
    net = Net(read_net(path), phase="TEST", backend=Cpu(threads=1), seed=3)
    write_weights(cli.folder / "w.caffemodel", net.to_proto())
    return cli


def change(cli: Cli, old: str, new: str) -> None:
    text = (cli.folder / "net.prototxt").read_text()
    assert old in text
    cli.write("net.prototxt", text.replace(old, new))


MORE = """layer {
  name: "more" type: "InnerProduct" bottom: "ip" top: "more"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } }
}
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command(ready: Cli, command: str) -> None:
    arguments = COMMANDS[command]
    whole = ready.ok(*arguments, "--strict")
    assert "w.caffemodel: 1 of 1 layers with weights loaded\n" in whole.err
    change(ready, 'layer {\n  name: "accuracy"', MORE + 'layer {\n  name: "accuracy"')
    some = ready.ok(*arguments)
    assert re.search(
        r"^W.* 1 of 2 layers with weights loaded; not in the file: more$", some.err, re.M
    )
    strict = ready.fails(*arguments, "--strict")
    assert strict.err.endswith("not loaded: more: give files that match, or leave out --strict\n")
    change(ready, 'name: "ip"', 'name: "fc"')
    none = ready.fails(*arguments)
    assert "w.caffemodel: nothing to load: it has ip, but the layers of this net are" in none.err
    assert "Traceback" not in none.err


@pytest.mark.parametrize("command", ["test", "extract"])
def test_another_preprocessing_than_in_training_is_told(ready: Cli, command: str) -> None:
    assert "results will differ" not in ready(*COMMANDS[command]).err
    change(ready, "scale: 0.00390625", "mean_value: 7")
    done = ready.ok(*COMMANDS[command])
    (line,) = (line for line in done.err.splitlines() if "results will differ" in line)
    assert line.startswith("W")
    assert line.endswith(
        'net.prototxt, layer "data" (Data): images are preprocessed with the mean 7, scale 1, '
        "but in training with no mean, scale 0.00390625 (w.caffemodel, layer "
        '"data" (Data)): results will differ'
    )
