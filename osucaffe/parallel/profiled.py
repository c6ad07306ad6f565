"""Owns data-parallel training that notes where its time goes: `train --comm_profile`.

Each pass is cut into reading data, forward, backward and update, less what it waits for others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from ..backends.tensor import Step, sequence
from ..comm.create import CommConfig
from ..comm.job.job import Job
from ..comm.job.topology import Topology
from ..comm.profile import Mark, Operation, Profile, address
from ..solvers.process_group import Trained
from .buckets import ITEM, lowest_layers
from .config import ParallelConfig
from .data_parallel import DataParallel

WARM_UP = 3
"""Iterations that are left out, where there are more."""
MOST = 200
"""Iterations that are noted."""
_ROUNDS = 21


@dataclass
class Pass:
    """One forward and backward pass, and with `update` what follows. ready: by layer, when its
    gradients were complete."""

    update: bool
    begin: Mark
    forward: Mark = None
    middle: Mark = None
    backward: Mark = None
    end: Mark = None
    ready: dict[int, Mark] = field(default_factory=dict)


@dataclass(frozen=True)
class Gradient:
    """What a layer sends: bytes, and the addresses between which its gradients lie on its rank."""

    layer: int
    name: str
    nbytes: int
    start: int
    stop: int


@dataclass(frozen=True)
class Records:
    """What one rank noted. offset: how far its host's clock is ahead of rank 0's, in seconds."""

    rank: int
    host: str
    passes: list[Pass]
    operations: list[Operation]
    gradients: list[Gradient]
    offset: float = 0.0


class Profiled(DataParallel):
    """The ranks of a job as a solver's group; at the end rank 0 hands all records to `report`."""

    def __init__(
        self,
        job: Job,
        topology: Topology,
        comm_config: CommConfig,
        config: ParallelConfig,
        report: Callable[[list[Records]], None],
    ) -> None:
        super().__init__(job, topology, comm_config, config)
        self._profile = Profile(self.comm)
        self._report = report
        self._passes: list[Pass] = []
        self._iterations = 0

    def step(self, solver: Trained, *, accumulate: bool, update: bool) -> Step:
        """Notes when the pass begins and ends."""
        run = super().step(solver, accumulate=accumulate, update=update)

        def step() -> None:
            self._profile.recording = self._iterations < MOST + WARM_UP
            self._passes.append(Pass(update, self._mark()))
            run()
            self._passes[-1].end = self._mark()
            if not self._profile.recording:
                self._passes.pop()
            self._iterations += update
            self._profile.recording = False

        return step

    def overlap_hooks(
        self, *, accumulate: bool, update: bool
    ) -> tuple[dict[int, Step], dict[int, Step]]:
        before, after = super().overlap_hooks(accumulate=accumulate, update=update)
        layers = len(self._solver.net.layers)
        for index, name in ((0, "forward"), (layers, "middle")):
            before[index] = _joined(partial(self._note, name), before.get(index))
        for layer in lowest_layers(self._solver.net).values() if update else ():
            after[layer] = _joined(partial(self._note_ready, layer), after.get(layer))
        return before, after

    def _finish(self, after: dict[int, Step]) -> list[Step]:
        return [partial(self._note, "backward"), *super()._finish(after)]

    def _mark(self) -> Mark:
        return self._profile.clock.mark(self._solver.backend.current)

    def _note(self, name: str) -> None:
        setattr(self._passes[-1], name, self._mark())

    def _note_ready(self, layer: int) -> None:
        self._passes[-1].ready[layer] = self._mark()

    # -- at the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Hand over what was noted, and end. All ranks call it together."""
        found = self._job.gather(self._records())
        offsets = self._offsets()
        super().close()
        if self.rank == 0:
            pairs = zip(found, offsets, strict=True)
            self._report([replace(each, offset=offset) for each, offset in pairs])

    def _records(self) -> Records:
        """Of the iterations behind the first ones, if there are such."""
        at = self._profile.clock.seconds
        passes = [
            Pass(
                each.update,
                at(each.begin),
                at(each.forward),
                at(each.middle),
                at(each.backward or each.end),
                at(each.end),
                {layer: at(mark) for layer, mark in each.ready.items()},
            )
            for each in self._passes
        ]
        updates = [index for index, each in enumerate(passes) if each.update]
        if len(updates) > WARM_UP:
            passes = passes[updates[WARM_UP - 1] + 1 :]
        first = passes[0].begin if passes else 0.0
        operations = [each for each in self._profile.read() if each.posted >= first]
        host = self._topology.own.hostname
        return Records(self.rank, host, passes, operations, self._gradients())

    def _gradients(self) -> list[Gradient]:
        net = self._solver.net
        base, lowest = address(net.arena.diff.array), lowest_layers(net)
        found: dict[int, Gradient] = {}
        for start, stop, parameter in net.arena.segments:
            layer = lowest[id(parameter.blob)]
            if not parameter.lr_mult:
                continue
            name, nbytes = net.layers[layer].label, parameter.blob.data.size * ITEM
            first, last = base + start * ITEM, base + stop * ITEM
            if layer in found:
                before = found[layer]
                first, last = min(first, before.start), max(last, before.stop)
                nbytes += before.nbytes
            found[layer] = Gradient(layer, name, nbytes, first, last)
        return list(found.values())

    def _offsets(self) -> list[float]:
        """How far each rank's clock is ahead of rank 0's: ranks of a host share one."""
        rounds = []
        for _ in range(_ROUNDS):
            self._job.barrier()
            rounds.append(self._job.gather(time.perf_counter()))
        hosts = [each.host for each in self._topology.ranks]
        return [
            statistics.median(times[hosts.index(host)] - times[0] for times in rounds)
            if host != hosts[0]
            else 0.0
            for host in hosts
        ]


def _joined(step: Step, other: Step | None) -> Step:
    return step if other is None else sequence([step, other])
