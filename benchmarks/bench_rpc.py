"""Owns `osucaffe bench rpc`: it starts the ranks that measure, and writes what they found."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from osucaffe.cli.launch.start import find_mpiexec
from osucaffe.comm.channels.grpc_stream import import_grpc
from osucaffe.errors import UserError

from . import hosts, rpc_cpp_peer, rpc_report

_ROOT = Path(__file__).resolve().parents[1]


def run(args: argparse.Namespace) -> None:
    """Start the ranks of both parts, and write what they measured. args: what `osucaffe bench`
    declares."""
    import_grpc()
    with contextlib.ExitStack() as stack:
        made = None
        if args.hosts > 1:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            made = stack.enter_context(hosts.hosts(args.hosts, args.rate, folder))
            if made is None:
                raise UserError("--hosts 2: network namespaces need iproute2 and to be root")
        rows = _start(args, "pair", [1, 1], made)
        rows += _start(args, "servers", [args.workers, args.servers], made)
        peer: list[dict[str, Any]] = []
        if args.peer:
            peer = rpc_cpp_peer.measure(args.peer, rows, args.workers, args.servers, made)
    rate = args.rate if made else None
    print(rpc_report.write(rows, args.workers, args.servers, args.out, rate, peer))


def _start(
    args: argparse.Namespace, part: str, counts: list[int], made: hosts.Hosts | None
) -> list[dict[str, Any]]:
    """The rows of a part, which so many callers and servers measure."""
    mpiexec = find_mpiexec(sum(counts))
    command = [
        *(sys.executable, "-m", "benchmarks.bench_rpc_ranks", part),
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
        env=environment | {"PYTHONPATH": str(_ROOT)},
        check=False,
    )
    if done.returncode:
        raise UserError(f"the ranks that measure ended with {done.returncode}: see above")
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows
