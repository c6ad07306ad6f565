"""A rank's own options leave those that were given alone."""

from __future__ import annotations

import argparse

import pytest

from osucaffe.cli import ranks
from osucaffe.comm.job import Job


def test_a_rank_alone_takes_the_first_of_all_gpus() -> None:
    given = argparse.Namespace(gpu="all", threads=None)
    own, topology = ranks.place(given, Job())
    assert (own.gpu, given.gpu) == ("0", "all")
    assert topology.own.rank == 0
    own, _ = ranks.place(argparse.Namespace(gpu=None, threads=3), Job())
    assert vars(own) == {"gpu": None, "threads": 3}


@pytest.mark.parametrize(("scheduler", "device"), [("", "lo"), ("SLURM_JOB_ID", None)])
def test_ranks_of_one_machine_listen_on_the_loopback(
    scheduler: str, device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {scheduler: "1"} if scheduler else {}
    monkeypatch.setattr(ranks.os, "environ", environment)
    ranks._stay_on_loopback()
    assert environment.get("UCX_NET_DEVICES") == device
