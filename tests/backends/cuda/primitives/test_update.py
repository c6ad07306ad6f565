"""What an iteration of a solver launches on a GPU, loss scaling included."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.layout import c_struct
from osucaffe.backends.cuda.primitives.solvers import CHUNK
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers import Solver

from ..compiler import compile_kernel, nvrtc
from ..simulated import simulate

SETTINGS = """
base_lr: 0.1 lr_policy: "fixed" clip_gradients: 1 weight_decay: 0.1 random_seed: 1 iter_size: 2
net_param {
  layer { name: "x" type: "Input" top: "x" top: "y"
    input_param { shape { dim: 3 dim: 4 } shape { dim: 3 dim: 4 } } }
  layer { name: "scale" type: "Scale" bottom: "x" top: "scaled" scale_param { bias_term: true } }
  layer { name: "loss" type: "EuclideanLoss" bottom: "scaled" bottom: "y" top: "loss" }
  layer { name: "more" type: "TanH" bottom: "scaled" top: "more" loss_weight: 0.5 }
}
"""


LOCAL = ["", "larc: true", 'larc: true larc_policy: "clip"', "local_lr_auto: true"]


@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("loss_scale", ["dynamic", "none"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_launches_fit_the_kernels(
    kind: str, loss_scale: str, precision: str, local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch)
    param = parse_text(f'type: "{kind}" {SETTINGS} {local}', SolverParameter)
    solver = Solver(param, Cuda(precision=precision, graphs=False), loss_scale=loss_scale)
    solver.step(2)
    assert (solver.loss_scale is None) == (loss_scale == "none")


def test_a_table_lies_as_the_compiler_lays_out_its_struct() -> None:
    if nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    assert CHUNK.fields is not None
    claims = [f"sizeof(Chunk) == {CHUNK.itemsize}"]
    # (NVRTC of CUDA 13 has no __builtin_offsetof.)
    claims += [f"__INTADDR__(&((Chunk*)0)->{k}) == {v[1]}" for k, v in CHUNK.fields.items()]
    text = "typedef long long int64_t;\n" + c_struct("Chunk", CHUNK)
    compile_kernel("PTX", text + f"static_assert({' && '.join(claims)});", ("-std=c++17",))
    with pytest.raises(AssertionError, match="static assertion failed"):
        compile_kernel("PTX", text + "static_assert(sizeof(Chunk) == 20);", ("-std=c++17",))
    with pytest.raises(AssertionError, match="otherwise"):
        c_struct("Padded", np.dtype([("rate", "f4"), ("start", "i8")]))


@pytest.mark.gpu
@pytest.mark.parametrize("local", LOCAL)
def test_scaled_and_plain_training_agree(local: str) -> None:
    values, param = [], parse_text(f"{SETTINGS} {local}", SolverParameter)
    for backend, loss_scale in (Cuda(), "none"), (Cuda(), "1024"), (Cpu(), "none"):
        solver = Solver(param, backend, loss_scale=loss_scale)
        solver.net.write("x", np.arange(12, dtype=np.float32).reshape(3, 4))
        solver.net.write("y", np.ones((3, 4), np.float32))
        solver.step(4)
        values.append(solver.backend.read(solver.net.arena.data))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5)
    np.testing.assert_allclose(values[2], values[0], rtol=1e-5)
