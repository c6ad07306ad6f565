"""Benchmark calls between processes over each channel, compared with plain gRPC.

  osucaffe bench rpc                          two processes, then workers and servers
  osucaffe bench rpc --out results            also write results/rpc-DATE.md and .json
  osucaffe bench rpc --hosts 2 --rate 1gbit   between hosts made of network namespaces (as root)

The benchmarks and payloads are those of TF-gRPC-Bench. All channels take turns. What measures is in
the folder benchmarks of osucaffe's source: it runs in a clone."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from ...errors import UserError
from .. import options
from ..launch import server_options

_ROOT = Path(__file__).resolve().parents[3]


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


def run(args: argparse.Namespace) -> None:
    """Hand over to the benchmark. It is not installed with the package: nobody needs it to train,
    and it is as long as all channels together."""
    if not (_ROOT / "benchmarks" / "bench_rpc.py").exists():
        raise UserError(
            "osucaffe bench rpc: the benchmark is not installed with the package: run python -m "
            "osucaffe bench rpc in a clone of osucaffe's source"
        )
    sys.path.insert(0, str(_ROOT))
    import_module("benchmarks.bench_rpc").run(args)
