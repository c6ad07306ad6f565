"""Measure calls between processes over each channel: what `osucaffe bench rpc` runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from osucaffe.cli.launch.start import find_mpiexec
from osucaffe.comm.channels import cpp_peer, measure
from osucaffe.comm.channels.create import make_channel
from osucaffe.comm.channels.plain_grpc import import_grpc
from osucaffe.comm.channels.rpc_report import write
from osucaffe.comm.channels.ucx import is_here
from osucaffe.comm.job import namespaces
from osucaffe.comm.job.job import MpiJob, find_job
from osucaffe.comm.job.meeting import own_address
from osucaffe.comm.job.topology import discover
from osucaffe.errors import UserError


def run(args: argparse.Namespace) -> None:
    """Start the ranks of both parts, or be one of them."""
    if args.part:
        _measure(args)
        return
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
    mpiexec = find_mpiexec(sum(counts))
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
