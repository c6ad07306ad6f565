"""`make bench-real DIR=...`: forward passes of trained models, osucaffe against OpenCV's dnn.

Each NAME.caffemodel of a folder, and of those in it, is run with the NAME.prototxt beside it at
batch 1, on inputs of normal numbers. What fails on one side has the message in its row.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from osucaffe.errors import UserError

from .. import results
from ..measure import Worker, alternate
from .infer import difference, read_outputs

SIDES = "osucaffe", "opencv"


def measure(weights: Path, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """One row. A side that fails is not timed: `failed` has its message."""
    prototxt = weights.with_suffix(".prototxt")
    job = {"prototxt": str(prototxt), "weights": str(weights), "batch": 1}
    job |= {"threads": threads, "precision": "cpu", "mode": ""}
    row: dict[str, Any] = {"model": weights.stem, "failed": {}}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        files = {side: Path(folder) / f"{side}.npz" for side in SIDES}
        workers: dict[str, Worker] = {}
        for side in SIDES:
            each = {"framework": f"{side} forward", "outputs": str(files[side])}
            try:
                workers[side] = stack.enter_context(Worker(job | each))
            except RuntimeError as error:
                row["failed"][side] = " ".join(str(error).split())
        if "osucaffe" not in workers:
            return row
        row["others_share"] = round(
            alternate([*workers.values()], rounds=rounds, seconds=seconds, quiet=1), 3
        )
        for side, worker in workers.items():
            row[side] = {"version": worker.notes["version"], "ms": round(worker.median * 1e3, 4)}
        if "opencv" in workers:
            row |= workers["opencv"].ratios_to(workers["osucaffe"])
            try:
                row["difference"] = difference(*map(read_outputs, files.values()))
            except UserError as error:
                row["failed"]["comparison"] = str(error)
    return row


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that take the processors from what is measured."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def geometric_mean(rows: list[dict[str, Any]]) -> float:
    """Of the ratios that there are."""
    return statistics.geometric_mean([row["ratio"] for row in rows if "ratio" in row] or [1.0])


def render(record: dict[str, Any]) -> str:
    """The record as Markdown, the lowest ratio first."""
    lines = []
    for row in sorted(record["rows"], key=lambda row: row.get("ratio", float("inf"))):
        times = [f"{row[side]['ms']:.3f}" if side in row else "" for side in SIDES]
        ratios = row.get("ratios", [])
        ratio = f"**{row['ratio']}** ({ratios[0]}–{ratios[-1]})" if ratios else ""
        differs = f"{row['difference']:.0e}" if "difference" in row else ""
        failed = "; ".join(f"{side}: {text}" for side, text in row["failed"].items())
        lines.append((row["model"], *times, ratio, differs, failed.replace("|", "\\|")))
    timed = [row for row in record["rows"] if "ratio" in row]
    versions = {
        side: row[side]["version"] for row in record["rows"] for side in SIDES if side in row
    }
    columns = "model", "osucaffe ms", "opencv ms", "ratio", "outputs differ by", "what failed"
    return f"""# Trained models: osucaffe and OpenCV's dnn

Written by `make bench-real` on {record["date"]}.

- {record["machine"]["cpu"]}; {record["machine"]["cores"]} cores, threads: {record["threads"]}
- {", ".join(" ".join(each) for each in versions.items())}
- {record["rounds"]} runs each of {record["seconds"]} s, in turns; medians of the runs' medians
- busy loops beside them: {record["busy"]}
- other processes took up to {max((row["others_share"] for row in timed), default=0):.0%} of the \
machine while these ran

{results.table(columns, lines)}

Geometric mean of {len(timed)} ratios: **{geometric_mean(timed):.2f}**; \
{sum(row["ratio"] >= 1.2 for row in timed)} are 1.2 or more.

- Batch 1; a pass writes the inputs and reads the outputs.
- Ratio: OpenCV's time over osucaffe's, run by run (median, least and most): above 1 osucaffe is
  faster.
- Outputs differ by: the largest difference in an output, as a share of its largest number.
"""


def main() -> None:
    """Measure all models, write the results after each, print the table."""
    parser = results.parser(__doc__)
    parser.add_argument("folder", type=Path, help="where NAME.prototxt and NAME.caffemodel are")
    parser.add_argument("--threads", type=int, default=2, help="of both sides (2)")
    parser.add_argument("--only", metavar="NAMES", help="these models, with commas")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each side (7)")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a run (0.3)")
    parser.add_argument("--busy", type=int, default=0, help="so many busy loops beside them (0)")
    options = parser.parse_args()
    found = sorted(options.folder.rglob("*.caffemodel"), key=lambda path: path.stem)
    if not found:
        parser.error(f"{options.folder} has no NAME.caffemodel (beside its NAME.prototxt)")
    given = {key: getattr(options, key) for key in ("threads", "rounds", "seconds")}
    record = results.begin(**given, busy=options.busy, rows=[])
    name = f"real-cpu-{record['date']}" + (f"-busy-{options.busy}" if options.busy else "")
    for path in found:
        if path.stem not in (options.only or path.stem).split(","):
            continue
        with busy_loops(options.busy):
            row = measure(path, **given)
        record["rows"].append(row)
        print(row["model"], row.get("ratio", row["failed"]), flush=True)
        written = results.write(name, record, render(record), options.out)
    print(f"\n{written.read_text()}")


if __name__ == "__main__":
    main()
