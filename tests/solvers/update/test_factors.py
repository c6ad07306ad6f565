"""The update from the factors of gradients: beside that from gradients, and where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.solvers import Solver
from osucaffe.solvers.observer import Observer
from osucaffe.solvers.update.factors import from_factors

from ..runs import TYPES, assert_same, parameters, solver


def layer(name: str, bottom: str, outputs: int, more: str = "") -> str:
    return f"""layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" {more}
      inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }} }}"""


DATA = """
layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 8 dim: 16 dim: 8 dim: 8 } shape { dim: 8 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
"""
RATES = "param { lr_mult: 2 decay_mult: 0.5 } param { lr_mult: 3 decay_mult: 0 }"
LOSS = """
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""
NET = f"""{DATA} {layer("wide", "x", 1040)}
layer {{ name: "relu" type: "ReLU" bottom: "wide" top: "wide" }}
{layer("odd", "wide", 1030, RATES)} {layer("score", "odd", 10)} {LOSS}"""
"""Two layers with large weights; the outputs of the second do not fill blocks."""
SGD = "momentum: 0.9 weight_decay: 0.01"
LARGE = ["wide", "odd"]


class Reader(Observer):
    reads_gradients = True


def factored(run: Solver) -> list[str]:
    """The layers whose gradients the next step does not write."""
    instead, _ = from_factors(run.net, run.optimizer)
    return [call.layer for call in instead][::-1]


def lost(run: Solver) -> list[str]:
    """The parameters whose gradients cannot be read."""
    found = [p for p in run.net.parameters if np.isnan(run.backend.read(p.blob.diff)).any()]
    return [f"{each.layer}:{each.index}" for each in found]


def pair(settings: str, net: str = NET) -> tuple[Solver, Solver]:
    """A run after some steps, and one that has kept its gradients."""
    runs = solver(settings, net), solver(settings, net, observers=[Reader()])
    for run in runs:
        run.step(4)
    assert not lost(runs[1])
    return runs


def assert_close(run: Solver, other: Solver) -> None:
    values, expected = parameters(run), parameters(other)
    for name, value in values.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    for value, wanted in zip(
        run.optimizer.read_history(), other.optimizer.read_history(), strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-6)


@pytest.fixture(autouse=True)
def blocks() -> None:
    """Skip where oneDNN does not lay out weights in blocks."""
    if factored(solver(SGD, NET)) != LARGE:
        pytest.skip("no update from factors on this machine")


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "weight_decay: 0.01",
        "momentum: 0.9",
        SGD,
        f'{SGD} lr_policy: "step" gamma: 0.5 stepsize: 1',
    ],
)
def test_weights_and_history_are_those_of_an_update_from_gradients(settings: str) -> None:
    run, other = pair(settings)
    assert lost(run) == ["wide:0", "odd:0"]
    assert_close(run, other)


@pytest.mark.parametrize(
    "settings",
    [
        *(f'type: "{kind}" {TYPES[kind]}' for kind in TYPES if kind != "SGD"),
        f'{SGD} regularization_type: "L1"',
        f"{SGD} clip_gradients: 1",
        f"{SGD} iter_size: 2",
        f"{SGD} snapshot_diff: true",
        f"{SGD} debug_info: true display: 1",
    ],
)
def test_what_needs_gradients_keeps_them(settings: str) -> None:
    run, other = pair(settings)
    assert not lost(run)
    assert_same(run, other)


def test_an_inspectable_net_keeps_its_gradients() -> None:
    run = solver(SGD, NET, inspectable=True)
    run.step(2)
    assert not lost(run)


SHARED = f"""{DATA}
{layer("a", "x", 1024, 'param { name: "w" } param { name: "b" }')}
{layer("b", "x", 1024, 'param { name: "w" } param { name: "b" }')}
layer {{ name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }}
{layer("score", "sum", 10)} {LOSS}"""


@pytest.mark.parametrize(
    "net",
    [
        SHARED,
        NET.replace("num_output: 1040", "num_output: 1040 transpose: true").replace("1030", "64"),
        NET.replace("1040", "64").replace("1030", "64"),
        NET.replace(RATES, "param { lr_mult: 0 }").replace("1040", "1000"),
        NET.replace("dim: 8 ", "dim: 64 ", 1).replace("shape { dim: 8 }", "shape { dim: 64 }"),
    ],
    ids=["shared", "transposed", "small", "fixed", "large batch"],
)
def test_other_weights_have_gradients(net: str) -> None:
    run, other = pair(SGD, net)
    assert not lost(run)
    assert_same(run, other)


def test_gradients_of_a_pass_by_hand_are_lost_again() -> None:
    """They would be those of another pass."""
    run = solver(SGD, NET)
    run.step(1)
    run.net.forward()
    run.net.backward()
    assert not lost(run)
    run.step(1)
    assert lost(run) == ["wide:0", "odd:0"]


def test_an_update_from_gradients_may_follow() -> None:
    """What the marks leave in the padding of blocks does no harm."""
    run, other = pair(SGD)
    for each in run, other:
        each.observers.append(Reader())
        each._steps.clear()
        each.step(2)
    assert not lost(run)
    assert_close(run, other)


def test_a_resumed_run_goes_on_as_it_would_have(tmp_path: Path) -> None:
    settings = f'{SGD} snapshot: 2 snapshot_prefix: "{tmp_path}/s" max_iter: 4'
    whole, part = solver(settings, NET), solver(settings, NET)
    whole.step(2)
    path: Any = tmp_path / "s_iter_2.solverstate"
    part.restore(path)
    whole.step(2)
    part.step(2)
    assert lost(part)
    assert_same(part, whole)


def test_it_is_the_backends_to_say_what_is_fast() -> None:
    run = solver(SGD, NET)
    for backend in Cpu(onednn=False), Cpu("float64"):
        other = Solver(run.param, backend)
        other.step(1)
        assert not lost(other)
