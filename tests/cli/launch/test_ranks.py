"""A rank's own options leave those that were given alone."""

from __future__ import annotations

from typing import Any

import pytest

from osucaffe.cli.launch import ranks, start
from osucaffe.cli.options import Device, Devices
from osucaffe.cli.train.options import Train
from osucaffe.comm.job.job import Job
from osucaffe.data.config import DataConfig


def test_a_rank_alone_takes_the_first_of_all_gpus() -> None:
    own, topology = ranks.assign_devices(Device(gpu="all"), Job())
    assert own == Device(gpu="0")
    assert topology.local.rank == 0
    assert ranks.assign_devices(Device(threads=3), Job())[0] == Device(threads=3)


class Two(Job):
    size = 2

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


@pytest.mark.parametrize(("given", "own"), [("auto", "host"), ("gpu", "gpu"), ("host", "host")])
def test_cores_decode_beside_an_exchange(
    given: str, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "gpu_numbers", lambda wanted: ["5", "6"])
    monkeypatch.setattr(ranks, "identify", lambda number: (f"id {number}", "a GPU"))
    options = Train(solver="s", device=Devices(gpu="all"), data=DataConfig(decode=given))
    placed, topology = ranks.assign_devices(options.device, Two())
    assert placed.gpu == "5"
    assert ranks.configure_data(options, Two(), topology).decode == own


@pytest.mark.parametrize(("scheduler", "device"), [("", "lo"), ("SLURM_JOB_ID", None)])
def test_ranks_of_one_machine_listen_on_the_loopback(
    scheduler: str, device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {scheduler: "1"} if scheduler else {}
    monkeypatch.setattr(start.os, "environ", environment)
    start._stay_on_loopback()
    assert environment.get("UCX_NET_DEVICES") == device


@pytest.mark.parametrize(
    ("started", "running", "told"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_ranks_that_share_a_gpu_are_told_of_mps(
    started: bool,
    running: bool,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ranks, "identify", lambda number: ("one id", "a GPU"))
    monkeypatch.setattr(ranks.mps, "running", lambda: running)
    monkeypatch.setattr(ranks.ranks_per_gpu, "started", lambda: started)
    monkeypatch.setattr(ranks.logger, "propagate", True)
    ranks.assign_devices(Device(gpu="0"), Two())
    assert ("--ranks_per_gpu N in place of --ranks" in caplog.text) == told
