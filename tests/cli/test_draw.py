"""`osucaffe draw`: the picture, its options, bad ones."""

from __future__ import annotations

import pytest


def test_a_picture_is_written(cli):
    pytest.importorskip("pydot")
    net = cli.write_net()
    done = cli("draw", net, "net.dot", "--rankdir", "TB", "--phase", "TRAIN", "-display-lrm")
    assert (done.code, done.out) == (0, "wrote net.dot\n"), done.err
    text = (cli.folder / "net.dot").read_text()
    assert "rankdir=TB" in text
    assert "Accuracy" not in text
    assert cli("draw", net, "net.dot").code == 0
    assert "Accuracy" in (cli.folder / "net.dot").read_text()


def test_bad_input(cli):
    assert "none.prototxt" in cli("draw", "none.prototxt", "net.png").err
    assert cli("draw", cli.write_net(), "net.png", "--rankdir", "XX").code == 2
