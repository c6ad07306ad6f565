"""`tune --designs`: which published design trains a net fastest on the present ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..api.curves import COLOURS
from ..backends.backend import Backend
from ..backends.cores import computing_threads
from ..backends.cpu import Cpu
from ..cli import plots
from ..cli.machine.options import Tune
from ..comm.channels.create import make_channel
from ..comm.config import CommConfig
from ..comm.job.job import Job, MpiJob
from ..comm.job.topology import Topology, discover
from ..errors import UserError
from ..parallel.config import ParallelConfig
from ..parallel.data_parallel import DataParallel
from ..parallel.tuning import quieten, seconds_of_iteration
from ..proto import caffe_pb2, read_solver
from ..solvers.solver import Solver
from .servers.shards import Consistency
from .servers.training import ServerDataParallel, assign_roles

ROUNDS = 3
"""Turns of each design; the best counts, as other load on the machine only slows it down."""

NEAR = 0.95
"""Rates of which the smaller is this part of the larger are called equal."""


class Design(NamedTuple):
    """A way of training. flags: the options of `osucaffe train` for it. servers: their number."""

    name: str
    flags: str
    comm: CommConfig
    parallel: ParallelConfig
    servers: int = 0


def designs(ranks: int) -> Iterator[Design]:
    """The designs that can be compared on this many CPU ranks."""
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


def measure_designs(
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
            local_rate = _turn(job, topology, quiet, file, make_backend(), design, seconds)
            rate = max(job.gather(local_rate))  # parameter servers have none
            rates[design] = max(rate, rates.get(design, 0.0))
            report(f"{design.name:20} {rate:>10.2f} batches/s")
    return sorted(rates.items(), key=lambda item: -item[1])


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
        group = ServerDataParallel(roles, discover(roles.part), design.comm, design.parallel)
    else:
        workers = job
        group = DataParallel(job, topology, design.comm, design.parallel)
    solver = Solver(param, backend, file=file, group=group)
    took = seconds_of_iteration(workers, solver, seconds)
    solver.close()
    return workers.size / took


def render_designs(results: Sequence[tuple[Design, float]]) -> str:
    """A table, and what to use."""
    best, rate = results[0]
    lines = [f"{'design':20} {'batches/s':>10} {'to the best':>12}  flags of osucaffe train"]
    for design, speed in results:
        lines.append(f"{design.name:20} {speed:>10.2f} {speed / rate:>11.0%}  {design.flags}")
    lines.append(f"use: {best.name}: osucaffe train {best.flags}".rstrip())
    near = [design.name for design, speed in results[1:] if speed >= NEAR * rate]
    if near:
        lines.append(f"as fast, within {1 - NEAR:.0%}: {', '.join(near)}")
    elif results[1:]:
        lines.append(f"{rate / results[1][1] - 1:.0%} faster than {results[1][0].name}, the second")
    return "\n".join(lines)


def compare_designs(options: Tune, solver: str, job: MpiJob, report: Callable[[str], None]) -> None:
    """Train by each design, and say which to use."""
    if options.gpu is not None:
        raise UserError("tune --designs compares on CPUs so far: leave out --gpu")
    topology = discover(job)
    threads = computing_threads(topology.here)
    param = read_solver(solver)
    results = measure_designs(
        job, topology, param, solver, lambda: Cpu(threads=threads), options.seconds, report
    )
    report(render_designs(results))
    if options.out and job.rank == 0:
        draw_designs(results, options.out)
        report(f"wrote {options.out}")


def draw_designs(results: Sequence[tuple[Design, float]], path: str) -> None:
    """Batches per second of each design, the fastest on top."""
    figure, axes = plots.pyplot().subplots(
        figsize=(7, 0.5 * len(results) + 1), layout="constrained"
    )
    named = [(design.name, rate) for design, rate in reversed(results)]
    bars = axes.barh(*zip(*named, strict=True), color=COLOURS[0])
    axes.bar_label(bars, fmt="{:.2f}", padding=3)
    axes.set_xlabel("batches per second")
    axes.spines[["top", "right"]].set_visible(False)
    plots.save(figure, path)
