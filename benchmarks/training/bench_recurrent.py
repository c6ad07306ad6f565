"""`make bench-recurrent`: an LSTM's training, osucaffe against torch.nn.LSTM, in turns.

The floor is the arithmetic at the machine's rate of a large matrix product. What keeps an LSTM from
it are its steps: each waits for the one before, and its product with a few items reads all weights.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from .. import results
from ..measure import QUIET, Worker, alternate

CASES = {
    "cpu": ((20, 24, 256), (20, 24, 1000)),
    "cuda": ((20, 24, 256), (20, 24, 1000), (20, 100, 512), (20, 100, 1000)),
}
"""Time steps, items, and units, which are the inputs too. LRCN has 256 and 1000 units."""
GPU_PRECISIONS = ("bf16", "tf32")
MODES = {"cpu": ("eager",), "cuda": ("eager", "graph")}


def start_case(job: dict[str, Any]) -> tuple[Worker, list[Worker]]:
    """Our worker and PyTorch's, one for each of its modes."""
    sides = [{"framework": "osucaffe recurrent"}]
    sides += [{"framework": "torch recurrent", "mode": mode} for mode in MODES[job["device"]]]
    with ThreadPoolExecutor() as pool:
        ours, *peers = pool.map(lambda side: Worker(job | side), sides)
    return ours, peers


def measure_case(
    ours: Worker, peers: list[Worker], product: Worker, rounds: int, seconds: float
) -> dict[str, Any]:
    """Milliseconds of both sides in turns (PyTorch in its fastest mode), and the floor.

    product: knows the rate of a large matrix product, or takes its turn with them.
    """
    job, workers = ours.job, [ours, *peers]
    on_host = job["device"] == "cpu"
    if on_host:
        workers.append(product)
        product.times.clear()
    others = alternate(workers, rounds=rounds, seconds=seconds, quiet=QUIET if on_host else 1)
    best = min(peers, key=lambda peer: peer.median)
    rate = product.notes.get("flops_per_second") or product.notes["flops"] / product.median
    return {name: job[name] for name in ("steps", "items", "units", "precision")} | {
        "flops": ours.notes["flops"],
        "flops_per_second": rate,
        "floor_ms": round(ours.notes["flops"] / rate * 1e3, 4),
        "osucaffe": _summary(ours),
        "torch": _summary(best)
        | {
            "mode": best.job["mode"],
            "modes_tried_ms": {peer.job["mode"]: _milliseconds(peer.median) for peer in peers},
        },
        "speedup": round(best.median / ours.median, 2),
        "others_share": round(others, 3),
    }


def _summary(worker: Worker) -> dict[str, Any]:
    return {
        "version": worker.notes["version"],
        "median_ms": _milliseconds(worker.median),
        "runs_ms": [_milliseconds(median) for median in worker.run_medians],
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    columns = (
        "steps x items x units", "precision", "osucaffe ms", "torch.nn.LSTM ms", "its mode",
        "speed-up", "floor ms", "share reached", "osucaffe, a step each way",
    )  # fmt: skip
    rows = [
        (
            f"{case['steps']} x {case['items']} x {case['units']}",
            case["precision"],
            f"{case['osucaffe']['median_ms']:.3f}",
            f"{case['torch']['median_ms']:.3f}",
            case["torch"]["mode"],
            f"{case['speedup']:.2f}",
            f"{case['floor_ms']:.3f}",
            f"{case['floor_ms'] / case['osucaffe']['median_ms']:.0%}",
            f"{case['osucaffe']['median_ms'] / (2 * case['steps']) * 1e3:.1f} µs",
        )
        for case in record["cases"]
    ]
    first = record["cases"][0]
    rates = {case["precision"]: case["flops_per_second"] for case in record["cases"]}
    shown = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in rates.items())
    others = max(case["others_share"] for case in record["cases"])
    return f"""# An LSTM in osucaffe and PyTorch

Written by `make bench-recurrent` on {record["date"]}.

- {record["device"]}; {record["threads"]} threads on the host
- osucaffe {first["osucaffe"]["version"]}, PyTorch {first["torch"]["version"]}
- a large matrix product: {shown} TFLOP/s
- {record["rounds"]} runs each of {record["seconds"]} s, in turns; medians of the runs' medians
- other processes took up to {others:.0%} of the host while these ran

{results.table(columns, rows)}

- Forward and backward of one LSTM layer, with as many inputs as units, to all weights and to the
  input, under a Euclidean loss; without an update.
- torch.nn.LSTM (oneDNN's on a CPU, cuDNN's on a GPU) does less: it has no indicators that say at
  each step of each item whether its sequence goes on, as Caffe's layer has. In a 16-bit precision
  its weights have 16 bits, while osucaffe converts from and sums gradients in float32.
- Its mode: eager, or on a GPU a captured CUDA graph, whichever is faster.
- The floor is the arithmetic at the rate of a large matrix product.
"""


def main() -> None:
    """Measure all cases, write the results, print the table."""
    parser = results.parser(__doc__)
    parser.add_argument("--device", choices=MODES, help="default: a GPU where PyTorch finds one")
    parser.add_argument(
        "--precisions", default=",".join(GPU_PRECISIONS), help="a GPU's, with commas"
    )
    parser.add_argument("--units", help="the cases of these units only, with commas")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a run (0.5)")
    parser.add_argument("--threads", type=int, default=2, help="of each side, on the host (2)")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("bench_recurrent: PyTorch is missing: make bench-recurrent installs it")
    device = options.device or ("cuda" if _has_gpu() else "cpu")
    precisions = options.precisions.split(",") if device == "cuda" else ["fp32"]
    units = [int(each) for each in options.units.split(",")] if options.units else None
    jobs = [
        dict(zip(("steps", "items", "units"), shape, strict=True))
        | {"device": device, "precision": precision, "threads": options.threads}
        for precision in precisions
        for shape in CASES[device]
        if units is None or shape[2] in units
    ]
    framework = "gpu rates" if device == "cuda" else "torch sgemm"
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        products = {
            precision: stack.enter_context(
                Worker({"framework": framework, "precision": precision, "threads": options.threads})
            )
            for precision in precisions
        }
        started = list(pool.map(start_case, jobs))
        for ours, peers in started:
            for worker in (ours, *peers):
                stack.enter_context(worker)
        name = products[precisions[0]].notes.get("device", results.machine()["cpu"])
        short = results.slug(name) if device == "cuda" else "cpu"
        record: dict[str, Any] = {
            "date": results.today(), "device": name, "machine": results.machine(),
            "threads": options.threads, "rounds": options.rounds, "seconds": options.seconds,
            "cases": [],
        }  # fmt: skip
        for ours, peers in started:
            product = products[ours.job["precision"]]
            case = measure_case(ours, peers, product, options.rounds, options.seconds)
            record["cases"].append(case)
            print(json.dumps(case), file=sys.stderr, flush=True)
            stem = f"recurrent-{short}-{record['date']}"
            path = results.write(stem, record, render(record), options.out)
    print(f"\n{path.read_text()}")


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    main()
