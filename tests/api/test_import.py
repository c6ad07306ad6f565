"""`import osucaffe` loads and changes nothing; each public name is there when it is used."""

from __future__ import annotations

import json

import pytest

import osucaffe as oc
from osucaffe.layers import base
from tests.processes import python

SCRIPT = """if True:
    import importlib.util, json, logging, signal, sys
    before, path, on_ctrl_c = set(sys.modules), [*sys.path], signal.getsignal(2)
    import osucaffe
    loaded = sorted(set(sys.modules) - before)
    dir(osucaffe)
    missing = [name for name in osucaffe.__all__ if getattr(osucaffe, name) is None]
    print(json.dumps({
        "loaded": loaded,
        "path": sys.path == path,
        "handlers": len(logging.getLogger("osucaffe").handlers),
        "cupy": "cupy" in sys.modules,
        "signals": signal.getsignal(2) is on_ctrl_c,
        "names": missing,
        "caffe": importlib.util.find_spec("caffe").origin.rpartition("osucaffe/")[2],
    }))
"""


def test_nothing_happens_at_import() -> None:
    done = python("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {
        "loaded": ["osucaffe"],
        "path": True,
        "handlers": 0,
        "cupy": False,
        "signals": True,
        "names": [],
        "caffe": "as_caffe/caffe.py",  # for Python layers that import it
    }


def test_type_checkers_know_each_public_name() -> None:
    assert {*oc._PLACES, "__version__"} == set(oc.__all__)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nett'"):
        oc.Nett  # noqa: B018


def test_a_cell_that_registers_a_layer_may_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "registered", {})
    cell = "@oc.layers.register('Mine')\nclass Mine(oc.layers.Layer): pass"
    for _ in range(2):
        exec(cell, {"oc": oc, "__name__": "__main__"})
    with pytest.raises(ValueError, match="registered twice"):
        exec(cell, {"oc": oc, "__name__": "other"})
