"""Measure all-reduces: algorithms among ranks of this machine, of two hosts, and of GPUs.

  python -m benchmarks.bench_comm                 on the CPU, and on two hosts made of namespaces
  python -m benchmarks.bench_comm --gpu --ranks 2 on GPUs, beside NCCL

Results go to benchmarks/results. All ways take turns, size by size; only ratios mean something.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.comm.hosts import hosts
from tests.comm.ranks import mpiexec

from . import results

MODULE = "benchmarks.bench_comm_ranks"


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the ranks measured; their message and the end where they failed."""
    if done.returncode:
        raise SystemExit(done.stderr or done.stdout)
    rows: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return rows


def section(title: str, rows: list[dict[str, Any]]) -> str:
    """A heading and a table of microseconds."""
    columns = list(rows[0])
    cells = [[f"{row['bytes']:,}", *(row.get(name, "") for name in columns[1:])] for row in rows]
    return f"## {title}\n\n{results.table(['bytes', *columns[1:]], cells)}\n"


def on_cpu(largest: int) -> dict[str, list[dict[str, Any]]]:
    """Ranks that share memory, then two hosts joined by a link of 1 Gbit/s."""
    found = {}
    for ranks in (2, 4):
        done = mpiexec(ranks, "-m", MODULE, "host", str(largest), timeout=600)
        found[f"{ranks} ranks of one machine"] = rows_of(done)
    with tempfile.TemporaryDirectory() as folder, hosts(2, "1gbit", Path(folder)) as made:
        if made is not None:
            done = made.mpiexec(2, "-m", MODULE, "hosts", str(min(largest, 4 << 20)))
            found["2 hosts with 2 ranks each, joined by 1 Gbit/s"] = rows_of(done)
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpu", action="store_true", help="on GPUs, beside NCCL")
    parser.add_argument("--ranks", type=int, default=2, help="ranks for --gpu (default: 2)")
    parser.add_argument("--max_mb", type=float, default=16, help="largest arrays (default: 16)")
    args = parser.parse_args()
    largest = int(args.max_mb * 2**20)
    record: dict[str, Any] = {"date": results.today(), "machine": results.machine()}
    name = f"comm-{'gpu' if args.gpu else 'cpu'}-{record['date']}"
    if args.gpu:
        import cupy

        device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        record |= {"gpu": device, "nccl": cupy.cuda.nccl.get_version()}
        done = mpiexec(args.ranks, "-m", MODULE, "gpu", str(largest), timeout=600)
        found = {f"{args.ranks} GPUs ({device})": rows_of(done)}
        name += f"-{args.ranks}"
    else:
        found = on_cpu(largest)
    record["microseconds"] = found
    text = f"# All-reduce, {record['date']}\n\nMicroseconds on {record['machine']['cpu']}.\n\n"
    text += "\n".join(section(title, rows) for title, rows in found.items())
    print(text)
    print(f"wrote {results.write(name, record, text)}")


if __name__ == "__main__":
    main()
