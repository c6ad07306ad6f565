"""`make bench-memory`: the largest batches that cards of 8, 16 and 24 GB train, osucaffe
against PyTorch.

What each side holds at most is measured at a batch size and at twice as many; a line through both
says what a card takes, less what CUDA itself holds there.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .. import results
from ..measure import Worker
from .gpu import versions

CASES = (("alexnet", 256), ("googlenet", 128), ("vgg16", 32), ("resnet50", 64))
MODES = "eager", "compile"
"""PyTorch's; the one that takes the largest batches counts."""
CARDS = 8, 16, 24
CONTEXT = 0.8 * 2**30
"""Bytes that CUDA and the libraries' kernels hold."""


def peak(job: dict[str, Any]) -> int:
    """The most bytes that a side holds of its own in some iterations."""
    with Worker(job) as worker:
        worker.run(0.2)
        return worker.peak


def measure(model: str, batch: int, precision: str) -> dict[str, Any]:
    """By side, the bytes at both batch sizes and the batches of the cards."""
    sides = {"osucaffe": {"framework": "osucaffe gpu"}}
    sides |= {f"torch {mode}": {"framework": "torch gpu", "mode": mode} for mode in MODES}
    base = {"model": model, "precision": precision, "threads": 4}
    jobs = [base | side | {"batch": n} for side in sides.values() for n in (batch, 2 * batch)]
    with ThreadPoolExecutor() as pool:
        peaks = list(pool.map(peak, jobs))
    row: dict[str, Any] = {"model": model, "batch": batch, "precision": precision}
    for number, side in enumerate(sides):
        one, two = peaks[2 * number : 2 * number + 2]
        each = max(two - one, 1) / batch
        room = [card * 2**30 - CONTEXT - (one - each * batch) for card in CARDS]
        row[side] = {
            "bytes": [one, two],
            "an_image": each,
            "batches": [int(bytes_ // each) for bytes_ in room],
        }
    return row


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    rows = []
    for row in record["rows"]:
        best = max((f"torch {mode}" for mode in MODES), key=lambda side: row[side]["batches"])
        for side in ("osucaffe", best):
            found = row[side]
            rows.append(
                (f"{row['model']} {row['precision']}", side, f"{found['bytes'][0] / 2**30:.2f}",
                 f"{found['an_image'] / 2**20:.1f}",
                 *(f"{batch:,}" for batch in found["batches"]))
            )  # fmt: skip
    columns = ("net", "side", "GiB", "MiB an image more", *(f"{card} GB" for card in CARDS))
    batches = ", ".join(f"{model} {batch}" for model, batch in CASES)
    return f"""# The largest batches that cards take

Written by `make bench-memory` on {record["date"]}.

- {record["device"]}; {", ".join(record["versions"])}

{results.table(columns, rows)}

- Training iterations with momentum. GiB: the most that a side held of its own, at batches of
  {batches}; the same at twice as many gives what an image more takes.
- The last columns: the batch that a card of so much memory takes, less {CONTEXT / 2**30:.1f} GiB
  for CUDA, by a line through both; no such card was tried. PyTorch: channels_last, the better of
  {" and ".join(MODES)}.
"""


def main() -> None:
    """Measure all nets, write the results, print the table."""
    parser = results.parser(__doc__)
    parser.add_argument("--only", metavar="MODELS", help="these models, with commas")
    parser.add_argument("--precision", default="bf16")
    options = parser.parse_args()
    record = results.begin(**versions())
    file = f"memory-{results.slug(record['device'])}-{record['date']}"
    # Those of the same day that are not measured again stay.
    rows = {_name(row): row for row in results.earlier(file, options.out).get("rows", ())}
    for model, batch in CASES:
        if options.only and model not in options.only.split(","):
            continue
        print(f"{model} ...", file=sys.stderr, flush=True)
        row = measure(model, batch, options.precision)
        rows[_name(row)] = row
        record["rows"] = sorted(rows.values(), key=_name)
        path = results.write(file, record, render(record), options.out)
    print(f"\n{path.read_text()}")


def _name(row: dict[str, Any]) -> tuple[str, str]:
    return row["model"], row["precision"]


if __name__ == "__main__":
    main()
