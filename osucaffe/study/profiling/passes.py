"""The time profile of data-parallel training, `train --comm_profile`: what each rank records,
and the summary of all ranks' records.

Each pass is divided completely: reading data, forward, backward, update, their waits for other
ranks ("waiting"), and the time between passes (displays, tests, snapshots). Sums are per iteration
in milliseconds, the mean of the ranks.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ...comm.algorithms import Operation
from ...parallel import plan
from ...parallel.buckets import ITEM, lowest_layers
from ...parallel.data_parallel import DataParallel
from ...parallel.plan import Note
from .recorder import Mark, Message, Posted, Profile, Recorder, address

WARM_UP = 3
"""Iterations that are skipped, if there are more."""
MAX_ITERATIONS = 200
"""Iterations that are recorded at most."""
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

    def spans(self) -> Iterator[tuple[str, Mark, Mark]]:
        """The parts that it is divided into, each with its begin and end."""
        cuts = (self.begin, self.forward, self.middle, self.backward, self.end)
        return zip(PARTS, cuts, cuts[1:], strict=False)


@dataclass(frozen=True)
class Gradient:
    """What a layer sends: bytes, and the address range of its gradients on this rank."""

    layer: int
    name: str
    nbytes: int
    start: int
    stop: int


@dataclass(frozen=True)
class Records:
    """The records of one rank. operations: those before the passes, too, which may be waited for in
    them. offset: of its host's clock from rank 0's, in seconds."""

    rank: int
    host: str
    passes: list[Pass]
    operations: list[Posted]
    gradients: list[Gradient]
    offset: float = 0.0

    @property
    def counted(self) -> list[Posted]:
        """The operations that were posted in its passes."""
        first = self.passes[0].begin
        return [operation for operation in self.operations if operation.posted >= first]


class Profiled(DataParallel):
    """The ranks of a job as a solver's group; at the end rank 0 hands all records to `report`."""

    def __init__(self, report: Callable[[list[Records]], None], *group: Any) -> None:
        """group: as of the class that is profiled."""
        super().__init__(*group)
        self._profile = self._make_profile()
        self._report = report
        self._passes: list[Pass] = []
        self._iterations = 0

    def _make_profile(self) -> Recorder:
        return Profile(self.comm)

    def _pass_begins(self, *, accumulate: bool, update: bool) -> None:
        self._profile.recording = self._iterations < MAX_ITERATIONS + WARM_UP
        self._passes.append(Pass(update, self._mark()))

    def _pass_ends(self, *, update: bool) -> None:
        self._passes[-1].end = self._mark()
        if not self._profile.recording:
            self._passes.pop()
        self._iterations += update
        self._profile.recording = False

    def _plan_pass(self, *, accumulate: bool, update: bool) -> plan.Pass:
        """With notes of when one part follows another, and when gradients are complete."""
        made, net = super()._plan_pass(accumulate=accumulate, update=update), self._solver.net
        for index, name in ((0, "forward"), (len(net.layers), "middle")):
            made.before.setdefault(index, []).insert(0, Note(partial(self._note, name)))
        for layer in lowest_layers(net).values() if update else ():
            made.after.setdefault(layer, []).insert(0, Note(partial(self._note_ready, layer)))
        if update:
            made.then.insert(0, Note(partial(self._note, "backward")))
        return made

    def _mark(self) -> Mark:
        return self._profile.clock.mark(self._solver.backend.current)

    def _note(self, name: str) -> None:
        setattr(self._passes[-1], name, self._mark())

    def _note_ready(self, layer: int) -> None:
        self._passes[-1].ready[layer] = self._mark()

    # -- at the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Gather the records, and end. All ranks call it together."""
        gathered = self._job.gather(self._records())
        offsets = self._offsets()
        super().close()
        if self.rank == 0:
            pairs = zip(gathered, offsets, strict=True)
            self._report([replace(record, offset=offset) for record, offset in pairs])

    def _records(self) -> Records:
        """Those after the warm-up, if there are any."""
        at = self._profile.clock.seconds
        passes = [
            Pass(
                one.update,
                at(one.begin),
                at(one.forward),
                at(one.middle),
                at(one.backward or one.end),
                at(one.end),
                {layer: at(mark) for layer, mark in one.ready.items()},
            )
            for one in self._passes
        ]
        updates = [index for index, one in enumerate(passes) if one.update]
        if len(updates) > WARM_UP:
            passes = passes[updates[WARM_UP - 1] + 1 :]
        host = self._topology.local.hostname
        return Records(self.rank, host, passes, self._profile.read(), self._gradients())

    def _gradients(self) -> list[Gradient]:
        net = self._solver.net
        base, lowest = address(net.arena.diff.array), lowest_layers(net)
        gradients: dict[int, Gradient] = {}
        for start, stop, parameter in net.arena.segments:
            layer = lowest[id(parameter.blob)]
            if not parameter.lr_mult or parameter.own is not None:
                continue
            name, nbytes = net.layers[layer].label, parameter.blob.data.size * ITEM
            first, last = base + start * ITEM, base + stop * ITEM
            if layer in gradients:
                before = gradients[layer]
                first, last = min(first, before.start), max(last, before.stop)
                nbytes += before.nbytes
            gradients[layer] = Gradient(layer, name, nbytes, first, last)
        return list(gradients.values())

    def _offsets(self) -> list[float]:
        """The offset of each rank's clock from rank 0's: ranks of a host share one."""
        rounds = []
        for _ in range(_ROUNDS):
            self._job.barrier()
            rounds.append(self._job.gather(time.perf_counter()))
        hosts = [location.host for location in self._topology.ranks]
        return [
            statistics.median(times[hosts.index(host)] - times[0] for times in rounds)
            if host != hosts[0]
            else 0.0
            for host in hosts
        ]


SIZES = (4 << 10, 128 << 10, 1 << 20, 16 << 20, 32 << 20, 64 << 20)
"""The upper ends of the buckets of message sizes, but for the last: hvprof's, and two below."""
PARTS = ("data", "forward", "backward", "update", "waiting", "between")
PUSH = "push and pull"
"""The operation of a bucket whose gradients go to servers, and whose weights come from them."""
REDUCTIONS = (Operation.REDUCE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, PUSH)

Span = tuple[float, float]


def summarize(records: Sequence[Records]) -> dict[str, Any]:
    """The tables of a profile, from the notes of all ranks."""
    iterations = sum(one.update for one in records[0].passes)
    summary: dict[str, Any] = {"ranks": len(records), "iterations": iterations}
    if not iterations:
        return summary | {"wall_ms": 0.0, "parts_ms": {}, "operations": [], "layers": []}
    parts = [_parts(record) for record in records]
    scale = 1e3 / iterations / len(records)
    summary["wall_ms"] = scale * sum(r.passes[-1].end - r.passes[0].begin for r in records)
    ends = [records[0].passes[0].begin, *(one.end for one in records[0].passes if one.update)]
    spread = np.percentile(1e3 * np.diff(ends), (10, 50, 90))
    summary |= dict(zip(("low_ms", "median_ms", "high_ms"), map(float, spread), strict=True))
    summary["parts_ms"] = {name: scale * sum(part[name] for part in parts) for name in PARTS}
    summary["operations"] = _operations(records, iterations)
    summary["layers"] = [_layer(records[0], gradient) for gradient in records[0].gradients]
    return summary


def size_bucket(nbytes: int) -> str:
    """The bucket of message sizes that a message belongs to."""
    index = bisect.bisect_left(SIZES, nbytes)
    below = format_size(SIZES[index - 1]) if index else "0"
    return f"{below} - {format_size(SIZES[index])}" if index < len(SIZES) else f"> {below}"


def format_size(nbytes: int) -> str:
    """ "128 KB"."""
    return f"{nbytes >> 20} MB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KB"


def overlap(span: Span, spans: Iterable[Span]) -> float:
    """How much of a span is covered by others, which do not overlap each other."""
    begin, end = span
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in spans)


def waits_of(rank: Records) -> list[Span]:
    """The spans in which a rank only waited, in order."""
    return sorted(wait for operation in rank.operations for wait in operation.waits)


def lanes(messages: Iterable[Message]) -> Iterator[tuple[int, Message]]:
    """Messages in the order in which they begin, each with the first lane that is free then."""
    ends: list[float] = []
    for message in sorted(messages, key=lambda message: message.begun):
        free = (lane for lane, end in enumerate(ends) if end <= message.begun)
        lane = next(free, len(ends))
        ends[lane : lane + 1] = [message.ended]
        yield lane, message


def _near(spans: Sequence[Span], begin: float, end: float) -> Sequence[Span]:
    """Those of sorted, disjoint spans that may overlap with a span."""
    first = bisect.bisect_right(spans, (begin, begin)) - 1
    return spans[max(0, first) : bisect.bisect_right(spans, (end, end))]


def _parts(rank: Records) -> dict[str, float]:
    """Seconds of all passes, part by part."""
    waits, parts = waits_of(rank), dict.fromkeys(PARTS, 0.0)
    for one in rank.passes:
        for name, begin, end in one.spans():
            waited = overlap((begin, end), _near(waits, begin, end))
            parts[name] += end - begin - waited
            parts["waiting"] += waited
    total = rank.passes[-1].end - rank.passes[0].begin
    parts["between"] = total - sum(one.end - one.begin for one in rank.passes)
    return parts


def _operations(records: Sequence[Records], iterations: int) -> list[dict[str, Any]]:
    """By operation, algorithm, level and size: what was carried, and how long it took."""
    rows: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0] * 6)
    last = [  # when the slowest rank reached each operation
        max(message.begun - rank.offset for rank, message in zip(records, same, strict=True))
        for same in zip(*(rank.counted for rank in records), strict=False)
    ]
    for rank in records:
        waits = waits_of(rank)
        for operation, slowest in zip(rank.counted, last, strict=False):
            for message in operation.messages:
                span = message.begun, message.ended
                exposed = overlap(span, _near(waits, *span))
                held_up = overlap(span, [(operation.begun, slowest + rank.offset)])
                duration = message.ended - message.begun
                size = size_bucket(message.nbytes)
                row = rows[message.operation, message.algorithm, message.level, size]
                added = 1, message.nbytes, duration, duration - exposed, exposed, held_up
                row[:] = [a + b for a, b in zip(row, added, strict=True)]
    divisor = iterations * len(records)
    return [
        dict(zip(("operation", "algorithm", "level", "size"), key, strict=True))
        | {"calls": row[0] / divisor, "bytes": row[1] / divisor}
        | dict(zip(TIMES, (1e3 * seconds / divisor for seconds in row[2:]), strict=True))
        for key, row in sorted(rows.items(), key=lambda item: -item[1][2])
    ]


TIMES = ("ms", "hidden_ms", "exposed_ms", "slowest_ms")
"""Of an operation: in total; hidden by computation; while a rank only waited; until the slowest
rank came to it (which is part of the first)."""


def _layer(rank: Records, gradient: Gradient) -> dict[str, Any]:
    """Milliseconds from the start of backward until its gradient was complete, was sent, had
    arrived, and was needed; and how long the rank then waited for it."""
    names = ("ready_ms", "sent_ms", "arrived_ms", "needed_ms")
    sums, waited, count = [0.0] * len(names), 0.0, 0
    for one in rank.passes:
        carried = [op for op in operations_in(rank, one) if _carries(op, gradient)]
        if not one.update or not carried or gradient.layer not in one.ready:
            continue
        waits = [wait for op in carried for wait in op.waits]
        moments = (
            one.ready[gradient.layer],
            min(op.begun for op in carried),
            max(op.ended for op in carried),
            min((begin for begin, _ in waits), default=one.end),
        )
        sums = [total + at - one.middle for total, at in zip(sums, moments, strict=True)]
        waited += sum(end - begin for begin, end in waits)
        count += 1
    scale = 1e3 / max(count, 1)
    times = dict(zip(names, (scale * total for total in sums), strict=True))
    return {"name": gradient.name, "bytes": gradient.nbytes, **times, "waited_ms": scale * waited}


def operations_in(rank: Records, one: Pass) -> list[Posted]:
    """The operations that a pass posted, in order."""
    operations = rank.operations
    first = bisect.bisect_left(operations, one.begin, key=lambda op: op.posted)
    return operations[first : bisect.bisect_left(operations, one.end, key=lambda op: op.posted)]


def _carries(operation: Posted, gradient: Gradient) -> bool:
    """Whether it sums any of these gradients."""
    begin, end = operation.address, operation.address + operation.nbytes
    return operation.name in REDUCTIONS and begin < gradient.stop and gradient.start < end
