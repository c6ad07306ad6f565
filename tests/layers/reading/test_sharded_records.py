"""Tests of records that are divided among ranks: the batches are those of records that are read.

The ranks are threads here, their devices' memory is the process's."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.uploads import Uploads
from osucaffe.data.config import DataConfig
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.resident import cache
from osucaffe.data.streams.source import DatumSource
from osucaffe.net import Net
from tests.data.records import write_records

from .test_cached_records import taken
from .test_raw_records import FORMATS, MEAN, read_net

PATIENCE = 60
Take = Callable[[Net, int], list[np.ndarray]]


class Meeting:
    """Where the threads that play ranks give one another values."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=PATIENCE)
        self.values: list[Any] = [None] * ranks


class Rank:
    """Neighbours whose memory is this process's. refused: what cannot be had."""

    def __init__(self, rank: int, meeting: Meeting, refused: str = "") -> None:
        self.rank, self.size = rank, len(meeting.values)
        self._meeting, self._refused = meeting, refused
        self.kept: list[np.ndarray] = []

    def gather(self, value: Any) -> list[Any]:
        self._meeting.values[self.rank] = value
        self._meeting.barrier.wait()
        values = list(self._meeting.values)
        self._meeting.barrier.wait()
        return values

    def share(self, nbytes: int) -> list[int]:
        self.kept.append(np.full(nbytes, 99, np.uint8))
        found = self.gather(self.kept[-1].ctypes.data)
        return [] if self._refused == "device" else found

    def share_host(self, nbytes: int) -> np.ndarray | None:
        found = self.gather(np.zeros(nbytes, np.uint8))[0]
        return None if self._refused == "host" else found


def all_ranks(
    ranks: int, make: Callable[..., Net], count: int, refused: str = "", take: Take = taken
) -> tuple[list[list[np.ndarray]], list[Net]]:
    """The batches that each rank makes, and the nets that make them."""
    meeting = Meeting(ranks)

    def begin(rank: int) -> Net:
        neighbours = Rank(rank, meeting, refused)
        net = make(data_config=DataConfig(cache="device", shuffle=4, neighbours=neighbours))
        net.layers[0].split(rank, ranks)
        return net

    with ThreadPoolExecutor(ranks) as pool:
        nets = list(pool.map(begin, range(ranks)))
    batches: list[list[np.ndarray]] = [[] for _ in nets]
    # Nobody waits for others from here on: the first rank may be a batch ahead, or many.
    for turn in [1] * (count // 2) + [count - count // 2]:
        for found, net in zip(batches, nets, strict=True):
            found += take(net, turn)
    return batches, nets


def wanted_of_ranks(
    ranks: int, make: Callable[..., Net], count: int, take: Take = taken
) -> list[list[np.ndarray]]:
    found = []
    for rank in range(ranks):
        net = make(data_config=DataConfig(shuffle=4))
        net.layers[0].split(rank, ranks)
        found.append(take(net, count))
        net.layers[0].close()
    return found


def check(ranks: int, make: Callable[..., Net], count: int, refused: str = "") -> list[Net]:
    """Compare the batches of ranks that divide records with those of ranks that read them."""
    found, nets = all_ranks(ranks, make, count, refused)
    np.testing.assert_equal(found, wanted_of_ranks(ranks, make, count))
    return nets


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the ranks has room for all records, together they have."""
    monkeypatch.setattr(Cpu, "raw_records", True)
    monkeypatch.setattr(Uploads, "free_bytes", lambda self: 270_000)


def mnist(**options: Any) -> Net:
    """200 records of 784 bytes."""
    return read_net(
        Cpu(), FORMATS / "mnist200_lmdb", MEAN + "crop_size: 20 mirror: true", **options
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_batches_are_the_same(
    ranks: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "_AHEAD", 3)
    with caplog.at_level(logging.INFO):
        nets = check(ranks, mnist, 60)
    for net in nets:
        places = net.layers[0]._cached.slots
        assert places.parts[0].shape[0] == -(-200 // ranks)
        assert places.has.all()
    assert f"divided among {ranks} GPUs, on each: 0.0" in caplog.text
    # From here on nothing is read any more.
    monkeypatch.setattr(DatumSource, "_fill", None)
    for net in nets:
        net.forward()


@pytest.mark.parametrize("refused", ["host", "device"])
def test_where_memory_cannot_be_shared_records_are_read_anew(
    refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        nets = check(2, mnist, 40, refused)
    for net in nets:
        net.layers[0].close()
    assert "its records are read again in each epoch: to stay they take" in caplog.text


def test_what_has_another_shape_ends_it_for_the_rank_that_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    random = np.random.default_rng(0)
    shapes = [(2, 40, 40)] * 150 + [(2, 60, 42)] + [(2, 40, 40)] * 49
    images = [random.integers(0, 256, shape).astype(np.uint8) for shape in shapes]
    write_records(tmp_path / "lmdb", map(make_datum, images, range(len(images))))

    def make(**options: Any) -> Net:
        return read_net(Cpu(), tmp_path / "lmdb", "crop_size: 6 mirror: true", **options)

    monkeypatch.setattr(Uploads, "free_bytes", lambda self: 700_000)
    with caplog.at_level(logging.INFO):
        nets = check(2, make, 60)
    for net in nets:
        net.layers[0].close()
    assert caplog.text.count("the one with number 150 has another shape than the first") >= 1


def test_where_each_has_room_for_all_each_keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Uploads, "free_bytes", lambda self: 400_000)
    nets = check(2, mnist, 40)
    assert all(net.layers[0]._cached.slots.table is None for net in nets)


def test_without_room_among_all_they_are_read_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rooms = itertools.cycle([200_000, 10_000])  # one rank has too little
    monkeypatch.setattr(Uploads, "free_bytes", lambda self: next(rooms))
    with caplog.at_level(logging.INFO):
        nets = check(2, mnist, 10)
    for net in nets:
        net.layers[0].close()
    assert caplog.text.count("its records are read again in each epoch: to stay they take") == 2
