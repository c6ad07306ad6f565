"""`osucaffe draw`: the picture, its options, bad ones."""

from __future__ import annotations

import re
import shutil

import pytest

from osucaffe.cli.nets.draw import rows
from osucaffe.proto import read_net

from ..conftest import DEPLOY, ROOT


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
