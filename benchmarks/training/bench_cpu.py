"""`make bench-cpu`: training on the CPU, osucaffe against PyTorch, in turns on two threads.

Each net of the list runs in one process a framework; PyTorch in the faster of its two memory
layouts, tried first. The floor of a net is its arithmetic at the machine's measured sgemm rate.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from .. import results
from ..measure import Worker, alternate

THREADS = 2
LAYOUTS = ("contiguous", "channels_last")


@dataclass(frozen=True)
class Case:
    """One row of the table.

    update: a training iteration of the train_val net, its update included; else forward and
    backward of the deploy net with a loss on top.
    caffe_ms: what C++ Caffe 1.0 took for it (`CAFFE_SOURCE`).
    """

    model: str
    batch: int
    update: bool = True
    caffe_ms: float | None = None

    @property
    def name(self) -> str:
        what = "training" if self.update else "forward + backward"
        return f"{self.model} {self.batch}, {what}"


CASES = (
    Case("lenet", 64, caffe_ms=28),
    Case("cifar10_quick", 100),
    Case("alexnet", 16),
    Case("googlenet", 8),
    Case("alexnet", 10, update=False, caffe_ms=583),
    Case("googlenet", 10, update=False, caffe_ms=1092),
)
CAFFE_SOURCE = (
    "C++ Caffe 1.0 with OpenBLAS, the better of one and two threads; measured once, in\n"
    "  November 2026, on a machine of two cores, not in this run."
)


def fastest(jobs: Sequence[dict[str, Any]], seconds: float) -> tuple[dict[str, Any], list[float]]:
    """Try jobs in turn: the one of the least median duration, and all their medians in ms."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(job)) for job in jobs]
        alternate(workers, rounds=3, seconds=seconds)
        best = min(workers, key=lambda worker: worker.median)
        return best.job, [round(worker.median * 1e3, 2) for worker in workers]


def measure_case(case: Case, sgemm: dict[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    """Times in milliseconds, memory in MiB, FLOPs of an iteration, and sgemm's rate meanwhile."""
    job = {"model": case.model, "batch": case.batch, "update": case.update, "threads": THREADS}
    torch_jobs = [job | {"framework": "torch", "layout": layout} for layout in LAYOUTS]
    torch_job, tried = fastest(torch_jobs, seconds / 2)
    with (
        Worker(job | {"framework": "osucaffe"}) as ours,
        Worker(torch_job) as peer,
        Worker(sgemm) as product,
    ):
        others = alternate([ours, peer, product], rounds=rounds, seconds=seconds)
        rate = product.notes["flops"] / product.median
        return asdict(case) | {
            "name": case.name,
            "flops": ours.notes["flops"],
            "sgemm_gflops": round(rate / 1e9, 1),
            "floor_ms": round(ours.notes["flops"] / rate * 1e3, 2),
            "osucaffe": _summary(ours),
            "torch": _summary(peer)
            | {
                "layout": torch_job["layout"],
                "layouts_tried_ms": dict(zip(LAYOUTS, tried, strict=True)),
            },
            "ratio": round(ours.median / peer.median, 3),
            "others_share": round(others, 3),
        }


def _summary(worker: Worker) -> dict[str, Any]:
    return {
        "version": worker.notes["version"],
        "median_ms": round(worker.median * 1e3, 2),
        "runs_ms": [round(median * 1e3, 2) for median in worker.run_medians],
        "peak_mib": round(worker.peak / 2**20),
        "growth_mib": round(worker.growth / 2**20),
    }


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    machine = record["machine"]
    rows = []
    for case in record["cases"]:
        ours, peer, floor = case["osucaffe"], case["torch"], case["floor_ms"]
        rows.append(
            (
                case["name"],
                ours["median_ms"],
                peer["median_ms"],
                f"{case['ratio']:.2f}",
                f"{floor:.1f}",
                f"{floor / ours['median_ms']:.0%}",
                f"{floor / peer['median_ms']:.0%}",
                f"{ours['peak_mib']} / {peer['peak_mib']}",
                f"{ours['growth_mib']} / {peer['growth_mib']}",
                "–" if case["caffe_ms"] is None else f"{case['caffe_ms']:g}",
            )
        )
    first = record["cases"][0]
    others = max(case["others_share"] for case in record["cases"])
    rates = [case["sgemm_gflops"] for case in record["cases"]]
    columns = (
        "net and batch size",
        "osucaffe ms",
        "PyTorch ms",
        "ratio",
        "floor ms",
        "osucaffe reaches",
        "PyTorch reaches",
        "peak memory MiB",
        "of it for the net",
        "Caffe 1.0 ms",
    )
    return f"""# osucaffe and PyTorch on the CPU

Written by `make bench-cpu` on {record["date"]}.

- {machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB
- {record["threads"]} threads each
- osucaffe {first["osucaffe"]["version"]}, PyTorch {first["torch"]["version"]}
- {record["rounds"]} runs each of {record["seconds"]} s, in turns; medians of the runs' medians
- other processes took up to {others:.0%} of the machine while these ran

{results.table(columns, rows)}

- Training: forward, backward and an SGD update with momentum and weight decay. Forward + backward:
  of the deploy net with a softmax loss. Inputs are one fixed batch in memory.
- PyTorch runs in the faster of its contiguous and channels_last layouts.
- The floor is the arithmetic of forward and backward at the rate of a large sgemm, which runs in
  turns with the two: {min(rates):.0f} to {max(rates):.0f} GFLOP/s here. What a framework reaches is
  the floor over its time.
- Memory, osucaffe / PyTorch: the most that the process held, and how much of it came after the
  framework's import.
- Caffe: {CAFFE_SOURCE}
"""


def main() -> None:
    """Measure all cases, write the results, print the table."""
    parser = results.parser(__doc__)
    parser.add_argument("--only", metavar="MODEL", help="the cases of this model only")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each side (7)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a run (1.5)")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("bench_cpu: PyTorch is missing: pip install torch==2.13.0, or make bench-cpu")
    sgemm, _ = fastest(
        [{"framework": f"{name} sgemm", "threads": THREADS} for name in ("torch", "numpy")], 0.5
    )
    cases = [case for case in CASES if options.only in (None, case.model)]
    if not cases:
        sys.exit(
            f"bench_cpu: no case of model {options.only}; there are "
            + ", ".join(sorted({case.model for case in CASES}))
        )
    record = results.begin(
        threads=THREADS,
        rounds=options.rounds,
        seconds=options.seconds,
        sgemm=sgemm["framework"],
        cases=[],
    )
    for case in cases:
        measured = measure_case(case, sgemm, options.rounds, options.seconds)
        record["cases"].append(measured)
        print(
            f"{case.name}: osucaffe {measured['osucaffe']['median_ms']} ms, "
            f"PyTorch {measured['torch']['median_ms']} ms, ratio {measured['ratio']}",
            flush=True,
        )
    path = results.write(f"cpu-{record['date']}", record, render(record), options.out)
    print(f"\n{path.read_text()}")


if __name__ == "__main__":
    main()
