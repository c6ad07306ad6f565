"""Each field of SolverParameter, changed alone, changes what a run does or says, or is refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from osucaffe.errors import UserError
from osucaffe.proto import SolverParameter
from osucaffe.proto.unread_fields import UNREAD
from osucaffe.solvers import Observer

from .runs import NET, REGRESSION, parameters, solver

TESTED = "test_iter: 1 test_interval: 2"
SAVED = 'snapshot: 2 snapshot_prefix: "FOLDER/s"'
NAMED = 'net: "FOLDER/net"'
PLATEAU = 'lr_policy: "plateau" gamma: 0.5 plateau_winsize: 1 base_lr: 5 max_iter: 9'
OTHER = 'layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "y" top: "%s" }'
DETECTED = f'{TESTED} eval_type: "classification"'

ROWS: dict[str, tuple[str, str]] = {
    # what is changed: the settings, and what is given instead or besides
    "net": (NAMED, 'net: "FOLDER/other"'),
    "net_param": (NAMED, "net_param { }"),
    "train_net": ('train_net: "FOLDER/net"', 'train_net: "FOLDER/other"'),
    "train_net_param": (NAMED, "train_net_param { }"),
    "test_net": (f'{NAMED} {TESTED} test_net: "FOLDER/net"', 'test_net: "FOLDER/other"'),
    "test_net_param": (f"{NAMED} {TESTED}", "test_net_param { }"),
    "train_state": ('net: "FOLDER/staged"', 'train_state { stage: "s" }'),
    "test_state": (f'net: "FOLDER/staged" {TESTED}', 'test_state { stage: "s" }'),
    "test_iter": (TESTED, "test_iter: 2"),
    "test_interval": (TESTED, "test_interval: 4"),
    "test_offset": (TESTED, "test_offset: 1"),
    "test_compute_loss": (TESTED, "test_compute_loss: true"),
    "test_initialization": (TESTED, "test_initialization: false"),
    "base_lr": ("", "base_lr: 0.5"),
    "display": ("", "display: 1"),
    "average_loss": ("display: 1", "average_loss: 3"),
    "max_iter": ("", "max_iter: 5"),
    "iter_size": ("", "iter_size: 2"),
    "lr_policy": ("gamma: 0.5", 'lr_policy: "exp"'),
    "gamma": ('lr_policy: "exp" gamma: 0.5', "gamma: 0.4"),
    "power": ('lr_policy: "poly" power: 2', "power: 1"),
    "momentum": ("", "momentum: 0.9"),
    "weight_decay": ("", "weight_decay: 0.1"),
    "regularization_type": ("weight_decay: 0.1", 'regularization_type: "L1"'),
    "stepsize": ('lr_policy: "step" gamma: 0.5 stepsize: 2', "stepsize: 3"),
    "stepvalue": ('lr_policy: "multistep" gamma: 0.5 stepvalue: 1', "stepvalue: 3"),
    "clip_gradients": ("", "clip_gradients: 0.01"),
    "snapshot": (SAVED, "snapshot: 3"),
    "snapshot_prefix": (SAVED, 'snapshot_prefix: "FOLDER/t"'),
    "snapshot_diff": (SAVED, "snapshot_diff: true"),
    "snapshot_format": (SAVED, "snapshot_format: HDF5"),
    "random_seed": ("", "random_seed: 8"),
    "type": ("", 'type: "AdaGrad"'),
    "delta": ('type: "AdaGrad"', "delta: 0.1"),
    "momentum2": ('type: "Adam"', "momentum2: 0.5"),
    "rms_decay": ('type: "RMSProp"', "rms_decay: 0.5"),
    "debug_info": ("display: 1", "debug_info: true"),
    "snapshot_after_train": (SAVED.replace("2", "3"), "snapshot_after_train: true"),
    "weights": ("", 'weights: "FOLDER/weights"'),
    "eval_type": (DETECTED, 'eval_type: "detection"'),
    "ap_version": (DETECTED, 'ap_version: "other"'),
    "plateau_winsize": (PLATEAU, "plateau_winsize: 3"),
    "min_lr": ('lr_policy: "exp" gamma: 0.5', "min_lr: 0.04"),
    "rampup_interval": ("", "rampup_interval: 3"),
    "rampup_lr": ("rampup_interval: 3", "rampup_lr: 0.04"),
    "larc": ("", "larc: true"),
    "larc_policy": ("larc: true", 'larc_policy: "clip"'),
    "larc_eta": ("larc: true", "larc_eta: 0.1"),
    "warmup_iter": ("", "warmup_iter: 3"),
    "warmup_start_lr": ("warmup_iter: 3", "warmup_start_lr: 0.04"),
    "local_lr_auto": ("", "local_lr_auto: true"),
    "local_gw_ratio": ("local_lr_auto: true", "local_gw_ratio: 0.1"),
    "stagelr": ('lr_policy: "multifixed" stageiter: [2, 9] stagelr: [0.1, 0.2]', "stagelr: 0.3"),
    "stageiter": ('lr_policy: "multifixed" stageiter: [2, 9] stagelr: [0.1, 0.2]', "stageiter: 9"),
}

QUICK = {"eval_type", "momentum", "snapshot_format", "test_interval"}
"""Some of several kinds: the others are left to `make test-long`."""

EXCEPTIONS = {
    "solver_type": "whoever reads a solver's file makes it a type (proto/test_upgrade.py)",
    "solver_mode": "train --gpu says where a run goes",
    "device_id": "train --gpu says where a run goes",
    "layer_wise_reduce": "train --aggregation says when gradients are exchanged",
    "show_per_class_result": "the log always shows the precision of each class",
    "richness": "train's own display counts classes",
    "solver_data_type": "train --precision says it",
    "store_blobs_in_old_format": "how a file is written, which all Caffes read",
    "per_parameter_reduce": "train --aggregation says when gradients are exchanged",
}
"""Fields that may change nothing, and why."""


class Notes(Observer):
    """All that a run reports, but for its speed."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_display(self, event: Any) -> None:
        self.events.append(dataclasses.replace(event, speed=0, seconds=0))

    def on_test(self, event: Any) -> None:
        self.events.append(event)


def done(settings: str, folder: Path, caplog: pytest.LogCaptureFixture) -> tuple[Any, ...]:
    """What a run of four iterations leaves: parameters, reports, files, and lines of its log."""
    folder.mkdir()
    other = REGRESSION.replace("0.05", "0.1") + OTHER % "more"
    staged = REGRESSION + (OTHER % "more").replace("type", 'include { stage: "s" } type', 1)
    for name, text in (("net", REGRESSION), ("other", other), ("staged", staged)):
        (folder / name).write_text(text)
    settings, notes = settings.replace("FOLDER", str(folder)), Notes()
    caplog.clear()
    with caplog.at_level("INFO", "osucaffe"):
        settings = settings if "max_iter" in settings else f"max_iter: 4 {settings}"
        run = solver(settings, "" if "net" in settings else NET, observers=[notes])
        run.solve()
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    lines = [
        re.sub(r"\d+(\.\d+)?( s|/s| iter)|" + str(folder), "", each) for each in caplog.messages
    ]
    values = {name: value.tobytes() for name, value in parameters(run).items()}
    return values, notes.events, files, lines


def merged(settings: str, change: str) -> str:
    """The settings with a field changed: given instead, where they have it."""
    field = change.partition(":")[0]
    return re.sub(rf'\b{field}: ("[^"]*"|\[[^]]*\]|[^ ]+) ?', "", settings) + " " + change


@pytest.mark.parametrize(
    "field",
    [pytest.param(each, marks=[] if each in QUICK else pytest.mark.long) for each in ROWS],
)
def test_no_field_is_dropped_without_a_word(
    field: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, change = ROWS[field]
    assert re.split("[: ]", change)[0] == field
    before = done(settings, tmp_path / "a", caplog)
    told = ""
    try:
        acts = done(merged(settings, change), tmp_path / "b", caplog) != before
    except UserError as error:
        acts, told = False, str(error)
    assert acts or field.removesuffix("_param") in told


def test_every_field_is_there() -> None:
    unread = {name.split(".")[1] for name in UNREAD if name.startswith("SolverParameter.")}
    fields = set(SolverParameter.DESCRIPTOR.fields_by_name)
    assert fields == set(ROWS) | set(EXCEPTIONS) | unread
    assert len(fields) == len(ROWS) + len(EXCEPTIONS) + len(unread)
