"""A rank that a Python layer ends with os._exit ends all, which is no success."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.comm.ranks import mpiexec, needs_mpi

LAYER = """
import os
import caffe

class Leaves(caffe.Layer):
    def setup(self, bottom, top):
        self.calls = 0
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        self.calls += 1
        child = os.fork()
        if not child:
            os._exit(0)  # which ends nothing but the child
        os.waitpid(child, 0)
        if self.calls == 3 and os.environ.get("PMI_RANK", os.environ.get("PMIX_RANK")) == "1":
            os._exit({status})
        top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff
"""
SOLVER = (
    'base_lr: 0.1 lr_policy: "fixed" max_iter: 9 snapshot_after_train: false net_param {'
    'layer { type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } } }'
    'layer { type: "Scale" bottom: "x" top: "y" scale_param { axis: 0 } }'
    'layer { type: "Python" bottom: "y" top: "z" loss_weight: 1'
    ' python_param { module: "leaves" layer: "Leaves" } } }'
)


@needs_mpi
@pytest.mark.parametrize("status", [0, 7])
def test_all_ranks_end_and_which_one_left_is_said(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaves.py").write_text(LAYER.format(status=status))
    (tmp_path / "s.prototxt").write_text(SOLVER)
    path = filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    solver = str(tmp_path / "s.prototxt")
    done = mpiexec(2, "-m", "osucaffe", "train", "--solver", solver, timeout=60)
    assert done.returncode != 0, done.stderr
    assert "rank 1 of 2" in done.stderr
    assert f"it was left by os._exit({status}), while the others go on" in done.stderr
