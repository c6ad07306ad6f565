"""Measure what the cache of registered memory brings: gradients to a parameter server on the same
host, into memory that the sender has mapped once (kept), maps for each message (anew), or cannot
map, so that the system copies (none).

  python -m benchmarks.communication.bench_registration

2 workers and 1 server exchange whole nets by the adaptive channel, as in bench_servers. Results go
to benchmarks/results.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from osucaffe.comm.job.job import MpiJob, find_job
from osucaffe.rpc.direct import Mapped, Region, Registered

from .. import results
from ..ranks import mpiexec
from ..rows import rows_of
from .bench_servers_ranks import turn

WAYS = ("kept", "anew", "none")
ROUNDS = 3
TEXT = """
Milliseconds of an exchange of all gradients for all weights: 2 workers and 1 server of one host, by
the adaptive channel, as [bench_servers](../bench_servers.py) measures it. Gradients are written
into the server's memory by who sends them: memory that it has mapped once (kept, what osucaffe
does), that it maps anew for each message, or that it cannot map, so that the system copies (none).
Hits: the share of such messages whose memory was mapped already. All take turns; the best of
{rounds} rounds of medians; load average at the end: {load}.

"""


@contextmanager
def ways(way: str, counts: Counter[str]) -> Iterator[None]:
    """In it, memory is mapped in this way. counts: messages into registered memory, and maps."""
    write = Mapped.write

    def noted(self: Mapped, sources: Sequence[memoryview], targets: Sequence[Region]) -> None:
        counts["messages"] += 1
        before = len(self._files)
        write(self, sources, targets)
        counts["maps"] += len(self._files) - before
        if way == "anew":
            self._files.clear()

    def plain(self: Registered, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    with patch.object(Mapped, "write", noted):
        if way != "none":
            yield
            return
        with patch.object(Registered, "allocate", plain):
            yield


def measure(job: MpiJob, models: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """A row for each net."""
    rows = []
    for model in models:
        row: dict[str, Any] = {"model": model}
        for _ in range(ROUNDS):
            for way in WAYS:
                counts = Counter[str]()
                with ways(way, counts):
                    found = turn(job, model, 1, "adaptive", seconds, gpu=False)
                if found:
                    row["bytes"] = found["bytes"]
                    row[way] = min(found["adaptive"], row.get(way, found["adaptive"]))
                if counts["messages"]:
                    row[f"{way}: hits"] = 1 - counts["maps"] / counts["messages"]
                    row[f"{way}: messages"] = counts["messages"]
        rows.append(row)
    return rows


def main() -> None:
    """Measure and write; or, as a rank, measure and print."""
    if sys.argv[1:2] == ["rank"]:
        job = find_job()
        with job.together():
            assert isinstance(job, MpiJob)
            rows = measure(job, sys.argv[2].split(","), float(sys.argv[3]))
            if job.rank == 0:
                print(json.dumps(rows))
        return
    parser = results.parser(__doc__)
    parser.add_argument("--models", default="lenet,googlenet,alexnet", help="of models/")
    parser.add_argument("--seconds", default="2", help="of a turn (2)")
    args = parser.parse_args()
    given = ("-m", "benchmarks.communication.bench_registration", "rank", args.models, args.seconds)
    rows = rows_of(mpiexec(3, *given, timeout=3600))
    record = results.begin(load=round(os.getloadavg()[0], 1), milliseconds=rows)
    heads = ["net", "bytes", *WAYS, "anew / kept", "none / kept", "hits", "messages a worker"]
    cells = [
        [
            row["model"],
            f"{row['bytes']:,.0f}",
            *(f"{row[way]:,.2f}" for way in WAYS),
            *(f"{row[way] / row['kept']:.2f}" for way in WAYS[1:]),
            f"{row['kept: hits']:.1%}",
            f"{row['kept: messages']:,}",
        ]
        for row in rows
    ]
    text = f"# Registered memory, {record['date']}\n" + TEXT.format(
        rounds=ROUNDS, load=record["load"]
    )
    text += results.table(heads, cells) + "\n"
    results.show("registration-cpu", record, text, args.out)


if __name__ == "__main__":
    main()
