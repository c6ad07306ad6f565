"""A steady training iteration: nothing of array size is allocated while it runs."""

import tracemalloc

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers import Solver

NET = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 32 dim: 3 dim: 32 dim: 32 } shape { dim: 32 }
  data_filler { type: "constant" value: 0.5 } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool"
        pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "narrow" type: "Convolution" bottom: "pool" top: "narrow"
        convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "cat" type: "Concat" bottom: "pool" bottom: "narrow" top: "cat" }
layer { name: "average" type: "Pooling" bottom: "cat" top: "average"
        pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "average" top: "ip1"
        inner_product_param { num_output: 1000 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("onednn", [True, False], ids=["onednn", "numpy"])
@pytest.mark.parametrize("solver_type", ["SGD", "Adam"])
def test_nothing_is_allocated(onednn, solver_type):
    solver = Solver(
        parse_text(
            f'net_param {{ {NET} }} type: "{solver_type}" base_lr: 0.001 lr_policy: "fixed" '
            f"momentum: 0.9 momentum2: 0.999 weight_decay: 0.001 iter_size: 2 clip_gradients: 10 "
            f"random_seed: 1 max_iter: 100 snapshot_after_train: false",
            SolverParameter,
            "solver",
        ),
        Cpu(onednn=onednn, threads=2),
        file="solver",
    )
    solver.step(3)
    before = solver.net.backend.read(solver.net.parameters[0].blob.data)
    tracemalloc.start()
    try:
        solver.step(1)  # whatever is made once, when tracing is on
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        solver.step(2)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Blobs have 128 KB and more, but for the scores. What comes and goes: argument tuples, views,
    # and the buffers of NumPy's iterators, of 8,192 elements however large the arrays are.
    # What stays: what Python keeps on its free lists
    assert peak - start < 64_000
    assert now - start < 16_000
    after = solver.net.backend.read(solver.net.parameters[0].blob.data)
    assert not np.array_equal(before, after)
