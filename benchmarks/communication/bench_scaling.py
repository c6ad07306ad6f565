"""`make bench-scaling`: weak scaling over the GPUs of one machine, against PyTorch DDP."""

from __future__ import annotations

import subprocess
from typing import Any

from .. import results
from ..rows import rows_of_ranks

RANKS = "benchmarks.communication.bench_scaling_ranks"
CASES = "alexnet:256,alexnet:64,googlenet:128,googlenet:32"


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    lines = []
    for row in record["rows"]:
        for name, ms in row["ms"].items():
            speed = row["batch"] * row["ranks"] / ms * 1e3
            alone = row["ms"]["PyTorch, alone" if name == "DDP" else "alone"]
            share = "" if name.endswith("alone") else f"{alone / ms:.1%}"
            case = f"{row['model']} {row['batch']}"
            lines.append((case, row["ranks"], name, f"{ms:.3f}", f"{speed:,.0f}", share))
    columns = ("net and batch a GPU", "GPUs", "side", "ms", "images/s", "efficiency")
    return f"""# Weak scaling, beside PyTorch DDP

Written by `make bench-scaling` on {record["date"]}. {record["device"]}; PyTorch {record["torch"]}.

{results.table(columns, lines)}

- bf16, a training iteration on a batch that lies on the device; medians of three rounds.
- osucaffe: alone, each GPU by itself; default: what `osucaffe train --gpu all` chooses; all_reduce:
  every rank updates all weights; sharded: each its part. Gradients travel in float32 beside
  backward, by NCCL, small ones by own kernels, or (copy) by the GPUs' copy engines. PyTorch: eager
  with autocast, channels_last; alone, and in DDP.
- All sides in one run, one after the other. Efficiency: beside the same framework's GPUs alone;
  osucaffe's are measured before and after its other sides.
"""


def main() -> None:
    """Measure, write after each number of ranks, print."""
    parser = results.parser(__doc__)
    parser.add_argument("--ranks", default="2,4", help="numbers of GPUs, with commas")
    parser.add_argument("--cases", default=CASES, help="MODEL:BATCH, with commas")
    options = parser.parse_args()
    names = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    device = names.stdout.splitlines()[0].partition(": ")[2].partition(" (")[0]
    from importlib.metadata import version

    name = f"scaling-{results.slug(device)}-{results.today()}"
    rows = {_case(row): row for row in results.earlier(name, options.out).get("rows", ())}
    record: dict[str, Any] = {
        "date": results.today(), "device": device, "torch": version("torch"),
    }  # fmt: skip
    path = None
    for ranks in map(int, options.ranks.split(",")):
        for row in rows_of_ranks(ranks, RANKS, options.cases, str(options.out), threads=4):
            rows[_case(row)] = row
            record["rows"] = [rows[case] for case in sorted(rows)]
            path = results.write(name, record, render(record), options.out)
    if path is None:
        raise SystemExit("nothing was measured: see what the ranks say")
    print(f"\n{path.read_text()}")


def _case(row: dict[str, Any]) -> tuple[int, str, int]:
    return row["ranks"], row["model"], row["batch"]


if __name__ == "__main__":
    main()
