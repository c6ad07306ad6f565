"""What is told of a net by osucaffe summary and when training starts; its picture by draw."""

from __future__ import annotations

import json
import math
import re
import shutil

import pytest

from osucaffe.cli.nets.draw import rows
from osucaffe.proto import read_net

from ..conftest import DEPLOY, ROOT, Cli

LENET = str(ROOT / "models" / "lenet" / "train_val.prototxt")


def test_lenet(cli: Cli) -> None:
    """The sums are those of LeNet's definition: every weight meets every place once."""
    found = json.loads(cli("summary", LENET, "--shape", "1,28,28", "--json").out)
    rows = {row["name"]: row for row in found["layers"]}
    assert rows["mnist"]["shapes"] == [[64, 1, 28, 28], [64]]
    assert rows["conv1"]["shapes"] == [[64, 20, 24, 24]]
    parameters = {name: row["parameters"] for name, row in rows.items() if row["parameters"]}
    assert parameters == {
        "conv1": 20 * 25 + 20,
        "conv2": 50 * 20 * 25 + 50,
        "ip1": 500 * 800 + 500,
        "ip2": 10 * 500 + 10,
    }
    assert found["parameters"] == sum(parameters.values())
    places = math.prod(rows["conv2"]["shapes"][0])
    assert rows["conv2"]["forward"] == places * (2 * 20 * 25 + 1)
    assert found["memory"]["parameters"] >= 4 * found["parameters"]
    assert not [row for row in found["layers"] if row["type"] == "Split"]


def test_the_table(cli: Cli) -> None:
    cli.write("deploy.prototxt", DEPLOY)
    lines = cli("summary", "deploy.prototxt", "--phase", "test").out.splitlines()
    assert lines[0].split() == ["layer", "type", "output", "parameters", "forward", "backward"]
    assert lines[2].split()[:4] == ["ip", "InnerProduct", "2x10", "7,850"]
    assert lines[4] == "The net, TEST: 2 layers, 7,850 parameters in 1 of them"
    assert "forward" in lines[5]
    assert "backward" not in lines[5]
    assert max(map(len, lines)) <= 80


def test_a_solver_names_its_net(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver()
    assert 'Net "tiny", TRAIN: 3 layers' in cli("summary", "solver.prototxt").out
    assert 'Net "tiny", TRAIN: 3 layers' in cli("summary", "-model", "solver.prototxt").out


def test_data_that_are_not_there(cli: Cli) -> None:
    result = cli.fails("summary", LENET)
    assert "--shape C,H,W: read no data" in result.err
    assert len(result.err.splitlines()) == 1
    assert cli("summary", LENET, "--shape", "1,x").code == 2


def test_maps_of_labels_without_data(cli: Cli) -> None:
    """DeepLab's layer: images, maps of the same size, and how much of them each image fills."""
    layer = """layer { name: "data" type: "ImageSegData" top: "data" top: "label" top: "fills"
      image_data_param { source: "none.txt" batch_size: 3 label_type: PIXEL }
      transform_param { %s } }
      layer { name: "rest" type: "Silence" bottom: "data" bottom: "label" bottom: "fills" }"""
    for crop, height, width in (
        ("", 9, 7),
        ("crop_size: 5", 5, 5),
        ("crop_height: 4 crop_width: 6", 4, 6),
    ):
        cli.write("net.prototxt", layer % crop)
        found = json.loads(cli.ok("summary", "net.prototxt", "--shape", "3,9,7", "--json").out)
        shapes = [[3, 3, height, width], [3, 1, height, width], [3, 1, 1, 2]]
        assert found["layers"][0]["shapes"] == shapes


@pytest.mark.parametrize("iter_size", [1, 2])
def test_training_says_what_it_trains(cli: Cli, iter_size: int) -> None:
    """200 records, 8 in a batch."""
    cli.write_net()
    cli.write_solver(f"iter_size: {iter_size}\ndisplay: 5")
    log = cli("train", "--solver", "solver.prototxt").err
    assert 'Net "tiny", TRAIN: 3 layers, 7,850 parameters in 1 of them' in log
    assert "Operations of a batch:" in log
    assert "Memory: " in log
    assert (
        f'layer "data" (Data): 200 records, {8 * iter_size} per iteration: one epoch is '
        f"{25 / iter_size:g} iterations, max_iter 10 is {10 / 25 * iter_size:g} epochs"
    ) in log
    assert f"    Epoch {5 * 8 * iter_size / 200:g}, {5 * 8 * iter_size} records" in log


def test_a_picture_is_written(cli):
    pytest.importorskip("pydot")
    net = cli.write_net()
    done = cli("draw", net, "net.dot", "--rankdir", "TB", "--phase", "TRAIN", "-display-lrm")
    assert (done.code, done.out) == (0, "wrote net.dot\n"), done.err
    text = (cli.folder / "net.dot").read_text()
    assert "rankdir=TB" in text
    assert "Accuracy" not in text
    cli.ok("draw", net, "net.dot")
    assert "Accuracy" in (cli.folder / "net.dot").read_text()


def test_phases_that_differ_are_drawn_apart(cli):
    pytest.importorskip("pydot")
    cli.ok("draw", cli.write_net(), "net.dot")
    text = (cli.folder / "net.dot").read_text()
    assert text.count("cluster_") == 2
    assert text.count("(InnerProduct)") == 2
    assert text.count("(Accuracy)") == 1
    cli.write("deploy.prototxt", DEPLOY)
    cli.ok("draw", "deploy.prototxt", "deploy.dot")
    assert "cluster_" not in (cli.folder / "deploy.dot").read_text()


def test_deep_nets_are_drawn_in_rows():
    """Every layer once, none ahead of what it takes; what a row takes from before is dashed."""
    net = read_net(ROOT / "models" / "googlenet" / "deploy.prototxt")
    found = rows(net.layer, 16)
    assert len(found) > 3
    assert sorted(layer.name for row in found for layer in row) == sorted(
        layer.name for layer in net.layer
    )
    made = {}
    for index, row in enumerate(found):
        for layer in row:
            assert all(made[blob] <= index for blob in layer.bottom)
            made |= dict.fromkeys(layer.top, index)
    assert len(rows(net.layer, 0)) == 1
    assert len(rows(net.layer[:20], 16)) == 1


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_a_deep_net_is_no_ribbon(cli):
    """In a single row GoogLeNet is 18,859 pixels wide."""
    pytest.importorskip("pydot")
    net = str(ROOT / "models" / "googlenet" / "deploy.prototxt")
    cli.ok("draw", net, "net.svg")
    width, height = re.search(
        r'<svg width="(\d+)pt" height="(\d+)pt"', (cli.folder / "net.svg").read_text()
    ).groups()
    assert int(width) < 5000
    assert int(height) < 5000


def test_bad_input(cli):
    assert "none.prototxt" in cli("draw", "none.prototxt", "net.png").err
    assert cli("draw", cli.write_net(), "net.png", "--rankdir", "XX").code == 2
