"""`make bench-gpu`: training on one GPU, osucaffe against PyTorch in the best of its modes,
and beside JAX where that is installed.

The floor of a net is, over the calls of one iteration, the sum of the longer of two times: its
arithmetic at the device's rate of a large matrix product, and its bytes (each tensor read or
written once) at the rate of a large copy; the update's bytes come on top.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .. import results
from ..measure import Worker, alternate
from .gpu import BLOCK, TORCH_MODES

CASES = (
    ("lenet", 64),
    ("cifar10_quick", 100),
    ("alexnet", 256),
    ("caffenet", 256),
    ("googlenet", 128),
    ("vgg16", 64),
    ("resnet50", 256),
    ("edsr_baseline", 16),
)
PRECISIONS = ("bf16", "tf32")
LOSERS, PASSES = 4, 10
"""Types of layers that are shown for a net, and passes of layers for a precision."""
COMPILERS = 6
"""How many nets torch.compile works on at a time."""
UPDATE_PASSES = 5
"""float32 passes over the parameters: weights, gradients and history read, the first and last
written."""


def measure_case(
    job: dict[str, Any], rates: dict[str, Any], modes: list[str], rounds: int, seconds: float
) -> dict[str, Any]:
    """Milliseconds of all sides in turns (PyTorch in its best mode), memory, and the floor."""
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        jobs = [job | {"framework": "osucaffe gpu"}]
        jobs += [job | {"framework": "torch gpu", "mode": mode} for mode in modes]
        jobs += [job | {"framework": "jax gpu"}]
        started = list(pool.map(_start, jobs))
        workers = [stack.enter_context(worker) for worker in started if worker is not None]
        ours, *peers = (each for each in workers if each.job["framework"] != "jax gpu")
        jax = [each for each in workers if each.job["framework"] == "jax gpu"]
        alternate(peers, rounds=2, seconds=seconds, quiet=1)
        tried = {peer.job["mode"]: round(peer.median * 1e3, 4) for peer in peers}
        best = min(peers, key=lambda peer: peer.median)
        for worker in workers:
            worker.times.clear()
        alternate([ours, best, *jax], rounds=rounds, seconds=seconds, quiet=1)
        floor = sum(_floor(flops, nbytes, rates) for flops, nbytes in ours.notes["calls"])
        floor += UPDATE_PASSES * ours.notes["parameter_bytes"] / rates["bytes_per_second"]
        return {
            "date": results.today(),
            "model": job["model"],
            "batch": job["batch"],
            "precision": job["precision"],
            "floor_ms": round(floor * 1e3, 4),
            "flops": sum(flops for flops, _ in ours.notes["calls"]),
            "osucaffe": _summary(ours),
            "torch": _summary(best) | {"mode": best.job["mode"], "modes_tried_ms": tried},
            "jax": _summary(jax[0]) if jax else None,
            "speedup": round(best.median / ours.median, 2),
            "memory": round(ours.peak / best.peak, 2),
            "layers": _by_type(ours.notes["layers"], rates),
            "passes": _losing(ours.notes["layers"], rates),
        }


def _floor(flops: int, nbytes: int, rates: dict[str, Any]) -> float:
    """Seconds that arithmetic or memory takes at least."""
    return max(flops / rates["flops_per_second"], nbytes / rates["bytes_per_second"])


def _by_type(layers: list[dict[str, Any]], rates: dict[str, Any]) -> dict[str, list[float]]:
    """Milliseconds and floor of all layers of a type, those first that lose most.

    layers: see `gpu.build_osucaffe`.
    """
    found: dict[str, list[float]] = {}
    for each in layers:
        both = found.setdefault(each["type"], [0.0, 0.0])
        both[0] += each["ms"]
        both[1] += _floor(each["flops"], each["nbytes"], rates) * 1e3
    rounded = {kind: [round(each, 4) for each in both] for kind, both in found.items()}
    return dict(sorted(rounded.items(), key=lambda item: item[1][1] - item[1][0]))


def _losing(layers: list[dict[str, Any]], rates: dict[str, Any]) -> list[dict[str, Any]]:
    """The passes of layers that lose most, each with its floor and what that is made of."""
    rows = []
    for each in layers:
        arithmetic, memory = _floor(each["flops"], 0, rates), _floor(0, each["nbytes"], rates)
        rows.append(
            {key: each[key] for key in ("layer", "type", "by")}
            | {"ms": round(each["ms"], 4), "floor_ms": round(max(arithmetic, memory) * 1e3, 4)}
            | {"bound": "arithmetic" if arithmetic > memory else "bytes"}
        )
    return sorted(rows, key=lambda row: row["floor_ms"] - row["ms"])[:PASSES]


def measure_rates(precision: str) -> dict[str, Any]:
    """The device, its versions, and its rates in the precision."""
    with Worker({"framework": "gpu rates", "precision": precision, "threads": 1}) as worker:
        return worker.notes


def compile_ahead(jobs: list[dict[str, Any]], modes: list[str]) -> None:
    """Let torch.compile fill its cache on disk, several nets at once: it takes minutes."""
    print("torch.compile fills its cache ...", file=sys.stderr, flush=True)
    with ThreadPoolExecutor(max_workers=COMPILERS) as pool:
        for worker in pool.map(
            _start,
            [
                job | {"framework": "torch gpu", "mode": mode, "warm": True}
                for job in jobs
                for mode in modes
                if mode in ("compile", "reduce-overhead")
            ],
        ):
            if worker is not None:
                with worker:
                    pass


def _start(job: dict[str, Any]) -> Worker | None:
    """A worker, or None where a peer cannot run the net in this way (its message is printed)."""
    try:
        return Worker(job)
    except RuntimeError as error:
        if job["framework"] == "osucaffe gpu":
            raise
        print(error, file=sys.stderr)
        return None


def _summary(worker: Worker) -> dict[str, Any]:
    return {
        "version": worker.notes["version"],
        "median_ms": round(worker.median * 1e3, 4),
        "runs_ms": [round(median * 1e3, 4) for median in worker.run_medians],
        "images_per_second": round(worker.job["batch"] / worker.median),
        "peak_gib": round(worker.peak / 2**30, 2),
        "setup_seconds": round(worker.notes["setup"], 1),
    }


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    columns = (
        "net and batch size", "precision", "osucaffe img/s", "PyTorch img/s", "its mode",
        "speed-up", "JAX img/s", "osucaffe ms", "floor ms", "share reached", "memory GiB",
        "set-up s", "date",
    )  # fmt: skip
    rows = [
        (
            *_rates(case),
            f"{case['torch']['mode']} (of {len(case['torch']['modes_tried_ms'])})",
            f"{case['speedup']:.2f}",
            _rate_of_jax(case),
            f"{case['osucaffe']['median_ms']:.3f}",
            f"{case['floor_ms']:.3f}",
            f"{case['floor_ms'] / case['osucaffe']['median_ms']:.0%}",
            f"{case['osucaffe']['peak_gib']:.2f} / {case['torch']['peak_gib']:.2f}",
            f"{case['osucaffe']['setup_seconds']} / {case['torch']['setup_seconds']}",
            case["date"],
        )
        for case in record["cases"]
    ]
    rates = "\n".join(
        f"- {precision}: {rate['flops_per_second'] / 1e12:.0f} TFLOP/s in a large matrix product, "
        f"{rate['bytes_per_second'] / 1e12:.2f} TB/s in a large copy"
        for precision, rate in record["rates"].items()
    )
    rate = next(iter(record["rates"].values()))
    first = record["cases"][0]
    jax = next((case["jax"]["version"] for case in record["cases"] if case.get("jax")), None)
    return f"""# osucaffe, PyTorch and JAX on one GPU

Written by `make bench-gpu` on {record["date"]}.

- {rate["device"]}; CUDA {rate["cuda"]}, cuDNN {rate["cudnn"]}, CuPy {rate["cupy"]}
- osucaffe {first["osucaffe"]["version"]}, PyTorch {first["torch"]["version"]}, JAX {jax or "–"}
{rates}
- {record["rounds"]} runs each of {record["seconds"]} s, in turns; medians of the runs' medians

{results.table(columns, rows)}

- A training iteration: forward, backward and an SGD update with momentum and weight decay, on one
  batch that lies on the device. PyTorch: channels_last, bf16 by autocast, in the fastest of eager,
  torch.compile, torch.compile with reduce-overhead, and a captured CUDA graph; "(of N)" tells how
  many of these were tried, and the JSON file beside this one their times. The speed-up is beside
  PyTorch. JAX: images N x H x W x C, bf16 from fp32 parameters, {BLOCK} iterations in one program.
- The floor: for each call the longer of its arithmetic at the rate of a large matrix product and
  its bytes at the rate of a large copy, and the update's bytes.
- Memory: the most that each framework held of its own; set-up: to the end of the first iteration
  (osucaffe / PyTorch).

## Where the rest goes

The types of layers that lose most beside their floors (`osucaffe time --gpu 0` shows each layer):
milliseconds forward and backward, one layer behind the other, and the floor of these.

{_rest(record["cases"])}

The passes of layers that lose most in each precision, what computes them, and what their floor is
made of:

{_passes(record["cases"])}
"""


def _net(case: dict[str, Any]) -> str:
    return f"{case['model']} {case['batch']}"


def _rates(case: dict[str, Any]) -> tuple[str, str, str, str]:
    """The net, the precision, and images per second of osucaffe and PyTorch."""
    ours, theirs = (f"{case[side]['images_per_second']:,}" for side in ("osucaffe", "torch"))
    return _net(case), case["precision"], ours, theirs


def _rate_of_jax(case: dict[str, Any]) -> str:
    return f"{case['jax']['images_per_second']:,}" if case.get("jax") else "–"


def _rest(cases: list[dict[str, Any]]) -> str:
    """The table of what is lost, by those cases whose layers were timed."""
    rows = []
    for case in cases:
        if "layers" not in case:
            continue
        lost = list(case["layers"].items())[:LOSERS]
        cells = [f"{kind} {taken:.3f} ({floor:.3f})" for kind, (taken, floor) in lost]
        cells += [""] * (LOSERS - len(cells))
        rows.append((_net(case), case["precision"], *cells))
    columns = ("net and batch size", "precision", "most", *["then"] * (LOSERS - 1))
    return results.table(columns, rows)


def _passes(cases: list[dict[str, Any]]) -> str:
    """The table of the passes that lose most of all nets, by precision."""
    rows = []
    for precision in PRECISIONS:
        found = [
            (each["ms"] - each["floor_ms"], _net(case), each)
            for case in cases
            if case["precision"] == precision
            for each in case.get("passes", ())
        ]
        for lost, net, each in sorted(found, key=lambda row: row[0], reverse=True)[:PASSES]:
            rows.append(
                (net, precision, each["layer"], each["type"], ", ".join(each["by"]),
                 f"{each['ms']:.3f}", f"{each['floor_ms']:.3f}", each["bound"], f"{lost:.3f}")
            )  # fmt: skip
    columns = (
        "net and batch size", "precision", "pass", "type", "by", "ms", "floor ms", "bound by",
        "lost ms",
    )  # fmt: skip
    return results.table(columns, rows)


def summary(record: dict[str, Any]) -> str:
    """The table of docs/speed.md."""
    columns = (
        "net and batch size", "precision", "osucaffe img/s", "PyTorch img/s", "ratio", "JAX img/s",
    )  # fmt: skip
    rows = [
        (*_rates(case), f"{case['speedup']:.2f}", _rate_of_jax(case)) for case in record["cases"]
    ]
    return results.table(columns, rows)


def main() -> None:
    """Measure all cases, write the results, print the table."""
    parser = results.parser(__doc__)
    parser.add_argument("--only", metavar="MODELS", help="the cases of these models, with commas")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="with commas")
    parser.add_argument("--modes", default=",".join(TORCH_MODES), help="PyTorch's, with commas")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a run (0.5)")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else None
    cases = [case for case in CASES if only is None or case[0] in only]
    modes, precisions = options.modes.split(","), options.precisions.split(",")
    jobs = [
        {"model": model, "batch": batch, "precision": precision, "threads": 4}
        for precision in precisions
        for model, batch in cases
    ]
    rates = {precision: measure_rates(precision) for precision in precisions}
    compile_ahead(jobs, modes)
    path, record = _so_far(options.out, rates)
    record |= {"rounds": options.rounds, "seconds": options.seconds}
    for job in jobs:
        print(f"{_name(job)} ...", file=sys.stderr, flush=True)
        case = measure_case(job, rates[job["precision"]], modes, options.rounds, options.seconds)
        kept = [each for each in record["cases"] if _name(each) != _name(case)]
        record["cases"] = sorted([*kept, case], key=_place)
        print(
            f"{_name(case)}: osucaffe {case['osucaffe']['median_ms']} ms, "
            f"PyTorch {case['torch']['median_ms']} ms ({case['torch']['mode']}), "
            f"speed-up {case['speedup']}, floor {case['floor_ms']} ms; "
            f"all modes {case['torch']['modes_tried_ms']}; memory {case['memory']}",
            flush=True,
        )
        results.write(path.stem, record, render(record), path.parent)
    print(f"\n{path.read_text()}")


def _name(case: dict[str, Any]) -> str:
    return f"{_net(case)} {case['precision']}"


def _place(case: dict[str, Any]) -> tuple[int, int]:
    """Where a case stands in the table."""
    return PRECISIONS.index(case["precision"]), CASES.index((case["model"], case["batch"]))


def _so_far(folder: Path, rates: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Today's file of results, and what the newest one of the device holds: a part of the cases
    may be measured again."""
    name = f"gpu-{results.slug(next(iter(rates.values()))['device'])}"
    files = sorted(folder.glob(f"{name}-*.json"))
    record: dict[str, Any] = {"date": "", "machine": {}, "rates": {}, "cases": []}
    record |= results.earlier(files[-1].stem, folder) if files else {}
    record |= results.begin()
    record["rates"] |= rates
    return folder / f"{name}-{results.today()}.md", record


if __name__ == "__main__":
    main()
