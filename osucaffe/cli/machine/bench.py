"""Benchmark calls between processes over each channel, compared with plain gRPC.

  osucaffe bench rpc                          two processes, then workers and servers
  osucaffe bench rpc --out results            also write results/rpc-DATE.md and .json
  osucaffe bench rpc --hosts 2 --rate 1gbit   between hosts made of network namespaces (as root)

The benchmarks and payloads are those of TF-gRPC-Bench. All channels take turns."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ...comm.job import namespaces
from ...errors import UserError
from .. import options
from ..launch import ranks, server_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("what", choices=["rpc"], help="calls with payloads of several buffers")
    add(
        "--workers",
        metavar="N",
        type=options.positive,
        default=3,
        help="throughput benchmark: number of callers",
    )
    add(
        "--servers",
        metavar="K",
        type=options.positive,
        default=2,
        help="throughput benchmark: number of servers that each calls",
    )
    add(
        "--seconds",
        metavar="S",
        type=options.not_negative,
        default=0.3,
        help="how long each round of each channel takes (default: 0.3)",
    )
    add(
        "--hosts",
        metavar="H",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: callers and servers on separate hosts, made of network namespaces (needs root, "
        "iproute2 and MPICH)",
    )
    add(
        "--rate",
        metavar="RATE",
        default="10gbit",
        help="rate of the link between them, as tc writes it (10gbit)",
    )
    add("--out", metavar="DIR", help="write the results there, as Markdown and JSON")
    add(
        "--peer",
        metavar="FILE",
        help="also measure plain gRPC in C++: the program that make grpc-peer builds",
    )
    server_options.add_waiting(add)
    add("--part", choices=("pair", "servers"), help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    """Start the ranks of both parts, or be one of them."""
    if args.part:
        _measure(args)
        return
    from ...comm.channels import cpp_peer
    from ...comm.channels.plain_grpc import import_grpc
    from ...comm.channels.rpc_report import write

    import_grpc()
    with contextlib.ExitStack() as stack:
        made = None
        if args.hosts > 1:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            made = stack.enter_context(namespaces.hosts(args.hosts, args.rate, folder))
            if made is None:
                raise UserError("--hosts 2: network namespaces need iproute2 and to be root")
        rows = _start(args, "pair", [1, 1], made)
        rows += _start(args, "servers", [args.workers, args.servers], made)
        peer: list[dict[str, Any]] = []
        if args.peer:
            peer = cpp_peer.measure(args.peer, rows, args.workers, args.servers, made)
    rate = args.rate if made else None
    print(write(rows, args.workers, args.servers, args.out, rate, peer))


def _start(
    args: argparse.Namespace, part: str, counts: list[int], made: namespaces.Hosts | None
) -> list[dict[str, Any]]:
    """The rows of a part, which so many callers and servers measure."""
    mpiexec = ranks.find_mpiexec(sum(counts))
    command = [
        *(sys.executable, "-m", "osucaffe"),
        *("bench", "rpc", "--part", part, "--seconds", str(args.seconds)),
        *("--servers", str(args.servers), "--workers", str(args.workers)),
        *("--channel_wait", args.channel_wait),
        *(("--interface", args.interface) if args.interface else ()),
    ]
    environment = None
    if made is None:
        command = [mpiexec, "-n", str(sum(counts)), *command]
    else:
        command, environment = made.command(mpiexec, counts, command)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        raise UserError(f"the ranks that measure ended with {done.returncode}: see above")
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def _measure(args: argparse.Namespace) -> None:
    """What each rank does."""
    from ...comm.channels import measure
    from ...comm.channels.create import make_channel
    from ...comm.channels.ucx import is_here
    from ...comm.job.job import MpiJob, find_job
    from ...comm.job.meeting import own_address
    from ...comm.job.topology import discover

    job = find_job()
    with job.together():
        assert isinstance(job, MpiJob)
        topology = discover(job)
        address = own_address(args.interface, alone=len(topology.hosts) == 1)
        busy = args.channel_wait == "busy"
        ways: dict[str, measure.Calls] = {}
        for name in ("mpi", "adaptive", *(["ucx"] if is_here() else [])):
            # MPI always looks: it cannot wake who sleeps.
            looks = busy or name == "mpi"
            channel = make_channel(job, topology, name, args.interface, busy=looks)
            ways[name] = measure.OverChannel(channel)
        sockets = make_channel(job, topology, "adaptive", args.interface, busy=busy, direct=False)
        ways["sockets"] = measure.OverChannel(sockets)
        stream = make_channel(job, topology, "grpc", args.interface, busy=busy)
        ways["stream"] = measure.OverChannel(stream)
        ways["grpc"] = measure.OverGrpc(job, address)
        if args.part == "pair":
            called = range(1, 2)
            cases = [("latency", each) for each in measure.LATENCY]
            cases += [("bandwidth", each) for each in measure.BANDWIDTH]
        else:
            called = range(args.workers, job.size)
            cases = [("throughput", each) for each in measure.THROUGHPUT]

        def report(line: str) -> None:
            if job.rank == 0:
                print(line, file=sys.stderr, flush=True)

        rows = measure.measure(job, ways, called, cases, args.seconds, report)
        for way in ways.values():
            way.close()
        if job.rank == 0:
            print(json.dumps(rows))
