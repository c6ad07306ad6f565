"""Levels of a job: ranks of a GPU, of a host, and all."""

from __future__ import annotations

import pytest

from osucaffe.backends.cuda.runtime import startup
from osucaffe.comm.communicator import Serial
from osucaffe.comm.config import CommConfig
from osucaffe.comm.create import Maker, _check, _cut, make_communicator
from osucaffe.comm.gpu import ipc
from osucaffe.comm.job.job import Job
from osucaffe.comm.job.topology import Location, Topology, discover
from osucaffe.errors import UserError


def topology(*places: tuple[int, str | None]) -> Topology:
    """Ranks by host and GPU."""
    ranks = [
        Location(rank, host, f"h{host}", 1, gpu=gpu) for rank, (host, gpu) in enumerate(places)
    ]
    return Topology(ranks[-1], tuple(ranks))


@pytest.mark.parametrize(
    ("places", "levels"),
    [
        ([(0, None)] * 4, [[0, 0, 0, 0]]),
        ([(0, None), (0, None), (2, None)], [[0, 0, 2], [0, 0, 0]]),
        ([(0, "a"), (0, "b"), (2, "c"), (2, "d")], [[0, 0, 2, 2], [0, 0, 0, 0]]),
        ([(0, "a"), (0, "a"), (0, "b")], [["a", "a", "b"], [0, 0, 0]]),
        ([(0, "a"), (0, "a"), (2, "c")], [["a", "a", "c"], [0, 0, 0]]),
        (
            [(0, "a"), (0, "a"), (0, "b"), (3, "c")],
            [["a", "a", "b", "c"], [0, 0, 0, 3], [0, 0, 0, 0]],
        ),
        ([(0, None), (1, None)], [[0, 0]]),
    ],
)
def test_levels(places: list[tuple[int, str | None]], levels: list[list[object]]) -> None:
    assert topology(*places).levels() == levels


def test_local_ranks_and_shared_gpus() -> None:
    found = topology((0, "a"), (1, "b"), (0, "c"), (1, "b"))
    assert found.local_rank == 1
    assert found.shares_gpu
    assert [[each.rank for each in host] for host in found.hosts] == [[0, 2], [1, 3]]


def test_hosts_can_be_cut_into_groups() -> None:
    cut = _cut(topology(*[(0, None)] * 5), 2)
    assert cut.levels() == [[0, 0, 2, 2, 4], [0] * 5]
    assert [each.host for each in cut.ranks] == [0, 0, 2, 2, 4]
    assert cut.local.host == 4
    assert len(_cut(topology(*[(0, None)] * 2), 2).levels()) == 1
    assert _cut(topology(*[(0, None)] * 3), 0).levels() == [[0] * 3]
    cut = _cut(topology((0, "a"), (1, "c"), (0, "a"), (1, "d"), (0, "b"), (1, "e")), 2)
    assert cut.levels() == [["a", "c", "a", "d", "b", "e"], [0, 1, 0, 1, 4, 5], [0] * 6]


def test_a_process_alone() -> None:
    job = Job()
    found = discover(job)
    assert found.local_rank == 0
    assert isinstance(make_communicator(job, found, CommConfig()), Serial)
    with pytest.raises(UserError, match="choose one of auto, mpi"):
        make_communicator(job, found, CommConfig("gossip"))


@pytest.mark.parametrize(
    ("wanted", "places", "message"),
    [
        (CommConfig("nccl"), [(0, None)], "for GPUs"),
        (CommConfig("nccl"), [(0, "a"), (0, "a")], "refuses two ranks on one GPU"),
        (CommConfig("nccl+ipc"), [(0, "a"), (0, "a")], "refuses two ranks on one GPU"),
        (CommConfig("ipc"), [(0, "a"), (1, "b")], "several hosts"),
        (CommConfig("copy"), [(0, "a"), (1, "b")], "--comm copy: the ranks are on several hosts"),
    ],
)
def test_what_gpus_do_not_allow_is_refused(
    wanted: CommConfig, places: list[tuple[int, str | None]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        _check(wanted, topology(*places))


@pytest.mark.parametrize("kind", ["auto", "nccl+ipc"])
def test_without_nccl_gpus_use_our_own_kernels(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_nccl() -> None:
        raise startup.missing("NCCL", major=13)

    monkeypatch.setattr(startup, "load_nccl", load_nccl)
    monkeypatch.setattr(ipc, "Ipc", lambda world: "ipc")
    maker = Maker.__new__(Maker)
    if kind == "auto":
        assert maker._on_gpus(None, kind, shared=False) == "ipc"
    else:
        with pytest.raises(UserError, match=r'pip install "osucaffe\[nccl13\]"'):
            maker._on_gpus(None, kind, shared=False)
