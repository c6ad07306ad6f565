"""Owns where the time of data-parallel training goes, `train --comm_profile`: what each rank notes,
and what the notes of all ranks add up to.

Each pass is cut without rest: reading data, forward, backward, update, what these wait for others
("waiting"), and what lies between passes (displays, tests, snapshots). Sums are the mean of an
iteration in milliseconds, and of the ranks.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..backends.tensor import Step
from ..comm.create import CommConfig
from ..comm.job.job import Job
from ..comm.job.topology import Topology
from ..comm.profile import Mark, Message, Operation, Profile, address
from ..solvers.process_group import Trained
from .buckets import ITEM, lowest_layers
from .config import ParallelConfig
from .data_parallel import DataParallel
from .exchange import Hooks, add_hook

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

    def overlap_hooks(self, *, accumulate: bool, update: bool) -> tuple[Hooks, Hooks]:
        before, after = super().overlap_hooks(accumulate=accumulate, update=update)
        layers = len(self._solver.net.layers)
        for index, name in ((0, "forward"), (layers, "middle")):
            add_hook(before, index, partial(self._note, name), first=True)
        for layer in lowest_layers(self._solver.net).values() if update else ():
            add_hook(after, layer, partial(self._note_ready, layer), first=True)
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


SIZES = (4 << 10, 128 << 10, 1 << 20, 16 << 20, 32 << 20, 64 << 20)
"""The upper ends of the buckets of message sizes, but for the last: hvprof's, and two below."""
PARTS = ("data", "forward", "backward", "update", "waiting", "between")
REDUCTIONS = ("reduce", "all_reduce", "reduce_scatter")

Span = tuple[float, float]


def summarize(records: Sequence[Records]) -> dict[str, Any]:
    """The tables of a profile, from the notes of all ranks."""
    iterations = sum(each.update for each in records[0].passes)
    found: dict[str, Any] = {"ranks": len(records), "iterations": iterations}
    if not iterations:
        return found | {"wall_ms": 0.0, "parts_ms": {}, "operations": [], "layers": []}
    parts = [_parts(each) for each in records]
    scale = 1e3 / iterations / len(records)
    found["wall_ms"] = scale * sum(each.passes[-1].end - each.passes[0].begin for each in records)
    found["parts_ms"] = {name: scale * sum(each[name] for each in parts) for name in PARTS}
    found["operations"] = _operations(records, iterations)
    found["layers"] = [_layer(records[0], each) for each in records[0].gradients]
    return found


def size_bucket(nbytes: int) -> str:
    """The bucket of message sizes that a message belongs to."""
    index = bisect.bisect_left(SIZES, nbytes)
    below = format_size(SIZES[index - 1]) if index else "0"
    return f"{below} - {format_size(SIZES[index])}" if index < len(SIZES) else f"> {below}"


def format_size(nbytes: int) -> str:
    """ "128 KB"."""
    return f"{nbytes >> 20} MB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KB"


def overlap(span: Span, spans: Iterable[Span]) -> float:
    """How much of a span lies in others, which do not overlap each other."""
    begin, end = span
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in spans)


def waits_of(rank: Records) -> list[Span]:
    """When a rank did nothing but wait, in order."""
    return sorted(wait for each in rank.operations for wait in each.waits)


def _near(spans: Sequence[Span], begin: float, end: float) -> Sequence[Span]:
    """Those of sorted spans, which do not overlap, that may reach into a span."""
    first = bisect.bisect_right(spans, (begin, begin)) - 1
    return spans[max(0, first) : bisect.bisect_right(spans, (end, end))]


def _parts(rank: Records) -> dict[str, float]:
    """Seconds of all passes, part by part."""
    waits, found = waits_of(rank), dict.fromkeys(PARTS, 0.0)
    for each in rank.passes:
        cuts = (each.begin, each.forward, each.middle, each.backward, each.end)
        for name, begin, end in zip(PARTS, cuts, cuts[1:], strict=False):
            waited = overlap((begin, end), _near(waits, begin, end))
            found[name] += end - begin - waited
            found["waiting"] += waited
    whole = rank.passes[-1].end - rank.passes[0].begin
    found["between"] = whole - sum(each.end - each.begin for each in rank.passes)
    return found


def _operations(records: Sequence[Records], iterations: int) -> list[dict[str, Any]]:
    """By operation, algorithm, level and size: what was carried, and how long it took."""
    rows: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0] * 6)
    last = [  # when the slowest rank came to each operation
        max(each.begun - rank.offset for rank, each in zip(records, same, strict=True))
        for same in zip(*(rank.operations for rank in records), strict=False)
    ]
    for rank in records:
        waits = waits_of(rank)
        for operation, slowest in zip(rank.operations, last, strict=False):
            for message in operation.messages:
                span = message.begun, message.ended
                exposed = overlap(span, _near(waits, *span))
                held_up = overlap(span, [(operation.begun, slowest + rank.offset)])
                taken = message.ended - message.begun
                row = rows[_key(message)]
                added = 1, message.nbytes, taken, taken - exposed, exposed, held_up
                row[:] = [a + b for a, b in zip(row, added, strict=True)]
    each = iterations * len(records)
    return [
        dict(zip(("operation", "algorithm", "level", "size"), key, strict=True))
        | {"calls": row[0] / each, "bytes": row[1] / each}
        | dict(zip(TIMES, (1e3 * seconds / each for seconds in row[2:]), strict=True))
        for key, row in sorted(rows.items(), key=lambda item: -item[1][2])
    ]


TIMES = ("ms", "hidden_ms", "exposed_ms", "slowest_ms")
"""Of an operation: in all; beside computation; while a rank only waited; until the slowest rank
came to it (which is part of the first)."""


def _key(message: Message) -> tuple[str, str, str, str]:
    return message.operation, message.algorithm, message.level, size_bucket(message.nbytes)


def _layer(rank: Records, gradient: Gradient) -> dict[str, Any]:
    """Milliseconds from where backward begins: when its gradient was complete, began to travel,
    had arrived, and was needed; and how long was waited for it then."""
    names = ("ready_ms", "sent_ms", "arrived_ms", "needed_ms")
    sums, waited, count = [0.0] * len(names), 0.0, 0
    for each in rank.passes:
        carried = [op for op in operations_in(rank, each) if _carries(op, gradient)]
        if not each.update or not carried or gradient.layer not in each.ready:
            continue
        waits = [wait for op in carried for wait in op.waits]
        moments = (
            each.ready[gradient.layer],
            min(op.begun for op in carried),
            max(op.ended for op in carried),
            min((begin for begin, _ in waits), default=each.end),
        )
        sums = [total + at - each.middle for total, at in zip(sums, moments, strict=True)]
        waited += sum(end - begin for begin, end in waits)
        count += 1
    scale = 1e3 / max(count, 1)
    times = dict(zip(names, (scale * total for total in sums), strict=True))
    return {"name": gradient.name, "bytes": gradient.nbytes, **times, "waited_ms": scale * waited}


def operations_in(rank: Records, one: Pass) -> list[Operation]:
    """The operations that a pass asked for, which lie in order."""
    found = rank.operations
    first = bisect.bisect_left(found, one.begin, key=lambda each: each.posted)
    return found[first : bisect.bisect_left(found, one.end, key=lambda each: each.posted)]


def _carries(operation: Operation, gradient: Gradient) -> bool:
    """Whether it sums any of these gradients."""
    begin, end = operation.address, operation.address + operation.nbytes
    return operation.name in REDUCTIONS and begin < gradient.stop and gradient.start < end
