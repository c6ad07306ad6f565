"""A command that a Python layer leaves has failed, whatever exit code the layer gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from osucaffe.cli.early_exit import Ended, report_early_exit

from .conftest import ROOT, Cli

LAYER = """
import os
import sys
import caffe

class Leaves(caffe.Layer):
    def setup(self, bottom, top):
        pass
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        child = os.fork()
        if not child:
            os._exit(0)  # which ends nothing but the child
        os.waitpid(child, 0)
        {call}
"""
NET = """
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } } }
layer { name: "leaves" type: "Python" bottom: "x" top: "z"
  python_param { module: "leaves" layer: "Leaves" } }
"""


@pytest.mark.parametrize("call", ["sys.exit(0)", "os._exit(0)"])
def test_a_layer_that_leaves_is_named(call: str, cli: Cli) -> None:
    cli.write("leaves.py", LAYER.replace("{call}", call))
    cli.write("n.prototxt", NET)
    path = os.pathsep.join([str(cli.folder), str(ROOT)])
    done = cli.fails("time", "--model=n.prototxt", "--iterations=1", PYTHONPATH=path)
    last = done.err.splitlines()[-1]
    assert last == f"osucaffe: left by {call} at leaves.py:16, before its end"


@pytest.mark.parametrize(("given", "code"), [(0, 1), (None, 1), (7, 7), (256, 1), ("why", 1)])
def test_an_exit_code_is_never_that_of_success(
    given: object, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised, report_early_exit():
        raise SystemExit(given)
    assert raised.value.code == code
    name = Path(__file__).name
    assert f"osucaffe: left by sys.exit({given!r}) at {name}:" in capsys.readouterr().err


def test_a_command_may_end_itself(capsys: pytest.CaptureFixture[str]) -> None:
    leave = os._exit
    with pytest.raises(Ended) as raised, report_early_exit():
        raise Ended(0)
    assert raised.value.code == 0
    assert os._exit is leave
    assert not capsys.readouterr().err
