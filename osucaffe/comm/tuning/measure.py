"""The measurement of algorithms on the current ranks, and the tuning table made from it."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...files import write_bytes
from ...parsing import from_json
from ..algorithms import ALGORITHMS, OPERATIONS, Operation
from ..communicator import Communicator
from ..gpu.on_stream import OnStream
from ..job.job import Job
from .table import NATIVE, Choice

CHUNKS = (64 * 1024, 256 * 1024, 1024 * 1024)
"""Bytes tried for algorithms that work in chunks."""

CHUNKED = ("chain", "chain_binomial")
SIZES = tuple(4**power for power in range(1, 15))
"""Bytes of the arrays that are measured: 4 B to 256 MB."""
ROUNDS = 8
"""Of the GPUs' communicators in turns; the first one warms up."""

Make = Callable[[Choice], Communicator]


def choices(operation: Operation, nbytes: int) -> Iterator[Choice]:
    """What can be tried for an operation on arrays of nbytes."""
    for name in [*ALGORITHMS[operation], *(["native"] if operation in NATIVE else [])]:
        if name not in CHUNKED:
            yield Choice(name)
            continue
        yield from (Choice(name, chunk) for chunk in CHUNKS if chunk < nbytes)


def seconds(
    job: Job, comm: Communicator, operation: Operation, array: Any, *, budget: float = 0.02
) -> float:
    """How long an operation takes: the median over repetitions of the slowest rank's time.

    budget: about how many seconds to spend; at least three repetitions are made.
    """
    comm.collective(operation, array).wait()
    times: list[float] = []
    spent, repeat = 0.0, 3
    while len(times) < repeat:
        job.barrier()
        start = time.perf_counter()
        comm.collective(operation, array).wait()
        times.append(time.perf_counter() - start)
        if len(times) == 3:
            spent = max(job.gather(sum(times)))
            repeat = min(100, max(3, int(budget / (spent / 3))))
    return statistics.median(map(max, zip(*job.gather(times), strict=True)))


def measure(
    job: Job, make: Make, sizes: Sequence[int] = SIZES, report: Callable[[str], None] = print
) -> dict[str, list[list[Any]]]:
    """For each operation the rows of a table: [most bytes or null, algorithm, chunk].

    make: a communicator that uses a choice. Between two sizes the boundary is their geometric mean.
    """
    made: dict[Choice, Communicator] = {}
    table: dict[str, list[list[Any]]] = {}
    for operation in OPERATIONS:
        best: list[tuple[int, Choice]] = []
        for nbytes in sizes:
            array = np.zeros(nbytes // 4, np.float32)
            candidates = []
            for choice in choices(operation, nbytes):
                if choice not in made:
                    made[choice] = make(choice)
                took = seconds(job, made[choice], operation, array)
                candidates.append((job.broadcast_object(took), choice))
            report(f"{operation:15} {_pick(candidates, best, nbytes)}")
        table[operation] = _rows(best)
    for comm in made.values():
        comm.close()
    return table


def replayed(
    comm: OnStream,
    array: Any,
    stream: Any,
    repeat: int,
    operation: Operation = Operation.ALL_REDUCE,
) -> Callable[[], float]:
    """What measures the seconds of an operation: one of many in a CUDA graph, as in training."""
    from cupy.cuda import Event, get_elapsed_time

    comm.enqueue(operation, array, 0, stream)  # libraries load what they need: not in a capture
    stream.synchronize()
    stream.begin_capture()
    for _ in range(repeat):
        comm.enqueue(operation, array, 0, stream)
    graph = stream.end_capture()
    start, stop = Event(), Event()

    def measured() -> float:
        start.record(stream)
        graph.launch(stream)
        stop.record(stream)
        stop.synchronize()
        return float(get_elapsed_time(start, stop)) / 1e3 / repeat

    return measured


def measure_gpus(
    job: Job,
    comms: Mapping[str, OnStream],
    zeros: Callable[[int], Any],
    stream: Any,
    sizes: Sequence[int] = SIZES,
    report: Callable[[str], None] = print,
) -> dict[str, list[list[Any]]]:
    """The rows of a table for the GPUs of a host: which of the communicators does an operation.

    zeros: makes a device array of that many float32. No graph is left, for which NCCL would wait.
    """
    best: dict[str, list[tuple[int, Choice]]] = {operation: [] for operation in OPERATIONS}
    for nbytes in sizes:
        array, repeat = zeros(nbytes // 4), max(2, min(100, (64 << 20) // nbytes))
        for operation in OPERATIONS:
            ways = {
                name: replayed(comm, array, stream, repeat, operation)
                for name, comm in comms.items()
            }
            times = in_turns(job, ways, ROUNDS)
            candidates = [(took, Choice(name, 0)) for name, took in times.items()]
            report(f"{operation:15} {_pick(candidates, best[operation], nbytes, noise=1.0)}")
            del ways
    return {operation: _rows(choices) for operation, choices in best.items()}


def in_turns(job: Job, ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The medians of what the slowest rank took for each; the first of the rounds warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            job.barrier()
            times[name].append(max(job.gather(way())))
    return {name: statistics.median(samples[1:]) for name, samples in times.items()}


def _pick(
    candidates: list[tuple[float, Choice]],
    best: list[tuple[int, Choice]],
    nbytes: int,
    *,
    noise: float = 1.1,
) -> str:
    """Add the fastest to `best`, and describe it; a change of algorithm must gain more than the
    noise."""
    took, choice = min(candidates)
    if best:
        before = best[-1][1]
        same = min((pair for pair in candidates if pair[1] == before), default=(np.inf, choice))
        took, choice = same if same[0] < noise * took else (took, choice)
    best.append((nbytes, choice))
    return f"{nbytes:>11,} B {took * 1e6:>10.1f} us  {choice.algorithm}"


def _rows(best: Sequence[tuple[int, Choice]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for (nbytes, choice), following in zip(best, [*best[1:], None], strict=True):
        if following is not None and following[1] == choice:
            continue
        most = None if following is None else math.isqrt(nbytes * following[0])
        rows.append([most, choice.algorithm, choice.chunk])
    return rows


def merge(path: Path, level: str, ranks: int, rows: dict[str, list[list[Any]]]) -> None:
    """Merge measured rows into a table file; rows of other levels and ranks stay."""
    content: dict[str, Any] = {"about": "measured by osucaffe tune", "levels": {}}
    try:
        if path.exists():
            content = from_json(path.read_text())
        operations = content["levels"].setdefault(level, {})
        for operation, row in rows.items():
            operations.setdefault(operation, {})[str(ranks)] = row
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, render(content).encode())
    except OSError as error:
        raise UserError(f"{path}: cannot write the tuning table: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: not a tuning table ({error}): remove it") from error


def render(content: dict[str, Any]) -> str:
    """A table as JSON with one line for each number of ranks."""
    lines = ["{", f'  "about": {json.dumps(content["about"])},', '  "levels": {']
    levels = content["levels"]
    for level, operations in levels.items():
        lines.append(f"    {json.dumps(level)}: {{")
        for operation, rows in operations.items():
            lines.append(f"      {json.dumps(operation)}: {{")
            ordered = sorted(rows.items(), key=lambda item: int(item[0]))
            entries = [f'        "{ranks}": {json.dumps(row)}' for ranks, row in ordered]
            lines.append(",\n".join(entries))
            lines.append("      }" + ("," if operation != list(operations)[-1] else ""))
        lines.append("    }" + ("," if level != list(levels)[-1] else ""))
    return "\n".join([*lines, "  }", "}"]) + "\n"
