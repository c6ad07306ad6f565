"""What is tuned: --bucket_mb auto (which sizes are tried, which is chosen, and that training is the
same) and `osucaffe tune --designs` (each design trains, and what is told to use is what was
fastest).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.cli.launch import ranks
from osucaffe.comm.job.topology import Location, Topology
from osucaffe.errors import UserError
from osucaffe.parallel import tuning
from osucaffe.parallel.config import TUNED, ParallelConfig
from osucaffe.parallel.tuning import (
    candidates,
    choose_size,
    describe_sizes,
)
from osucaffe.proto import read_net
from osucaffe.study.sketch import Sketch
from tests.comm.ranks import all_say, needs_mpi
from tests.study.designs.test_designs import options

from .test_exchange import build

MB = 1 << 20


def test_sizes_that_cut_alike_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build("", "", "")  # parameters of 448 bytes
    monkeypatch.setattr(tuning, "SIZES", (16, 64, 500, 5000))
    assert list(candidates(net, ParallelConfig())) == [16, 500, 5000]
    assert list(candidates(net, ParallelConfig("blocking", "overlapped"))) == [16, 500, 5000]
    # Nothing travels beside anything.
    assert list(candidates(net, ParallelConfig("blocking", "blocking"))) == []
    resnet: Any = Sketch(read_net("models/resnet50/train_val.prototxt"))
    monkeypatch.undo()
    sizes = [MB // 4, MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB]  # the last one is the whole net
    assert list(candidates(resnet, ParallelConfig())) == sizes


def test_the_fastest_is_chosen_and_of_equals_the_default() -> None:
    assert choose_size({MB: 2.0, 4 * MB: 1.0, 16 * MB: 1.5}, 16 * MB) == 4 * MB
    assert choose_size({MB: 1.0, 4 * MB: 1.01, 16 * MB: 1.019}, 16 * MB) == 16 * MB
    assert choose_size({MB: 1.0, 4 * MB: 1.01, 16 * MB: 1.03}, 16 * MB) == 4 * MB
    assert choose_size({MB: 1.0}, 0) == MB
    told = describe_sizes({16: 0.002, 500: 0.001, 5000: 0.003}, 500, build("", "", ""))
    assert "chose 0.000476837 MB (--bucket_mb 0.000476837 begins with it)" in told
    assert "all at once 3.000" in told


def test_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert ParallelConfig().bucket == options().parallel.bucket == 16 * MB
    assert options("--bucket_mb", "auto").parallel.bucket == TUNED
    assert options("--bucket_mb", "0.5").parallel.bucket == MB // 2
    with pytest.raises(SystemExit):
        options("--bucket_mb", "best")
    assert "--bucket_mb: invalid number value: 'best'" in capsys.readouterr().err
    job: Any = SimpleNamespace(size=2)
    args = options("--bucket_mb", "auto", "--comm_profile", "x.json")
    with pytest.raises(
        UserError, match="auto cannot be combined with --comm_profile: give a number"
    ):
        ranks.make_process_group(args, job, Topology(Location(0, 0, "here", 1)))


@needs_mpi
def test_training_is_the_same(tmp_path: Path) -> None:
    told = all_say("tuned alike", 2, "tests.parallel.tuning", str(tmp_path))
    assert told.count("--bucket_mb auto: chose") == 3
