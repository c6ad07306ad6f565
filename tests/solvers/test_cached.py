"""Training on records that stay where the net runs is training on records that are read, bit for
bit, and nothing is sent while a steady iteration runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osucaffe.backends.uploads import Uploads
from osucaffe.data.config import DataConfig
from osucaffe.data.resident import cache
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver

from .runs import DEFAULTS, Unclean, assert_same
from .snapshots.test_resume import LMDB_NET

RULE = (
    'lr_policy: "inv" gamma: 0.01 power: 0.75 momentum: 0.9 weight_decay: 0.001 max_iter: 2000 '
    "test_iter: 5 test_interval: 40 "
)


def make(backend: Any, folder: Path, kept: str, shuffle: int = 0, **more: Any) -> Any:
    param = parse_text(DEFAULTS, SolverParameter)
    param.MergeFrom(parse_text(RULE + f'snapshot_prefix: "{folder}/{kept}"', SolverParameter))
    param.net_param.CopyFrom(parse_text(LMDB_NET, NetParameter))
    config = DataConfig(cache=kept, shuffle=shuffle)
    return Solver(param, backend, file="solver.prototxt", data_config=config, **more)


def compare(make_backend: Any, folder: Path, shuffle: int, iterations: int) -> None:
    """Train with records that are read, that stay, and that stay until training is broken off."""
    straight = make(make_backend(), folder, "none", shuffle)
    straight.step(iterations)
    kept = make(make_backend(), folder, "device", shuffle)
    broken = iterations // 3
    kept.step(broken)
    state = kept.snapshot().state
    kept.step(iterations - broken)
    assert_same(kept, straight)
    for where in "device", "none":
        resumed = make(make_backend(), folder, where, shuffle, resume=state)
        resumed.step(iterations - broken)
        assert_same(resumed, straight)


@pytest.mark.parametrize("shuffle", [0, 16])
def test_the_same_bits(shuffle: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_AHEAD", 9)
    monkeypatch.setattr(cache, "_RECORDS_OF_A_PIECE", 50)
    compare(lambda: Unclean(threads=1), tmp_path, shuffle, 75)


@pytest.mark.gpu
@pytest.mark.parametrize("shuffle", [0, 16])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_bits_on_a_gpu(precision: str, shuffle: int, tmp_path: Path) -> None:
    from osucaffe.backends.cuda import Cuda

    compare(lambda: Cuda(precision=precision), tmp_path, shuffle, 1000)


def test_steady_iterations_send_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(Unclean(threads=1), tmp_path, "device")
    run.param.test_interval = 0
    run.step(60)  # two epochs
    sent, send = [], Uploads.send

    def count(self: Uploads, *given: Any, **more: Any) -> Any:
        sent.append(given)
        return send(self, *given, **more)

    monkeypatch.setattr(Uploads, "send", count)
    run.step(100)
    assert not sent
    run.step(150)
    assert len(sent) == 4  # two tables and their cursors: of batches and of learning rates
