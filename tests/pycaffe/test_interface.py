"""The package as scripts find it: its names, `import caffe`, the log, the timer."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import osucaffe.pycaffe as caffe

SCRIPT = """
    import osucaffe.pycaffe
    osucaffe.pycaffe.install()
    import caffe
    import caffe.io, caffe.draw
    from caffe import layers as L, params as P
    from caffe.proto import caffe_pb2
    from caffe.coord_map import crop
    import caffe.proto.caffe_pb2 as again
    assert caffe is osucaffe.pycaffe
    assert again is caffe_pb2 and caffe_pb2.TEST == caffe.TEST == 1 and caffe.TRAIN == 0
    assert caffe.io is osucaffe.pycaffe.io
    caffe.log("a line")
"""


def run(script, environment=None):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_import_caffe_finds_this_package(root, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(root))
    done = run(SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "] a line" in done.stderr
    monkeypatch.setenv("GLOG_minloglevel", "2")
    assert "a line" not in run(SCRIPT).stderr


@pytest.mark.parametrize("name", ["Data", "Convolution", "InnerProduct", "Python"])
def test_layer_types(name):
    assert name in caffe.layer_type_list()


def test_one_process_is_all():
    assert (caffe.solver_count(), caffe.solver_rank(), caffe.has_nccl()) == (1, 0, False)


def test_the_timer_runs():
    timer = caffe.Timer()
    timer.start()
    sum(range(1000))
    timer.stop()
    assert 0 < timer.ms < 1000
