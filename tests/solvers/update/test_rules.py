"""The update rules against the figures of C++ Caffe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver
from osucaffe.solvers.update.rules import RULES, update_of

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
            "local_lr_auto requires regularization_type L2",
        ),
        (
            'type: "LAMB" weight_decay: 1 regularization_type: "L1"',
            "LAMB requires regularization_type L2",
        ),
        (
            'type: "LAMB" larc: true',
            "LAMB sets its own learning rates: remove larc and local_lr_auto",
        ),
    ],
)
def test_contradictions_are_named(settings: str, complaint: str) -> None:
    with pytest.raises(UserError, match=f"s.prototxt: {complaint}"):
        update_of(parse_text(settings, SolverParameter), "s.prototxt")
