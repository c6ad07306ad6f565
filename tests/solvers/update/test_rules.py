"""The update rules against the figures of C++ Caffe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver
from osucaffe.solvers.update.rules import RULES, update_of

from ..runs import TYPES, parameters, solver

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures" / "caffe").glob("solver_*.npz"))


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_training_follows_caffe(path: Path, onednn: bool) -> None:
    figures = np.load(path)
    param = parse_text(str(figures["solver"]), SolverParameter)
    param.net_param.CopyFrom(parse_text(str(figures["prototxt"]), NetParameter))
    run = Solver(param, Cpu(threads=1, onednn=onednn))
    net = run.net
    for key in figures.files:
        kind, _, rest = key.partition(":")
        if kind == "in":
            net.write(rest, figures[key])
        elif kind == "init":
            layer, index = rest.rsplit(":", 1)
            blob = net.layers[net.layer_names.index(layer)].parameters[int(index)]
            run.backend.write(blob.data, figures[key])
    for iteration in range(1, 9):
        run.step(1)
        assert error(np.array(net.loss()), figures[f"loss:{iteration}"]) < 1e-5
        for each in net.parameters:
            key = f"iter{iteration}:{each.layer}:{each.index}"
            if key in figures:
                found = run.backend.read(each.blob.data)
                assert error(found, figures[key]) < 1e-5, key


def test_there_are_fixtures() -> None:
    assert len(FIXTURES) == 6


def test_the_rules_are_those_of_caffe() -> None:
    caffe = ["AdaDelta", "AdaGrad", "Adam", "Nesterov", "RMSProp", "SGD"]
    assert sorted(RULES.keys() - {"LAMB"}) == caffe


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ('type: "Sgd"', "solver type 'Sgd' is not known"),
        ('type: "AdaGrad" momentum: 0.9', "momentum has no meaning"),
        ('type: "RMSProp" momentum: 0.9', "momentum has no meaning"),
        ('type: "RMSProp" rms_decay: 1.5', "rms_decay must lie in"),
        ('regularization_type: "L3" weight_decay: 1', "regularization_type 'L3' is not known"),
        ('type: "Adam" delta: 0', "delta keeps Adam from dividing by zero"),
        ("iter_size: 0", "iter_size must be at least 1"),
        ("clip_gradients: 0", "clip_gradients must not be 0"),
        ("larc: true local_lr_auto: true", "give larc or local_lr_auto, not both"),
        ('larc: true larc_policy: "both"', "larc_policy 'both' is not known; choose one of scale"),
        (
            'local_lr_auto: true weight_decay: 1 regularization_type: "L1"',
            "local_lr_auto goes with regularization_type L2 only",
        ),
        (
            'type: "LAMB" weight_decay: 1 regularization_type: "L1"',
            "LAMB goes with regularization_type L2 only",
        ),
        ('type: "LAMB" larc: true', "LAMB has rates of its own: leave out larc and local_lr_auto"),
    ],
)
def test_contradictions_are_named(settings: str, complaint: str) -> None:
    with pytest.raises(UserError, match=f"s.prototxt: {complaint}"):
        update_of(parse_text(settings, SolverParameter), "s.prototxt")


def rmsprop(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray]) -> np.ndarray:
    """Tieleman & Hinton 2012: divide by a running average of the gradient's magnitude."""
    state["mean"] = 0.9 * state.get("mean", np.zeros_like(w)) + 0.1 * g**2
    return 0.05 * g / (np.sqrt(state["mean"]) + 1e-8)


def adadelta(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray]) -> np.ndarray:
    """Zeiler 2012, algorithm 1, lines 4 to 6."""
    zero = np.zeros_like(w)
    state["g"] = 0.95 * state.get("g", zero) + 0.05 * g**2
    root = [np.sqrt(part + 1e-6) for part in (state.get("step", zero), state["g"])]
    step = root[0] / root[1] * g
    state["step"] = 0.95 * state.get("step", zero) + 0.05 * step**2
    return 0.05 * step


def lamb(w: np.ndarray, g: np.ndarray, state: dict) -> np.ndarray:
    """You et al. 2019, algorithm 2, with beta 0.9 and 0.999 and epsilon 1e-6."""
    step = state["step"] = state.get("step", 0) + 1
    state["m"] = 0.9 * state.get("m", 0 * w) + 0.1 * g
    state["v"] = 0.999 * state.get("v", 0 * w) + 0.001 * g**2
    ratio = state["m"] / (1 - 0.9**step) / (np.sqrt(state["v"] / (1 - 0.999**step)) + 1e-6)
    sizes = np.linalg.norm(w), np.linalg.norm(ratio)
    return 0.05 * (sizes[0] / sizes[1] if min(sizes) > 0 else 1) * ratio


@pytest.mark.parametrize(
    ("kind", "rule"), [("RMSProp", rmsprop), ("AdaDelta", adadelta), ("LAMB", lamb)]
)
def test_rules_without_a_fixture_follow_their_papers(kind: str, rule: Callable) -> None:
    run = solver(f'type: "{kind}" {TYPES[kind]}')
    states: dict[str, dict] = {}
    for _ in range(4):
        before = {name: value.astype(float) for name, value in parameters(run).items()}
        run.step(1)
        after = parameters(run)
        for each in run.net.parameters:
            name = f"{each.layer}:{each.index}"
            gradient = run.backend.read(each.blob.diff).astype(float)
            step = each.lr_mult * rule(before[name], gradient, states.setdefault(name, {}))
            assert error(after[name], before[name] - step) < 1e-5, name
