"""Measure parameter servers: gradients of whole nets there and weights back, by each channel.

  python -m benchmarks.communication.bench_servers    processes of this machine, and two hosts
  python -m benchmarks.communication.bench_servers --gpu --models alexnet,resnet50    2 workers that
                                                      share a GPU

2 workers and 2 servers (with --gpu: 1) exchange; nothing is computed but the servers' sums and
updates. Results go to benchmarks/results. All channels take turns; only ratios mean something.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osucaffe.comm.channels import KINDS
from osucaffe.rpc.ucx import is_available

from .. import results
from ..hosts import hosts
from ..ranks import mpiexec
from ..rows import rows_of

MODULE = "benchmarks.communication.bench_servers_ranks"
TEXT = """
Milliseconds of an exchange of all gradients for all weights: 2 workers, {servers}, synchronous,
with the update. Only the exchange: nothing is computed. ring: an all-reduce among the 2 workers by
MPI, without the update. Of two hosts each has a worker and a server: through its link go, in each
direction, as many bytes as the weights have, by servers and ring alike. The best of {rounds} of
medians; load average at the end: {load}.
"""


def section(title: str, rows: list[dict[str, Any]]) -> str:
    """A heading and a table."""
    kinds = [kind for kind in KINDS if kind in rows[0]]
    heads = ["net", "bytes", *kinds, "ring", "grpc / adaptive", "adaptive / ring"]
    cells = [
        [
            row["model"],
            f"{row['bytes']:,.0f}",
            *(f"{row[kind]:,.0f}" for kind in (*kinds, "ring")),
            f"{row['grpc'] / row['adaptive']:.2f}",
            f"{row['adaptive'] / row['ring']:.2f}",
        ]
        for row in rows
    ]
    return f"\n## {title}\n\n{results.table(heads, cells)}\n"


def main() -> None:
    """Measure and write."""
    parser = results.parser(__doc__)
    parser.add_argument("--models", default="googlenet,alexnet", help="of models/, with commas")
    parser.add_argument("--seconds", default="1", help="of a turn (1)")
    parser.add_argument("--rates", default="10gbit,1gbit", help="of links between two hosts")
    parser.add_argument("--gpu", action="store_true", help="workers share the first GPU")
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    for model in args.models.split(","):
        if args.gpu:
            turns = measure_gpu(model, args.seconds)
        else:
            turns = measure(model, args.seconds, [*filter(None, args.rates.split(","))])
        for title, row in turns:
            found.setdefault(title, []).extend(row)
            write(found, args.out, gpu=args.gpu)


def measure(
    model: str, seconds: str, rates: list[str]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Where, and what was measured there."""
    here = ",".join(kind for kind in KINDS if kind != "ucx" or is_available())
    given = ("-m", MODULE, model, "2", seconds, "3", here)
    yield "4 processes of one machine", rows_of(mpiexec(4, *given, timeout=3600))
    for rate in rates:
        with tempfile.TemporaryDirectory() as folder, hosts(2, rate, Path(folder)) as made:
            if made is not None:
                title = f"2 hosts with a worker and a server each, joined by {rate}"
                yield title, rows_of(made.mpiexec(1, *given, times=2, timeout=3600))


def measure_gpu(model: str, seconds: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The same of two workers that share a GPU, and one server, in one round."""
    given = ("-m", MODULE, model, "1", seconds, "1", "adaptive,grpc", "gpu")
    yield "2 workers on one GPU, and 1 server", rows_of(mpiexec(3, *given, timeout=600))


def write(found: dict[str, list[dict[str, Any]]], folder: Path, *, gpu: bool) -> None:
    """Show, and keep, what there is so far."""
    record = results.begin(load=round(os.getloadavg()[0], 1), milliseconds=found)
    told = TEXT.format(
        load=record["load"],
        servers="1 server" if gpu else "2 servers",
        rounds="one round" if gpu else "three rounds",
    )
    text = f"# Parameter servers, {record['date']}\n{told}"
    text += "".join(section(title, rows) for title, rows in found.items())
    results.show("servers-gpu" if gpu else "servers-cpu", record, text, folder)


if __name__ == "__main__":
    main()
