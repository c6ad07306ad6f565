"""`python -m benchmarks.rpc.bench_rpc`: calls between processes over each channel, compared
with plain gRPC, with the benchmarks and payloads of TF-gRPC-Bench. It starts the ranks that
measure, and writes what they found.

  python -m benchmarks.rpc.bench_rpc --out results          results/rpc-DATE.md and .json
  python -m benchmarks.rpc.bench_rpc --hosts 2 --rate 1gbit
                                            between hosts made of network namespaces (as root)
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osucaffe.cli.declare import build, declare
from osucaffe.cli.launch.start import find_mpiexec
from osucaffe.cli.parser import Parser
from osucaffe.comm.config import INTERFACE
from osucaffe.errors import UserError
from osucaffe.options.flags import flag, like
from osucaffe.options.kinds import COUNT, SECONDS, Kind, names
from osucaffe.parallel.config import CHANNEL_WAIT
from osucaffe.rpc.grpc_stream import import_grpc

from .. import hosts
from . import rpc_cpp_peer, rpc_report
from .rpc_payloads import BANDWIDTH, LATENCY, PAYLOADS, THROUGHPUT

_ROOT = Path(__file__).resolve().parents[2]
CHANNELS = ("mpi", "adaptive", "ucx", "sockets", "stream")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is measured, where, by how many."""

    workers: int = flag("throughput benchmark: number of callers", COUNT, 3)
    servers: int = flag("throughput benchmark: number of servers that each calls", COUNT, 2)
    seconds: float = flag("how long each round of each channel takes", SECONDS, 0.3)
    hosts: int = flag(
        "2: callers and servers on separate hosts, made of network namespaces (needs root, "
        "iproute2 and MPICH)",
        (1, 2),
        1,
        type=int,
        metavar="H",
    )
    benchmarks: list[str] | None = flag(
        "some of latency, bandwidth, throughput (default: all)", Kind("LIST", names)
    )
    payloads: list[str] | None = flag(
        "some of small, medium, large, uniform, random, skew, or bytes (default: all)",
        Kind("LIST", names),
    )
    channels: list[str] | None = flag(
        f"some of {', '.join(CHANNELS)} beside gRPC (default: all)", Kind("LIST", names)
    )
    plot: str | None = flag("draw how many times better than gRPC each is", "FILE")
    rate: str = flag("rate of the link between them, as tc writes it", "RATE", "10gbit")
    out: str | None = flag("write the results there, as Markdown and JSON", "DIR")
    peer: str | None = flag(
        "also measure plain gRPC in C++: the program that make grpc-peer builds", "FILE"
    )
    busy: bool = like(CHANNEL_WAIT)
    interface: str | None = like(INTERFACE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options, and run."""
    parser = Parser(prog="python -m benchmarks.rpc.bench_rpc", description=Options.__doc__)
    declare(parser, Options)
    try:
        words = sys.argv[1:] if arguments is None else arguments
        run(build(Options, vars(parser.parse_args(words))))
    except UserError as error:
        sys.exit(f"bench_rpc: {error}")


def run(args: Options) -> None:
    """Start the ranks of both parts, and write what they measured."""
    import_grpc()
    _check("benchmarks", args.benchmarks, ("latency", "bandwidth", "throughput"))
    _check("channels", args.channels, CHANNELS)
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


def _cases(args: Options, **benchmarks: tuple[str, ...]) -> list[tuple[str, str]]:
    """Of some benchmarks the pairs with payloads that are chosen (all of its own without)."""
    return [
        (benchmark, payload)
        for benchmark, usual in benchmarks.items()
        if benchmark in (args.benchmarks or benchmarks)
        for payload in args.payloads or usual
    ]


def _start(
    args: Options,
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
        *(str(counts[0]), str(args.seconds), "busy" if args.busy else "sleep"),
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


if __name__ == "__main__":
    main()
