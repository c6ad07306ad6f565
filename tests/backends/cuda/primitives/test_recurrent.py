"""Every candidate to run a cell over time gives the same, not only the fastest one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.autotune.tuner import Tuner
from osucaffe.backends.cuda.call import Pending
from osucaffe.net import Net
from osucaffe.proto import NetParameter, parse_text
from tests.backends.cases_recurrent import SAMPLES, sample
from tests.backends.running import run_call

from ..convolution.layers import TOLERANCES, close
from ..simulated import simulate, with_libraries


class Forced:
    """Lets the candidate of this number win (0: with a library); `found`: how many there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.found = 0
        chosen = Tuner.fastest

        def fastest(tuner: Tuner, ctx: Any, providers: Any) -> Any:
            if not ctx.call.name.startswith("recurrent"):
                return chosen(tuner, ctx, providers)
            candidates = [*providers[0].candidates()]
            self.found = len(candidates)
            return candidates[number % len(candidates)]

        monkeypatch.setattr(Tuner, "fastest", fastest)
        monkeypatch.setattr(Tuner, "begin", lambda tuner, *given: Pending(tuner.fastest, *given))


def run(name: str, backend: Any, flexible: bool) -> dict[str, Any]:
    """The outputs and gradients of a sample."""
    forward, backward = sample(*SAMPLES[name])
    found = run_call(backend, *forward, flexible=flexible)
    del found["gates"]  # what it keeps is its own business
    return found | run_call(backend, *backward, flexible=flexible, first=forward)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("name", ["LSTM", "LSTM of many items", "RNN"])
def test_all_candidates_compile(
    name: str, precision: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch)
    forced = Forced(monkeypatch, number)
    run(name, with_libraries(Cuda(precision=precision)), flexible=True)
    assert forced.found == 1 if precision == "fp32" else forced.found > 2


@pytest.mark.gpu
@pytest.mark.parametrize("flexible", [False, True], ids=["row-major", "free"])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("name", SAMPLES)
def test_all_candidates_agree(
    name: str, precision: str, number: int, flexible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = Forced(monkeypatch, number)
    found = run(name, Cuda(precision=precision), flexible)
    if number >= max(1, forced.found):
        pytest.skip("there are not so many")
    wanted = run(name, Cpu("float64"), flexible)
    for argument in wanted:
        close(found[argument], wanted[argument], TOLERANCES[precision])


NET = """
force_backward: true
layer { name: "input" type: "Input" top: "x" top: "cont" top: "target" input_param {
  shape { dim: 6 dim: 19 dim: 16 } shape { dim: 6 dim: 19 } shape { dim: 6 dim: 19 dim: 24 } } }
layer { name: "first" type: "LSTM" bottom: "x" bottom: "cont" top: "middle" recurrent_param {
  num_output: 32 weight_filler { type: "uniform" min: -0.3 max: 0.3 } } }
layer { name: "second" type: "RNN" bottom: "middle" bottom: "cont" top: "h" recurrent_param {
  num_output: 24 weight_filler { type: "uniform" min: -0.3 max: 0.3 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "h" bottom: "target" top: "loss" }
"""


def iterate(backend: Any) -> dict[str, Any]:
    """Losses of three iterations, in which states are carried on, and the last gradients."""
    net = Net(parse_text(NET, NetParameter), phase="TRAIN", backend=backend, seed=1)
    generator = np.random.default_rng(0)
    for name in ("x", "target"):
        net.write(name, generator.standard_normal(net.blobs[name].shape, np.float32))
    net.write("cont", generator.random((6, 19)) > 0.2)
    step, losses = net.as_step(), []
    for _ in range(3):
        step()
        losses.append(net.loss())
    gradients = {each.name: backend.read(each.blob.diff) for each in net.parameters}
    return {"losses": np.array(losses)} | gradients


@pytest.mark.gpu
@pytest.mark.parametrize("precision", TOLERANCES)
def test_nets_replay_it(precision: str) -> None:
    """As one CUDA graph from the second iteration on."""
    found, wanted = iterate(Cuda(precision=precision)), iterate(Cpu("float64"))
    assert wanted["losses"][0] != wanted["losses"][1]
    for name in wanted:
        close(found[name], wanted[name], 2 * TOLERANCES[precision])
