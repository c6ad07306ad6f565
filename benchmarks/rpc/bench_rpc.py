"""Owns `osucaffe bench rpc`: it starts the ranks that measure, and writes what they found."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osucaffe.cli.launch.start import find_mpiexec
from osucaffe.errors import UserError
from osucaffe.rpc.grpc_stream import import_grpc

from .. import hosts
from . import rpc_cpp_peer, rpc_report
from .rpc_payloads import BANDWIDTH, LATENCY, PAYLOADS, THROUGHPUT

_ROOT = Path(__file__).resolve().parents[2]


def run(args: argparse.Namespace) -> None:
    """Start the ranks of both parts, and write what they measured. args: what `osucaffe bench`
    declares."""
    import_grpc()
    _check("benchmarks", args.benchmarks, ("latency", "bandwidth", "throughput"))
    _check("channels", args.channels, ("mpi", "adaptive", "ucx", "sockets", "stream"))
    sizes = [payload for payload in args.payloads or () if payload.strip("0").isdecimal()]
    _check("payloads", args.payloads, (*PAYLOADS, *sizes))
    if args.peer and "adaptive" not in (args.channels or ["adaptive"]):
        raise UserError("--peer is compared with the adaptive channel: add it to --channels")
    with contextlib.ExitStack() as stack:
        made = None
        if args.hosts > 1:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            made = stack.enter_context(hosts.hosts(args.hosts, args.rate, folder))
            if made is None:
                raise UserError("--hosts 2: network namespaces need iproute2 and to be root")
        pair = _cases(args, latency=LATENCY, bandwidth=BANDWIDTH)
        served = _cases(args, throughput=THROUGHPUT)
        rows = _start(args, pair, [1, 1], made)
        rows += _start(args, served, [args.workers, args.servers], made)
        peer: list[dict[str, Any]] = []
        if args.peer:
            peer = rpc_cpp_peer.measure(args.peer, rows, args.workers, args.servers, made)
    rate = args.rate if made else None
    print(rpc_report.write(rows, args.workers, args.servers, args.out, rate, peer))
    if args.plot:
        rpc_report.draw(rows, args.plot)
        print(f"wrote {args.plot}")


def _check(option: str, given: Sequence[str] | None, known: Sequence[str]) -> None:
    """UserError for what there is not."""
    for word in given or ():
        if word not in known:
            raise UserError(f"--{option} {word}: choose among {', '.join(known)}")


def _cases(args: argparse.Namespace, **benchmarks: tuple[str, ...]) -> list[tuple[str, str]]:
    """Of some benchmarks the pairs with payloads that are chosen (all of its own without)."""
    return [
        (benchmark, payload)
        for benchmark, usual in benchmarks.items()
        if benchmark in (args.benchmarks or benchmarks)
        for payload in args.payloads or usual
    ]


def _start(
    args: argparse.Namespace,
    cases: list[tuple[str, str]],
    counts: list[int],
    made: hosts.Hosts | None,
) -> list[dict[str, Any]]:
    """The rows of some cases, which so many callers and servers measure."""
    if not cases:
        return []
    chosen = json.dumps({"cases": cases, "channels": args.channels})
    mpiexec = find_mpiexec(sum(counts))
    command = [
        *(sys.executable, "-m", "benchmarks.rpc.bench_rpc_ranks", chosen),
        *(str(counts[0]), str(args.seconds), args.channel_wait),
        *([args.interface] if args.interface else []),
    ]
    environment = dict(os.environ)
    if made is None:
        command = [mpiexec, "-n", str(sum(counts)), *command]
    else:
        command, environment = made.command(mpiexec, counts, command)
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        # gRPC's own lines tell of links that the other side has closed at the end.
        env=environment | {"PYTHONPATH": str(_ROOT), "GRPC_VERBOSITY": "NONE"},
        check=False,
    )
    if done.returncode:
        raise UserError(f"the ranks that measure ended with {done.returncode}: see above")
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows
