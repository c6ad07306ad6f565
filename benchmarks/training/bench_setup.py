"""`make bench-setup`: seconds from `osucaffe train` to the end of the first iteration on GPUs,
with all caches empty and again with what the first start left there.

Every start is a process of its own, as a user types it: nets of models/ with their solvers (but for
the number of iterations and the test before the first), records from LMDBs on disk. --tree runs
another checkout of osucaffe beside this one, in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.sets import mnist
from osucaffe.proto import read_solver

from .. import nets, results
from ..data.bench_data_sides import write_databases
from . import gpu
from .bench_gpu import CASES, PRECISIONS

RECORDS = 512
HERE = Path(__file__).resolve().parents[2]


def make_databases(folder: Path) -> dict[str, Path]:
    """Records by the model that they are for; "images": for all others."""
    mnist.make(folder / "mnist", source="packaged")
    generator = np.random.default_rng(0)
    small = folder / "small_lmdb"
    pixels = generator.integers(256, size=(RECORDS, 3, 32, 32), dtype=np.uint8)
    write_database(
        small, ((record_key(i), make_datum(image, i % 10)) for i, image in enumerate(pixels))
    )
    images = write_databases(folder, RECORDS, 1)["raw"]
    digits = folder / "mnist" / "mnist_train_lmdb"
    return {"lenet": digits, "cifar10_quick": small, "images": images}


def write_solver(folder: Path, model: str, batch: int, databases: dict[str, Path]) -> Path:
    """The model's solver for one iteration, and its nets, which read these databases."""
    net = nets.read_net(model, "train_val")
    for layer in net.layer:
        train = any(rule.phase == 0 for rule in layer.include)
        if layer.type == "Data":
            layer.data_param.source = str(databases.get(model, databases["images"]))
            layer.transform_param.ClearField("mean_file")
            if train:
                layer.data_param.batch_size = batch
        elif layer.type == "PatchData":
            layer.patch_data_param.source = str(databases["images"])
    solver = read_solver(nets.MODELS / model / "solver.prototxt")
    solver.net = str(folder / f"{model}.prototxt")
    solver.snapshot_prefix = str(folder / model)
    solver.max_iter = solver.display = 1
    solver.test_initialization = solver.snapshot_after_train = False
    Path(solver.net).write_text(text_format.MessageToString(net))
    path = folder / f"{model}_solver.prototxt"
    path.write_text(text_format.MessageToString(solver))
    return path


def start(tree: Path, solver: Path, precision: str, cache: Path) -> dict[str, Any]:
    """One start: seconds in all, and where they went."""
    folders = {
        name: str(cache / name)
        for name in ("OSUCAFFE_CACHE", "CUDA_CACHE_PATH", "CUPY_CACHE_DIR", "XDG_CACHE_HOME")
    }
    path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(Path(__file__).with_name("setup_child.py"))]
    command += ["--solver", str(solver), "--gpu", "0", "--precision", precision]
    environment = os.environ | folders | {"PYTHONPATH": path, "OSUCAFFE_BEGUN": str(time.time())}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tree)
    for line in done.stdout.splitlines():
        if line.startswith('{"total"'):
            found: dict[str, Any] = json.loads(line)
            return found
    raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def measure(
    model: str, batch: int, precision: str, trees: dict[str, Path], databases: dict[str, Path]
) -> Iterator[dict[str, Any]]:
    """A cold start and a warm one of each checkout."""
    for name, tree in trees.items():
        with tempfile.TemporaryDirectory() as cache:
            solver = write_solver(Path(cache), model, batch, databases)
            runs = [start(tree, solver, precision, Path(cache)) for _ in ("cold", "warm")]
        yield {
            "model": model, "batch": batch, "precision": precision, "tree": name,
            "cold": runs[0], "warm": runs[1],
        }  # fmt: skip


def render(record: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = [
        [
            f"{case['model']} {case['batch']}", case["precision"], case["tree"],
            *(f"{case[kind]['total']:.1f}" for kind in ("cold", "warm")),
        ]
        for case in record["cases"]
    ]  # fmt: skip
    totals = results.table(["net and batch size", "precision", "version", "cold", "warm"], rows)
    latest = [case for case in record["cases"] if case["tree"] == "this"]
    parts = list(dict.fromkeys(part for case in latest for part in case["cold"]["parts"]))
    columns = ["where it goes", *(f"{c['model']} {c['precision']}" for c in latest)]
    cells = [
        [
            part,
            *(
                " / ".join(f"{case[kind]['parts'].get(part, 0):.2f}" for kind in ("cold", "warm"))
                for case in latest
            ),
        ]
        for part in parts
    ]
    return (
        f"# Seconds from the command to the end of the first iteration\n\n"
        f"{record['date']}, {record['device']}, {record['machine']['cores']} cores; "
        f"{', '.join(record['versions'])}. `make bench-setup`.\n\n"
        f"Cold: all caches are empty, CUDA's own too. Warm: the same again.\n\n{totals}\n\n"
        "Cold / warm, in seconds; times of all threads add up what they do at the same time, and "
        f"parts contain others.\n\n{results.table(columns, cells)}\n"
    )


def main() -> None:
    """Measure what the options say, and write it down."""
    parser = results.parser(__doc__)
    parser.add_argument("--only", default=",".join(model for model, _ in CASES))
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER")
    options = parser.parse_args()
    trees = {"this": HERE}
    trees |= {name: Path(folder) for name, _, folder in (t.partition("=") for t in options.tree)}
    versions = gpu.versions()
    name = f"setup-{results.slug(versions['device'])}-{results.today()}"
    cases = {_place(case): case for case in results.earlier(name, options.out).get("cases", [])}
    with tempfile.TemporaryDirectory() as folder:
        databases = make_databases(Path(folder))
        for model, batch in CASES:
            for precision in options.precisions.split(","):
                if model in options.only.split(","):
                    for case in measure(model, batch, precision, trees, databases):
                        cases[_place(case)] = case
                        print(_line(case), flush=True)
    record = results.begin(**versions, cases=[case for _, case in sorted(cases.items())])
    results.write(name, record, render(record), options.out)


def _place(case: dict[str, Any]) -> tuple[int, int, str]:
    """Where a case stands in the table; what is measured again replaces today's earlier one."""
    number = [model for model, _ in CASES].index(case["model"])
    return number, PRECISIONS.index(case["precision"]), case["tree"]


def _line(case: dict[str, Any]) -> str:
    parts = {name: round(value, 2) for name, value in case["cold"]["parts"].items()}
    totals = " ".join(f"{kind} {case[kind]['total']:.2f} s" for kind in ("cold", "warm"))
    return f"{case['model']} {case['precision']} {case['tree']}: {totals} {parts}"


if __name__ == "__main__":
    main()
