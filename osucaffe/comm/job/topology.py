"""The topology: which ranks share a host or a GPU, discovered and never assumed."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...backends.cores import usable_cores
from .job import Job


@dataclass(frozen=True)
class Location:
    """Where one rank runs. host: a number that the ranks of one host share; process: its id there;
    gpu: a GPU's UUID.
    """

    rank: int
    host: int
    hostname: str
    cores: int
    process: int = 0
    gpu: str | None = None
    gpu_name: str = ""


@dataclass(frozen=True)
class Topology:
    """The location of every rank; `local` is this rank's."""

    local: Location
    ranks: Sequence[Location] = field(default_factory=tuple)

    @property
    def hosts(self) -> list[list[Location]]:
        """The ranks of each host."""
        groups: dict[int, list[Location]] = {}
        for peer in self.ranks:
            groups.setdefault(peer.host, []).append(peer)
        return list(groups.values())

    @property
    def here(self) -> int:
        """How many ranks this host has."""
        return sum(peer.host == self.local.host for peer in self.ranks) or 1

    @property
    def local_rank(self) -> int:
        """This rank's number among those of its host."""
        neighbours = [peer.rank for peer in self.ranks if peer.host == self.local.host]
        return neighbours.index(self.local.rank)

    @property
    def shares_gpu(self) -> bool:
        """Whether two ranks anywhere use one GPU."""
        gpus = [peer.gpu for peer in self.ranks if peer.gpu is not None]
        return len(set(gpus)) < len(gpus)

    def levels(self) -> list[list[Hashable]]:
        """For each level of the composition, inner first: the group that each rank belongs to.

        Ranks on one GPU; the GPUs of a host; the hosts. A level where every rank would be alone,
        or that is the same as the one inside it, is left out; the last level is one group.
        """
        ladder: list[list[Hashable]] = [
            [peer.gpu if peer.gpu is not None else peer.rank for peer in self.ranks],
            [peer.host for peer in self.ranks],
            [0 for _ in self.ranks],
        ]
        distinct: list[list[Hashable]] = []
        groups = len(self.ranks)
        for level in ladder:
            if len(set(level)) < groups:
                groups = len(set(level))
                distinct.append(level)
        return distinct


def discover(job: Job, gpu: str | None = None, gpu_name: str = "") -> Topology:
    """Ask all ranks where they are (all call it together). gpu: the UUID of this rank's GPU."""
    leader = _host_leader(job)
    location = Location(job.rank, leader, job.host, usable_cores(), os.getpid(), gpu, gpu_name)
    ranks = job.gather(location)
    return Topology(location, tuple(ranks))


def _host_leader(job: Job) -> int:
    """The first rank that shares memory with this one: it names the host."""
    world: Any = getattr(job, "world", None)
    if world is None:
        return 0
    node = world.Split_type(job.mpi.COMM_TYPE_SHARED)  # type: ignore[attr-defined]
    leader: int = node.bcast(job.rank)
    node.Free()
    return leader
