"""`make bench-infer`: forward passes of deploy nets, osucaffe against OpenCV's dnn, ONNX
Runtime and PyTorch.

All sides have the same prototxt and .caffemodel, ONNX Runtime what `osucaffe export` makes of them;
their outputs are compared in the same run. Cases that are not measured anew stay in the results of
the same day and machine.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.backends.cores import usable_cores

from .. import results
from ..measure import Worker, alternate
from .infer import difference, read_outputs, write_files, write_onnx

THREADS = 2
GPU_MODES = ("graph", "compile")
"""What PyTorch runs as on a GPU; its best counts."""
ONNX_RUNTIME = {"framework": "onnxruntime forward", "mode": ""}


@dataclass(frozen=True)
class Case:
    """One row. precision: "cpu", or a GPU's. goal: the ratio to the best of OpenCV and PyTorch that
    is aimed at. script: with what scripts do, which bring the input and take the output."""

    model: str
    batch: int
    precision: str
    goal: float
    script: bool = False


CPU = [
    Case(model, batch, "cpu", goal)
    for batch, goal in ((1, 1.2), (16, 1.4))
    for model in ("lenet", "caffenet", "googlenet", "resnet50")
]
GPU = [
    *(Case(m, 1, "bf16", 1.3) for m in ("lenet", "caffenet", "googlenet", "resnet50", "vgg16")),
    *(Case(model, 1, "tf32", 1.2) for model in ("caffenet", "googlenet", "resnet50")),
    Case("lenet", 64, "bf16", 1.5),
    Case("caffenet", 256, "bf16", 3.9),
    Case("googlenet", 128, "bf16", 3.35),
    Case("resnet50", 256, "bf16", 2.2),
    Case("vgg16", 64, "bf16", 1.94),
]
SCRIPTS = [
    Case(model, batch, precision, 1.3, script=True)
    for precision in ("tf32", "bf16")
    for batch in (1, 32)
    for model in ("lenet", "caffenet", "googlenet", "resnet50")
]
BOUNDS = {"cpu": 1e-5, "fp32": 1e-5, "tf32": 2e-2, "bf16": 0.2}
"""How far outputs may be from a peer's, as a share of the largest."""


def measure_case(
    case: Case, peers: list[dict[str, Any]], rounds: int, seconds: float, folder: Path
) -> dict[str, Any]:
    """What a case took on each side, in turns; the ratio is to the fastest peer with a goal."""
    threads = usable_cores() if case.script else THREADS
    job = {"model": case.model, "threads": threads, "precision": case.precision}
    job |= (files := write_files(case.model, case.batch, folder))
    if ONNX_RUNTIME in peers:
        job |= write_onnx(files)
    if case.script:
        peers = [{"framework": "torch forward", "mode": "script"}]
    ours = "script" if case.script else "forward"
    jobs = [{"framework": f"osucaffe {ours}", "mode": ""}, *peers]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(job | each | {"outputs": str(folder / f"{i}.npz")}))
            for i, each in enumerate(jobs)
        ]
        others = alternate(workers, rounds=rounds, seconds=seconds, patience=2)
        first = workers[0]
        sides = [_summary(worker, case.batch) for worker in workers]
        found = [read_outputs(folder / f"{i}.npz") for i in range(len(jobs))]
    for worker, side, outputs in zip(workers[1:], sides[1:], found[1:], strict=True):
        side["difference"] = difference(found[0], outputs)
        if side["difference"] > BOUNDS[case.precision]:
            sys.exit(f"{case}: {side['name']}'s outputs differ by {side['difference']:.1e}")
        side |= worker.ratios_to(first)
    aimed_at = [side for each, side in zip(jobs, sides, strict=True) if each != ONNX_RUNTIME][1:]
    best = min(aimed_at, key=lambda side: float(side["median_ms"]))
    return {
        "model": case.model,
        "batch": case.batch,
        "precision": case.precision,
        "goal": case.goal,
        "script": case.script,
        "sides": sides,
        "peer": best["name"],
        "ratio": best["ratio"],
        "ratios": best["ratios"],
        "others_share": round(others, 3),
        "rounds": rounds,
        "seconds": seconds,
    }


def _summary(worker: Worker, batch: int) -> dict[str, Any]:
    times = np.concatenate([np.array(each) for each in worker.times])
    memory = worker.growth if worker.job["precision"] == "cpu" else worker.peak
    return {
        "name": " ".join([worker.job["framework"].split()[0], worker.job["mode"]]).strip(),
        "version": worker.notes["version"],
        "median_ms": round(worker.median * 1e3, 4),
        "p99_ms": round(float(np.percentile(times, 99)) * 1e3, 4),
        "processor_ms": round(float(np.median(worker.processor)) * 1e3, 4),
        "images_per_second": round(batch / worker.median, 1),
        "memory_mib": round(memory / 2**20),
        "setup_s": round(worker.notes["setup"], 2),
    }


def with_case(cases: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The cases with a new one in place of what was measured of it before, in the order of CPU and
    GPU."""

    def key(case: dict[str, Any]) -> tuple[Any, ...]:
        return case["model"], case["batch"], case["precision"], case.get("script", False)

    order = [(each.model, each.batch, each.precision, each.script) for each in CPU + GPU + SCRIPTS]
    kept = {key(case): case for case in [*cases, new]}
    return sorted(
        kept.values(), key=lambda case: order.index(k) if (k := key(case)) in order else len(order)
    )


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    columns = (
        "net, batch, precision", "side", "median ms", "99th percentile ms", "processor ms",
        "images/s", "memory MiB", "set-up s", "outputs differ by", "ratio", "goal",
    )  # fmt: skip
    rows = []
    for case in record["cases"]:
        kind = " script" if case.get("script") else ""
        name = f"{case['model']} {case['batch']} {case['precision']}{kind}"
        goal = f"≥ {case['goal']}"
        for side in case["sides"]:
            aimed_at = side["name"] == case["peer"]
            judged = case if aimed_at else side
            difference = f"{side['difference']:.0e}" if "difference" in side else "–"
            ratio = ""
            if "ratios" in judged and side is not case["sides"][0]:
                low, high = judged["ratios"][0], judged["ratios"][-1]
                ratio = f"**{judged['ratio']}** ({low}–{high})"
            rows.append(
                (name, side["name"], side["median_ms"], side["p99_ms"],
                 side.get("processor_ms", ""), side["images_per_second"], side["memory_mib"],
                 side["setup_s"], difference, ratio, goal if aimed_at else "")
            )  # fmt: skip
            name = ""
    machine = record["machine"]
    others = max(case["others_share"] for case in record["cases"])
    runs = {f"{case['rounds']} runs each of {case['seconds']} s" for case in record["cases"]}
    versions = {
        side["name"].split()[0]: side["version"]
        for case in record["cases"]
        for side in case["sides"]
    }
    return f"""# Forward passes: osucaffe and its peers

Written by `make bench-infer` on {record["date"]}.

- {record["device"] or machine["cpu"]}; {machine["cores"]} cores, {THREADS} threads each
- {", ".join(f"{name} {version}" for name, version in versions.items())}
- {" or ".join(sorted(runs))}, in turns; medians of the runs' medians
- other processes took up to {others:.0%} of the machine while these ran

{results.table(columns, rows)}

- Deploy nets of `models/`, the same prototxt and weights on all sides. On the CPU a pass writes the
  input and reads the output; on a GPU the batch is there, and the device is waited for.
- Script: a pass writes an input of NumPy's and has the output as an array of the same: a pycaffe
  script as it is written, beside copies from and to pinned memory round a captured graph, with as
  many threads as there are cores.
- Ratio: the peer's time over osucaffe's, run by run (median, least and most): above 1 osucaffe is
  faster. The goal is for the fastest of OpenCV and PyTorch.
- Processor ms: what a pass took of all processors together, threads that wait in a loop included.
- Memory: on the CPU what the process held at most beyond what it held after its imports; on a GPU
  the most that was held there.
"""


def main() -> None:
    """Measure all cases, write the results, print the table."""
    parser = results.parser(__doc__)
    parser.add_argument("--gpu", action="store_true", help="the cases of a GPU, beside PyTorch")
    parser.add_argument("--scripts", action="store_true", help="with --gpu: pycaffe's scripts only")
    parser.add_argument("--only", metavar="MODELS", help="the cases of these models, with commas")
    parser.add_argument("--batch", type=int, help="the cases of this batch size only")
    parser.add_argument("--precision", help="the cases of this precision only")
    parser.add_argument("--modes", default=",".join(GPU_MODES), help="PyTorch's modes on a GPU")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each side (7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a run (1)")
    options = parser.parse_args()
    device = ""
    if options.gpu:
        peers = [{"framework": "torch forward", "mode": mode} for mode in options.modes.split(",")]
        import cupy

        device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    else:
        peers = [{"framework": "opencv forward", "mode": ""}]
        if all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")):
            peers.append(ONNX_RUNTIME)
        if importlib.util.find_spec("torch") is not None:
            peers.append({"framework": "torch forward", "mode": "eager"})
    cases = [
        case
        for case in (SCRIPTS if options.scripts else GPU if options.gpu else CPU)
        if case.model in (options.only or case.model).split(",")
        and options.batch in (None, case.batch)
        and options.precision in (None, case.precision)
    ]
    record = results.begin(device=device, cases=[])
    name = f"infer-{results.slug(device) or 'cpu'}-{record['date']}"
    before = results.earlier(name, options.out)
    if before.get("machine") == record["machine"]:
        given = {key: before[key] for key in ("rounds", "seconds") if key in before}
        record["cases"] = [given | case for case in before["cases"]]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            measured = measure_case(case, peers, options.rounds, options.seconds, Path(folder))
            record["cases"] = with_case(record["cases"], measured)
            sides = ", ".join(
                f"{each['name']} {each['median_ms']} ms" for each in measured["sides"]
            )
            print(f"{case.model} {case.batch} {case.precision}: {sides}, ratio {measured['ratio']}")
            path = results.write(name, record, render(record), options.out)
    print(f"\n{path.read_text()}")


if __name__ == "__main__":
    main()
