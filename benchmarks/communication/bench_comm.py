"""Measure collectives among ranks of this machine, of two hosts, and of GPUs.

  python -m benchmarks.communication.bench_comm         on the CPU, and on two hosts of namespaces
  python -m benchmarks.communication.bench_comm --gpu   on 2, 4, .. GPUs, beside NCCL

Results go to benchmarks/results. All ways take turns, size by size; only ratios mean something.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from .. import results
from ..hosts import hosts
from ..ranks import mpiexec
from ..rows import rows_of, rows_of_ranks

MODULE = "benchmarks.communication.bench_comm_ranks"
LINE = """Collectives of float32 arrays, in microseconds.

- graph: many of them in one replayed CUDA graph, as in training; called: one call after the other
  from Python, which costs the host more than the GPU where arrays are small.
- copy is what training takes by itself on the GPUs of a host, auto where arrays come and go.
  auto / nccl: below 1 auto is faster.
- mpi goes through the host. Medians of rounds in turns, of the slowest rank.
"""


def section(title: str, rows: list[dict[str, Any]]) -> str:
    """A heading and a table of microseconds."""
    columns = list(rows[0])[1:]
    taken = [name for name in ("auto", "hierarchical") if name in columns]
    cells = []
    for row in rows:
        ratios = [f"{row[name] / row['native']:.2f}" for name in taken]
        cells.append([f"{row['bytes']:,}", *(row[name] for name in columns), *ratios])
    heads = ["bytes", *columns, *(f"{name} / native" for name in taken)]
    return f"### {title}\n\n{results.table(heads, cells)}\n"


def on_cpu(largest: int, counts: str) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Ranks that share memory, then two hosts joined by a link of 1 Gbit/s."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for ranks in map(int, counts.split(",")):
        done = mpiexec(ranks, "-m", MODULE, "host", str(largest), timeout=3600)
        found[f"{ranks} ranks of one machine"] = rows_of(done)
    with tempfile.TemporaryDirectory() as folder, hosts(2, "1gbit", Path(folder)) as made:
        if made is not None:
            done = made.mpiexec(2, "-m", MODULE, "hosts", str(min(largest, 4 << 20)))
            found["2 hosts with 2 ranks each, joined by 1 Gbit/s"] = rows_of(done)
    return found


def gpu_section(operation: str, rows: list[dict[str, Any]]) -> str:
    """A heading and a table of microseconds, with the ratios that count."""
    modes = {mode: list(dict.fromkeys(name for row in rows for name in row[mode]))
             for mode in ("graph", "called")}  # fmt: skip
    columns = [f"{name}, {mode}" for mode, names in modes.items() for name in names]
    cells = []
    for row in rows:
        graph = row["graph"]
        times = [row[mode].get(name, "") for mode, names in modes.items() for name in names]
        ratios = [f"{graph[name] / graph['nccl']:.2f}" for name in ("auto", "copy")]
        cells.append([f"{row['bytes']:,}", *times, *ratios])
    heads = ["bytes", *columns, "auto / nccl", "copy / nccl"]
    return f"### {operation}\n\n{results.table(heads, cells)}\n"


def measure_gpus(wanted: str | None, largest: int, folder: Path) -> None:
    """Measure and write, after each number of ranks."""
    import cupy
    from cupy.cuda import nccl

    runtime, version = cupy.cuda.runtime, nccl.get_version()
    counts = [number for number in (2, 4, 8) if number <= runtime.getDeviceCount()]
    if wanted is not None:
        counts = [int(number) for number in wanted.split(",")]
    device = runtime.getDeviceProperties(0)["name"].decode()
    record = results.begin(
        gpu=device,
        nccl=f"{version // 10000}.{version // 100 % 100}.{version % 100}",
        cuda=runtime.runtimeGetVersion(),
        driver=runtime.driverGetVersion(),
    )
    name = f"comm-{results.slug(device)}-{record['date']}"
    record["microseconds"] = found = results.earlier(name, folder).get("microseconds", {})
    path = None
    for ranks in counts:
        if rows := list(
            rows_of_ranks(ranks, "benchmarks.communication.bench_comm_gpu", str(largest))
        ):
            found[f"{ranks} GPUs"] = rows
            path = results.write(name, record, render_gpus(record), folder)
    if path is None:
        raise SystemExit("nothing was measured: see what the ranks say")
    print(f"{path.read_text()}\nwrote {path}")


def render_gpus(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    text = (
        f"# Collectives on GPUs, {record['date']}\n\n{record['gpu']}, NCCL {record['nccl']}. {LINE}"
    )
    for title, rows in sorted(record["microseconds"].items()):
        text += f"\n## {title}\n"
        for operation in dict.fromkeys(row["operation"] for row in rows):
            ours = [row for row in rows if row["operation"] == operation]
            text += f"\n{gpu_section(operation, ours)}"
    return text


def main() -> None:
    """Measure and write."""
    parser = results.parser(__doc__)
    parser.add_argument("--gpu", action="store_true", help="on GPUs, beside NCCL")
    parser.add_argument("--ranks", help="numbers of GPUs, with commas (default: 2, 4, .. all)")
    parser.add_argument("--max_mb", type=float, help="largest arrays (default: 16, --gpu: 256)")
    parser.add_argument("--counts", default="2,4", help="ranks of this machine (2,4)")
    args = parser.parse_args()
    largest = int((args.max_mb or (256 if args.gpu else 16)) * 2**20)
    if args.gpu:
        measure_gpus(args.ranks, largest, args.out)
        return
    record = results.begin()
    record["microseconds"] = found = on_cpu(largest, args.counts)
    text = (
        f"# Collectives, {record['date']}\n\nMicroseconds on {record['machine']['cpu']}, "
        f"{record['machine']['cores']} cores: medians of rounds in turns, of the slowest rank. "
        "native: the MPI library's own (its reduce-scatter is called at once, all else as training "
        "does); auto: what the tuning table says; between hosts training takes hierarchical. Model "
        "propagation is the broadcast.\n"
    )
    for title, operations in found.items():
        tables = (section(operation, rows) for operation, rows in operations.items())
        text += f"\n## {title}\n\n" + "\n".join(tables)
    results.show("comm-cpu", record, text, args.out)


if __name__ == "__main__":
    main()
