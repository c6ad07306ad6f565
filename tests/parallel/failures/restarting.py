"""A run of two ranks for test_restarts.py: a Python layer kills its own process when it is told."""

from __future__ import annotations

from pathlib import Path

from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum

LAYER = """
import os, signal, time
from pathlib import Path
import caffe

FOLDER = Path(__file__).parent

class Dies(caffe.Layer):
    def setup(self, bottom, top):
        self.calls = 0
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        self.calls += 1
        rank = os.environ.get("PMI_RANK", os.environ.get("PMIX_RANK", "0"))
        order = FOLDER / f"die-{rank}-{self.calls}"
        if order.exists():
            awaited = FOLDER / order.read_text()
            order.unlink()
            while not awaited.exists():  # what another thread writes meanwhile
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff
"""
SOLVER = """
base_lr: 0.05 lr_policy: "step" gamma: 0.9 stepsize: 3 momentum: 0.9 random_seed: 3 display: 1
max_iter: ITERATIONS snapshot: 4 snapshot_prefix: "run" net_param {
  layer { name: "data" type: "Data" top: "x" top: "label"
    data_param { source: "lmdb" batch_size: 2 } transform_param { scale: 0.01 mirror: true } }
  layer { name: "dies" type: "Python" bottom: "x" top: "y"
    python_param { module: "dies" layer: "Dies" } }
  layer { name: "ip" type: "InnerProduct" bottom: "y" top: "z"
    inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "z" bottom: "label" top: "loss" } }
"""


def prepare(folder: Path, iterations: int) -> None:
    """The files of a run."""
    folder.mkdir()
    (folder / "dies.py").write_text(LAYER)
    (folder / "s.prototxt").write_text(SOLVER.replace("ITERATIONS", str(iterations)))
    import numpy as np

    pixels = np.random.default_rng(1).integers(0, 255, (11, 1, 3, 4)).astype(np.uint8)
    records = [(record_key(i), make_datum(image, i % 3)) for i, image in enumerate(pixels)]
    write_database(folder / "lmdb", records)
