"""`make bench-train`: whole programs that train from files, `osucaffe train` as a user types
it against PyTorch programs that do the same job.

Each side is a process; osucaffe's first is started twice, as its first start fills caches (kernels,
plans), and the second is measured. Its speed is that of the second half of its iterations, its
seconds are those of the whole process; LeNet trains 10,000 iterations with all its tests. "share":
of the speed of the same net, precision and GPUs on a batch that lies on the device, in the same
run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from osucaffe.backends.cores import usable_cores
from osucaffe.proto import read_solver

from .. import nets, results
from ..data.bench_data_sides import MEAN, write_databases
from ..measure import Worker
from .bench_setup import make_databases

JOBS: dict[str, dict[str, Any]] = {
    "LeNet, MNIST": {"model": "lenet", "batch": 64, "data": "lenet", "iterations": 10_000},
    "CIFAR-10 quick": {
        "model": "cifar10_quick", "batch": 100, "data": "cifar10_quick", "iterations": 400,
    },
    "AlexNet, raw": {"model": "alexnet", "batch": 256, "data": "raw", "iterations": 1600},
    "AlexNet, JPEG": {"model": "alexnet", "batch": 256, "data": "JPEG", "iterations": 1000},
    "GoogLeNet, raw": {"model": "googlenet", "batch": 128, "data": "raw", "iterations": 800},
    "GoogLeNet, JPEG": {"model": "googlenet", "batch": 128, "data": "JPEG", "iterations": 500},
    "ResNet-50, JPEG": {"model": "resnet50", "batch": 128, "data": "JPEG", "iterations": 400},
}  # fmt: skip
"""Each with enough iterations that the second half is longer than what is made ahead."""
CPU_ITERATIONS = {"lenet": 1000, "cifar10_quick": 400}
RECORDS = 8192
DISPLAY = 20
_RATE = re.compile(r"Iteration (\d+) \(([\d.e+-]+) iter/s")
_ACCURACY = re.compile(r"accuracy = ([\d.]+)")


def write_solver(folder: Path, job: dict[str, Any], source: Path) -> Path:
    """The model's own solver and net, on this database; only LeNet tests and snapshots."""
    model = job["model"]
    net = nets.read_net(model, "train_val")
    solver = read_solver(nets.MODELS / model / "solver.prototxt")
    for layer in net.layer:
        if layer.type == "Data":
            tests = any(rule.phase == 1 for rule in layer.include)
            database = str(source)
            if model == "lenet" and tests:
                database = database.replace("mnist_train", "mnist_test")
            elif not tests:
                layer.data_param.batch_size = job["batch"]
            layer.data_param.source = database
            layer.transform_param.ClearField("mean_file")
            if model not in ("lenet", "cifar10_quick"):
                layer.transform_param.mean_value[:] = MEAN
    solver.iter_size = 1  # a batch an iteration, as in the PyTorch programs
    if model != "lenet":
        solver.ClearField("test_iter")
        solver.ClearField("test_interval")
        solver.snapshot, solver.snapshot_after_train = 0, False
        solver.display = DISPLAY
        solver.base_lr = 1e-4  # of noise nothing can be learned
    solver.net, solver.max_iter = str(folder / f"{model}.prototxt"), job["iterations"]
    solver.snapshot_prefix = str(folder / model)
    Path(solver.net).write_text(text_format.MessageToString(net))
    written = folder / f"{model}_solver.prototxt"
    written.write_text(text_format.MessageToString(solver))
    return written


def run(
    command: list[str], starts: int = 1
) -> tuple[subprocess.CompletedProcess[str], dict[str, float]]:
    """The program's last start: what it said, its seconds, and the cores it used meanwhile."""
    for _ in range(starts):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done, {"seconds": round(seconds, 2), "cores": round(used / seconds, 1)}


def ours(
    solver: Path, job: dict[str, Any], gpus: int, flags: list[str], starts: int
) -> dict[str, Any]:
    """`osucaffe train`, with these flags."""
    device = ["--gpu", ",".join(map(str, range(gpus)))] if gpus else []
    command = [sys.executable, "-m", "osucaffe", "train", "--solver", str(solver), *device, *flags]
    done, used = run(command, starts)
    found = [(int(i), float(rate)) for i, rate in _RATE.findall(done.stderr)]
    half = [rate for iteration, rate in found if iteration > job["iterations"] / 2]
    accuracy = _ACCURACY.findall(done.stderr)
    rate = statistics.median(half) * job["batch"] * max(gpus, 1)
    return used | {"rate": rate, "accuracy": float(accuracy[-1]) if accuracy else None}


def peer(job: dict[str, Any], source: Path, side: str, gpus: int, precision: str) -> dict[str, Any]:
    """The PyTorch program."""
    small = job["model"] in ("lenet", "cifar10_quick")
    lenet = job["model"] == "lenet"
    settings = job | {
        "source": str(source), "side": side, "gpus": gpus or 1, "precision": precision,
        "device": "cuda" if gpus else "cpu", "display": 100 if lenet else DISPLAY,
        # DDP is not captured.
        "graph": gpus == 1 and (side == "resident" or not small),
        "crop": 0 if small else nets.input_shape(job["model"])[1],
        "mean": [] if small else MEAN, "mirror": not small, "scale": 1 / 256 if lenet else 1,
        "workers": max(1, usable_cores() // (gpus or 1)),
        "test_interval": 500 if lenet and gpus else 0,
        "test_source": str(source).replace("mnist_train", "mnist_test"),
    }  # fmt: skip
    done, used = run([sys.executable, "-m", "benchmarks.training.train_peer", json.dumps(settings)])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return used | found


def resident(job: dict[str, Any], precision: str) -> float:
    """Images per second of one GPU on a batch that lies on it."""
    described = {"framework": "osucaffe gpu", "precision": precision, "threads": 4}
    with Worker(described | {key: job[key] for key in ("model", "batch")}) as worker:
        worker.run(1.0)
        return float(job["batch"] / statistics.median(worker.times[-1]))


def sides(name: str, gpus: int, precision: str) -> Iterator[tuple[str, list[str]]]:
    """osucaffe's: as typed, and as for a set that fits into no GPU, with cores to decode, too."""
    flags = [] if not gpus or precision == "tf32" else ["--precision", precision]
    yield "osucaffe", flags
    if gpus and name != "LeNet, MNIST":
        flags = [*flags, "--cache", "none"]
        yield "osucaffe, --cache none", flags
        if name.endswith("JPEG"):
            yield "osucaffe, --cache none --decode host", [*flags, "--decode", "host"]


def measure(
    name: str, gpus: int, precision: str, sources: dict[str, Path], folder: Path, wanted: str = ""
) -> Iterator[dict[str, Any]]:
    """Each side of a job on so many GPUs (0: on the CPU). wanted: how the names of sides begin."""
    job = dict(JOBS[name])
    if not gpus:
        job["iterations"] = CPU_ITERATIONS[job["model"]]
    source = sources[job["data"]]
    case = {
        "job": name, "gpus": gpus, "precision": precision if gpus else "fp32",
        "host": usable_cores(),
    }  # fmt: skip
    whole = resident(job, precision) * gpus if gpus else None
    solver = write_solver(folder, job, source)
    starts = 2
    for side, flags in sides(name, gpus, precision):
        if not side.startswith(wanted):
            continue
        found = ours(solver, job, gpus, flags, starts)
        starts = 1
        share = round(found["rate"] / whole, 3) if whole else None
        yield case | {"side": side, "share": share} | found
    kinds = ["loader"]
    if gpus == 1 and job["model"] == "lenet":
        kinds.append("resident")
    if gpus == 1 and job["data"] == "JPEG" and importlib.util.find_spec("torchvision"):
        kinds.append("nvJPEG")
    for kind in kinds:
        side = f"PyTorch, {kind}"
        if side.startswith(wanted):
            yield case | {"side": side, "share": None} | peer(job, source, kind, gpus, precision)


def with_case(cases: list[dict[str, Any]], case: dict[str, Any]) -> list[dict[str, Any]]:
    """The cases with one that is new, or takes the place of the one measured before."""
    same = ("job", "gpus", "precision", "side")
    kept = [each for each in cases if any(each[name] != case[name] for name in same)]
    return sorted([*kept, case], key=lambda each: (list(JOBS).index(each["job"]), each["gpus"]))


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    columns = ["job", "GPUs", "precision", "side", "images/s", "share", "seconds", "cores",
               "accuracy"]  # fmt: skip
    rows = [
        [
            case["job"], case["gpus"] or "CPU", case["precision"], case["side"],
            f"{case['rate']:,.0f}", f"{case['share']:.1%}" if case["share"] else "",
            case["seconds"], f"{case['cores']} of {case['host']}",
            f"{case['accuracy']:.2%}" if case["accuracy"] else "",
        ]
        for case in record["cases"]
    ]  # fmt: skip
    return f"""# Training from files, as it is typed

Written by `make bench-train` on {record["date"]}. {record["machine"]["cpu"]}; {record["device"]}.

{results.table(columns, rows)}

- images/s: in the second half of the iterations. share: of the speed on a batch that lies on each
  device. seconds: of the whole process, its caches filled. cores: processor seconds a second,
  of all processes.
- osucaffe: `osucaffe train --solver S --gpu …` and, for bf16, `--precision bf16`; nothing else.
- PyTorch, loader: DataLoader with as many workers as cores, which return bytes; mean, mirror and
  scale on the device; channels_last, an iteration as a captured graph (LeNet: eager, as such
  scripts are written; several GPUs: DDP). resident: the whole set on the device, batches are drawn
  in the captured graph. nvJPEG: the workers return JPEGs, which torchvision decodes on the GPU, two
  batches ahead.
- LeNet: 10,000 iterations with their 21 tests of 10,000 images. Images of {RECORDS:,} records of
  256 x 256.
"""


def main() -> None:
    """Measure, write after each job, print."""
    parser = results.parser(__doc__)
    parser.add_argument("--jobs", default=",".join(JOBS).replace(", ", "/"), help="with commas")
    has_gpus = importlib.util.find_spec("cupy") is not None
    parser.add_argument(
        "--gpus",
        default="1" if has_gpus else "0",
        help="numbers of GPUs, with commas; 0: the CPU (default: 1, or 0 without CuPy)",
    )
    parser.add_argument("--precisions", default="tf32,bf16")
    parser.add_argument("--side", default="", help="only those whose names begin so")
    options = parser.parse_args()
    names = [each.replace("/", ", ") for each in options.jobs.split(",")]
    counts = [int(each) for each in options.gpus.split(",")]
    device = "no GPU"
    if any(counts):
        import cupy

        device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    kind = results.slug(device) if any(counts) else "cpu"
    file = f"train-{kind}-{results.today()}"
    cases = results.earlier(file, options.out).get("cases", [])
    record = results.begin(device=device, cases=cases)
    os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sources = make_databases(folder)
        if any(JOBS[name]["data"] in ("raw", "JPEG") for name in names):
            (folder / "images").mkdir()
            sources |= write_databases(folder / "images", RECORDS, RECORDS)
        for gpus in counts:
            for name in names:
                for precision in options.precisions.split(",") if gpus else ["fp32"]:
                    if not gpus and JOBS[name]["model"] not in CPU_ITERATIONS:
                        continue
                    for case in measure(name, gpus, precision, sources, folder, options.side):
                        record["cases"] = with_case(record["cases"], case)
                        print(json.dumps(case), flush=True)
                        results.write(file, record, render(record), options.out)
    print(render(record))


if __name__ == "__main__":
    main()
