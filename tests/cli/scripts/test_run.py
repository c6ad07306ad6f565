"""`osucaffe run`: a script runs as Python runs it, with osucaffe as its Caffe."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from osucaffe import as_caffe
from tests.processes import ROOT, python

TELLS = """
import atexit, json, os, pickle, subprocess, sys
import beside
class Mine: pass
atexit.register(print, "the end")
main = sys.modules["__main__"]
print(json.dumps([
    __name__, __file__, getattr(__spec__, "name", None), main.__dict__ is globals(),
    sys.argv, sys.path[0], beside.__file__,
    type(pickle.loads(pickle.dumps(Mine()))) is Mine, hasattr(sys.stdout, "buffer"),
]))
"""

USES = """
import os, subprocess, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/caffe/python")
child = "import importlib.util as util; print(util.find_spec('caffe').origin)"
subprocess.run([sys.executable, "-c", child], check=True)
import caffe.io
from caffe.proto import caffe_pb2
assert caffe.__name__ == "osucaffe.pycaffe"
try:
    caffe.Net("none.prototxt", caffe.TEST)
except Exception as error:
    try:
        raise KeyError("mine") from error
    except KeyError:
        sys.excepthook(*sys.exc_info())
caffe.Net("none.prototxt", caffe.TEST)
"""


def run(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "OSUCAFFE_DEBUG": "", **environment}
    return python("-m", "osucaffe", *words, cwd=folder, **environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a script that is a link to one in another folder, as Python resolves them."""
    scripts = tmp_path / "scripts"
    (scripts / "caffe" / "python" / "caffe").mkdir(parents=True)
    (scripts / "caffe" / "python" / "caffe" / "__init__.py").write_text("import _not_compiled")
    (scripts / "beside.py").write_text("")
    (scripts / "tells.py").write_text(TELLS)
    (scripts / "uses.py").write_text(USES)
    (tmp_path / "linked.py").symlink_to("scripts/tells.py")
    return tmp_path


def test_as_python_runs_it(folder: Path) -> None:
    for words in (
        ["linked.py", "-gpu", "0", "--log-dir=a", "--", "run", "-m"],
        ["-m", "scripts.tells", "--quiet", "-h"],
    ):
        environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder / "scripts")])}
        expected = python(*words, cwd=folder, **environment)
        assert expected.returncode == 0, expected.stderr
        done = run("run", *words, folder=folder, **environment)
        assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, "")


def test_how_it_ends(folder: Path) -> None:
    for ends, code, message in (
        ("sys.exit(7)", 7, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "\nKeyboardInterrupt\n"),
        ("open('none')", 1, "FileNotFoundError: [Errno 2] No such file or directory: 'none'\n"),
    ):
        (folder / "ends.py").write_text(f"import os, signal, sys\n{ends}\n")
        done, expected = run("run", "ends.py", folder=folder), python("ends.py", cwd=folder)
        assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr)
        assert done.returncode == code
        assert done.stderr.endswith(message)
    (folder / "loads.py").write_text("import sys; print('numpy' in sys.modules, len(sys.modules))")
    numpy, count = run("run", "loads.py", folder=folder).stdout.split()
    assert numpy == "False"
    assert int(count) < 170


def test_caffe_is_this_one(folder: Path) -> None:
    """Whatever the script puts on its path; in Pythons that it starts, too. What osucaffe refuses
    is one line, what the script makes of it a traceback of the script's lines."""
    done = run("run", "scripts/uses.py", folder=folder)
    script = folder / "scripts" / "uses.py"
    refused = "none.prototxt: cannot read it: No such file or directory"
    assert (done.returncode, done.stdout) == (1, f"{as_caffe.FOLDER}/caffe.py\n")
    first, second = done.stderr.split("KeyError: 'mine'\n")
    assert first.count('  File "') == first.count(f'  File "{script}"') == 2
    assert f"CaffeError: {refused}\n\nThe above exception was the direct cause" in first
    assert second == f"osucaffe: {script}, line {USES.count(chr(10))}: {refused}\n"


def test_what_it_cannot_run(folder: Path) -> None:
    for words, code, message in (
        (["run", "none.py"], 1, "osucaffe: none.py: no such file\n"),
        (["run"], 2, "osucaffe run: one of the arguments SCRIPT -m is required; see osucaffe run"),
        (["run", "--gpu", "0", "tells.py"], 2, "unrecognized arguments: --gpu"),
    ):
        done = run(*words, folder=folder)
        assert done.returncode == code
        assert message in done.stderr
