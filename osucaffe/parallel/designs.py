"""Owns the comparison of the published designs on the current ranks: which trains a net fastest."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..backends.backend import Backend
from ..comm.channels.create import make_channel
from ..comm.create import CommConfig
from ..comm.job.job import Job, MpiJob
from ..comm.job.topology import Topology, discover
from ..proto import caffe_pb2
from ..solvers.solver import Solver
from .config import ParallelConfig
from .data_parallel import DataParallel
from .servers.shards import Consistency
from .servers.training import Served, assign_roles

ROUNDS = 3
"""Times that each design has its turn; the best counts: what else the machine does only slows."""

NEAR = 0.95
"""Rates of which the smaller is this part of the larger are called equal."""

_LOUD = (
    *("test_net", "test_net_param", "test_iter", "test_state", "test_interval"),
    *("display", "debug_info", "snapshot", "snapshot_after_train"),
)
"""Settings of a solver without which it only trains. test_iter says how often `net` tests."""


class Design(NamedTuple):
    """A way of training. flags: what asks `osucaffe train` for it. servers: ranks that serve."""

    name: str
    flags: str
    comm: CommConfig
    parallel: ParallelConfig
    servers: int = 0


def designs(ranks: int) -> Iterator[Design]:
    """What can be compared among so many ranks of CPUs."""
    auto, plain = CommConfig(), ParallelConfig()
    yield Design("all-reduce", "", auto, plain)
    yield Design("ring", "--algorithm ring", CommConfig(algorithm="ring"), plain)
    tree = ParallelConfig(propagation="overlapped")
    for name, algorithm in (("tree", "binomial"), ("tree of chains", "chain_binomial")):
        flags = f"--propagation overlapped --algorithm {algorithm}"
        yield Design(name, flags, CommConfig(algorithm=algorithm), tree)
    yield Design("sharded", "--propagation sharded", auto, ParallelConfig(propagation="sharded"))
    for servers in sorted({1, ranks // 2} if ranks > 1 else ()):
        flags = f"--servers {servers} --channel adaptive"
        yield Design(f"{servers} of the ranks serve", flags, auto, plain, servers)


def measure(
    job: MpiJob,
    topology: Topology,
    param: caffe_pb2.SolverParameter,
    file: str,
    make_backend: Callable[[], Backend],
    seconds: float,
    report: Callable[[str], None],
) -> list[tuple[Design, float]]:
    """Each design with the batches of all ranks that it trains in a second, the fastest first. All
    ranks call it together. param: the solver's settings. seconds: about how long a turn takes."""
    quiet = quieten(param)
    rates: dict[Design, float] = {}
    for _ in range(ROUNDS):
        for design in designs(job.size):
            found = _turn(job, topology, quiet, file, make_backend(), design, seconds)
            rate = max(job.gather(found))  # of who trains; who serves has none
            rates[design] = max(rate, rates.get(design, 0.0))
            report(f"{design.name:20} {rate:>10.2f} batches/s")
    return sorted(rates.items(), key=lambda item: -item[1])


def quieten(param: caffe_pb2.SolverParameter) -> caffe_pb2.SolverParameter:
    """The settings without displays, tests and snapshots."""
    quiet = caffe_pb2.SolverParameter()
    quiet.CopyFrom(param)
    for field in _LOUD:
        quiet.ClearField(field)
    return quiet


def _turn(
    job: MpiJob,
    topology: Topology,
    param: caffe_pb2.SolverParameter,
    file: str,
    backend: Backend,
    design: Design,
    seconds: float,
) -> float:
    """The batches that all workers train in a second; 0 on a rank that serves."""
    group: DataParallel
    if design.servers:
        channel = make_channel(job, topology, "adaptive")
        roles = assign_roles(job, design.servers, Consistency.parse("sync"), channel)
        if roles.serves:
            roles.serve(backend)
            return 0.0
        workers: Job = roles.part
        group = Served(roles, discover(roles.part), design.comm, design.parallel)
    else:
        workers = job
        group = DataParallel(job, topology, design.comm, design.parallel)
    solver = Solver(param, backend, file=file, group=group)
    took = seconds_of_iteration(workers, solver, seconds)
    solver.close()
    return workers.size / took


def seconds_of_iteration(workers: Job, solver: Solver, seconds: float) -> float:
    """How long the slowest rank takes for an iteration, measured for about so many seconds."""
    solver.step(3)  # libraries choose, data starts to come, a GPU captures its graph
    once = _seconds(workers, solver, 1)
    count = max(1, round(seconds / 3 / once))
    return statistics.median(_seconds(workers, solver, count) / count for _ in range(3))


def _seconds(workers: Job, solver: Solver, iterations: int) -> float:
    """So many take on the slowest rank."""
    workers.barrier()
    begun = time.perf_counter()
    solver.step(iterations)
    solver.group.synchronize_weights()
    solver.backend.synchronize()
    return float(max(workers.gather(time.perf_counter() - begun)))


def render(found: Sequence[tuple[Design, float]]) -> str:
    """A table, and what to use."""
    best, rate = found[0]
    lines = [f"{'design':20} {'batches/s':>10} {'to the best':>12}  flags of osucaffe train"]
    for design, each in found:
        lines.append(f"{design.name:20} {each:>10.2f} {each / rate:>11.0%}  {design.flags}")
    lines.append(f"use: {best.name}: osucaffe train {best.flags}".rstrip())
    near = [design.name for design, each in found[1:] if each >= NEAR * rate]
    if near:
        lines.append(f"as fast, within {1 - NEAR:.0%}: {', '.join(near)}")
    elif found[1:]:
        lines.append(f"{rate / found[1][1] - 1:.0%} faster than {found[1][0].name}, the second")
    return "\n".join(lines)
