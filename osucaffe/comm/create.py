"""The creation of communicators for the ranks of a job, from the command line's options."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import UserError
from .communicator import Communicator, Serial
from .config import KINDS, CommConfig
from .job.job import Job, MpiJob, cuda_aware
from .job.topology import Topology
from .tuning.table import Selection

_GPU_KINDS = ("nccl", "ipc", "nccl+ipc", "copy")


log = logging.getLogger("osucaffe")


def make_communicator(
    job: Job,
    topology: Topology,
    config: CommConfig,
    *,
    background: bool = False,
    persistent: bool = False,
    yields_core: bool | None = None,
) -> Communicator:
    """The communicator of all ranks of the job (they call it together).

    persistent: operations are called with the same array addresses each time. yields_core: the
    core while it waits (by default, in the background).
    """
    if config.kind not in KINDS:
        raise UserError(f"--comm {config.kind}: choose one of {', '.join(KINDS)}")
    selection = Selection(config.algorithm, chunk=config.chunk, file=config.table)
    if not isinstance(job, MpiJob):
        return Serial()
    job.watchdog.timeout = config.timeout
    _check(config, topology)
    topology = _cut(topology, config.group)
    narrow = config.gradient_dtype != "float32"
    maker = Maker(
        job,
        topology,
        selection,
        background=background and not narrow,
        yields_core=background if yields_core is None else yields_core,
    )
    levels = topology.levels()
    if config.kind in ("auto", "hierarchical") and len(levels) > 1:
        made = maker.composed(levels)
    else:
        kind = "auto" if config.kind == "hierarchical" else config.kind
        free = kind == "auto" and config.algorithm == "auto" and config.table is None
        made = (persistent and free and maker.copying()) or maker.flat(kind)
    if not narrow:
        return made
    from .gpu.half_precision import half_precision

    device = topology.local.gpu is not None
    return half_precision(made, config.gradient_dtype, device=device, background=background)


def _check(config: CommConfig, topology: Topology) -> None:
    """UserError if the GPUs do not allow the requested kind, or it needs GPUs that are missing."""
    if config.kind in _GPU_KINDS and topology.local.gpu is None:
        raise UserError(f"--comm {config.kind} is for GPUs: add --gpu all, or choose mpi")
    if config.kind.startswith("nccl") and topology.shares_gpu:
        raise UserError("--comm nccl: NCCL refuses two ranks on one GPU: choose auto or ipc")
    if config.kind.endswith(("ipc", "copy")) and len(topology.hosts) > 1:
        raise UserError(f"--comm {config.kind}: the ranks are on several hosts: choose auto")


def _cut(topology: Topology, group: int) -> Topology:
    """With `group`, each host is as many hosts as it has groups of that many ranks."""
    if not group:
        return topology
    ranks = list(topology.ranks)
    for host in topology.hosts:
        for index, peer in enumerate(host):
            ranks[peer.rank] = replace(peer, host=host[index - index % group].rank)
    return Topology(ranks[topology.local.rank], tuple(ranks))


class Maker:
    """Splits MPI's world along the levels. background: of the communicators that it makes."""

    def __init__(
        self,
        job: MpiJob,
        topology: Topology,
        selection: Selection,
        *,
        background: bool = False,
        yields_core: bool | None = None,
    ) -> None:
        self._job = job
        self._topology = topology
        self._selection = selection
        self._background = background
        self._yields_core = background if yields_core is None else yields_core

    def flat(self, kind: str = "auto") -> Communicator:
        """One communicator of all ranks."""
        return self._over(self._job.world, kind, background=self._background)

    def copying(self) -> Communicator | None:
        """One of all ranks, by copy engines; None unless each has its own GPU on one host."""
        topology = self._topology
        if topology.local.gpu is None or topology.shares_gpu or len(topology.hosts) > 1:
            return None
        from .gpu.copy_engine import CopyEngine

        try:
            return CopyEngine(self._job.world)
        except UserError as error:  # on all ranks alike
            log.debug("not by copy engines: %s", error)
            return None

    def composed(self, levels: Sequence[Sequence[Hashable]]) -> Communicator:
        """A hierarchy: levels[0] are the smallest groups, the last is one group of all."""
        ranks = list(range(self._job.size))
        return self._compose(self._job.world, ranks, levels, background=self._background)

    def _compose(
        self,
        world: Any,
        ranks: list[int],
        levels: Sequence[Sequence[Hashable]],
        *,
        background: bool = False,
    ) -> Communicator:
        """world joins the given ranks of the job, which levels[0] groups.

        Only the outermost communicator has a thread: it runs the others.
        """
        if len(levels) == 1:
            return self._over(world, "auto", background=background)
        order: dict[Hashable, int] = {}
        groups = [order.setdefault(levels[0][rank], len(order)) for rank in ranks]
        inside = world.Split(groups[world.rank])
        leaders = [groups.index(number) for number in range(len(order))]
        above = world.Split(0 if world.rank in leaders else self._job.mpi.UNDEFINED)
        cross = None
        if world.rank in leaders:
            cross = self._compose(above, [ranks[index] for index in leaders], levels[1:])
        rails = None
        equal = len({groups.count(number) for number in range(len(order))}) == 1
        if equal and len(levels) == 2:
            rails = self._over(world.Split(inside.rank), "auto")
        total, local = self._over(world, "mpi"), self._over(inside, "auto")
        from .hierarchical import Hierarchical

        return Hierarchical(total, local, cross, groups, rails=rails, background=background)

    def _over(self, world: Any, kind: str, *, background: bool = False) -> Communicator:
        """A communicator of one kind over the ranks of an MPI communicator."""
        locations = [self._topology.ranks[rank] for rank in world.allgather(self._job.rank)]
        one_host = len({location.host for location in locations}) == 1
        gpus = [location.gpu for location in locations if location.gpu is not None]
        if world.size == 1:
            return Serial()
        if kind in _GPU_KINDS or (kind == "auto" and gpus and one_host):
            return self._on_gpus(world, kind, shared=len(set(gpus)) < len(gpus))
        from .gpu.kernels import DeviceMath
        from .mpi import Mpi

        direct = bool(gpus) and all(world.allgather(cuda_aware(self._job.mpi)))
        made = Mpi(
            world,
            math=DeviceMath() if direct else None,
            selection=self._selection,
            level="node" if one_host else "network",
            background=background and (direct or not gpus),
            yields_core=self._yields_core,
            watchdog=self._job.watchdog,
        )
        if direct or not gpus:
            return made
        from .staged import Staged

        return Staged(made, background=background)

    def _on_gpus(self, world: Any, kind: str, *, shared: bool) -> Communicator:
        """One over ranks of a host with GPUs. shared: some of them use one GPU."""
        from ..backends.cuda.runtime.startup import load_nccl
        from .gpu.copy_engine import CopyEngine
        from .gpu.ipc import Ipc
        from .gpu.nccl import Nccl

        if kind == "copy":
            return CopyEngine(world)
        if kind == "ipc" or (kind == "auto" and shared):
            return Ipc(world)
        if kind == "nccl":
            return Nccl(world)
        try:
            small = Ipc(world)
        except UserError as error:  # on all ranks alike
            if kind != "auto":
                raise
            log.debug("NCCL alone: %s", error)
            return Nccl(world)
        try:
            load_nccl()
        except UserError as error:
            if kind != "auto":
                raise
            log.warning("Using ipc alone, which is slower for large nets: %s", error)
            return small
        choose = self._selection.choose_on_gpus
        return Nccl(
            world, small=small,
            takes=lambda operation, nbytes: choose(operation, nbytes, world.size) == "ipc",
        )  # fmt: skip
