"""Hold predictions against real runs: ranks of this machine, and hosts made of network namespaces.

  python -m benchmarks.prediction.bench_predict                needs mpiexec; namespaces need root

Links, additions and layers are measured first, then predicted and measured: single collective
operations, and iterations of LeNet by each design. Results go to benchmarks/results.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.comm.tuning.table import Selection
from osucaffe.proto import read_net
from osucaffe.study.cluster import Cluster, Device, Link
from osucaffe.study.messages import Planner
from osucaffe.study.network import Network
from osucaffe.study.sketch import Sketch

from .. import results
from ..hosts import hosts
from ..ranks import mpiexec
from ..rows import rows_of
from . import bench_predict_training as training
from .bench_predict_links import in_a_row

MODULE = "benchmarks.prediction.bench_predict_ranks"
SOLVER, NET = "models/lenet/solver.prototxt", "models/lenet/train_val.prototxt"
RATE, BURST_KB = "50mbit", 64
"""So slow that others' work on the machine changes little of what a message takes."""
NEAR_US, NEAR_GB_S = 20.0, 1.0
"""Between ranks of a host: so fast beside these links that it matters little."""
NAP_US = 1000
"""As comm/mpi.py has it."""
HEADS = {
    "collectives": ["predicted"],
    "iterations, layers asleep": ["predicted"],
    "iterations": ["predicted", "predicted, with what layers took in the run"],
}

ABOUT = """Milliseconds on {cpu}, {cores} cores, which all ranks share, and others' work (a load of
{load}); one thread each. Everything is the least of some: of operations, passes and iterations the
slowest rank's. Links, additions, layers, and what computation and communication lose beside each
other, were measured first, all ranks at once, in the same run. Between hosts, a link lets 64 KB
through at once after a rest.

Layers that are asleep take 20 ms forward and 40 ms backward, and little of the cores: the error of
those iterations (a tenth are faster), with what each rank's layers took in them, is mostly that of
the model of what travels when.

The second prediction of an iteration takes what each rank computed to be as long as it was in that
iteration itself, layer by layer: what is left is the error of the model of communication.
"""


def cluster_of(found: dict[str, Any], burst_kb: float) -> Cluster:
    """What the measured links and additions make: latency of the smallest message, bandwidth of
    what the largest takes more than the next smaller; buffers of the most bytes that were there at
    half of their time, or sooner, when they were wanted. burst_kb: as links are shaped."""
    steps = sorted((int(nbytes), took) for nbytes, took in found["step"].items())
    (below, fast), (most, slow) = steps[-2:]
    rate = (most - below) / (slow - fast) / 1e3
    late = [(int(nbytes), took) for nbytes, took in found["late"].items()]
    came = max((nbytes for nbytes, took in late if took < nbytes / rate / 2e3), default=0)
    link = Link(steps[0][1], rate, buffer_kb=came / 1024, burst_kb=burst_kb)
    adds = found["adding"] / 1e9
    lost = {name: found.get(name, 0.0) for name in ("stolen", "held")}
    device = Device(memory_gb_s=3 * adds, add_gb_s=adds, nap_us=NAP_US, **lost)
    return Cluster("measured", 1, device, link, link)


def compare(found: dict[str, Any], ranks: int, burst_kb: float = 0.0) -> dict[str, Any]:
    """Rows of what was measured and predicted."""
    cluster = cluster_of(found, burst_kb)
    record: dict[str, Any] = {
        "latency_us": cluster.network.latency_us, "gb_s": cluster.network.gb_s,
        "buffer_kb": cluster.network.buffer_kb,
        "add_gb_s": cluster.device.add_gb_s, "stolen": cluster.device.stolen,
        "held": cluster.device.held, **{kind: [] for kind in HEADS},
    }  # fmt: skip
    for operation, algorithm, nbytes, measured in found["collectives"]:
        plan, scale = Planner(cluster, ranks, Selection(algorithm)).plan(operation, nbytes // 4)
        network, at = Network(cluster, ranks), np.zeros(ranks)
        for _ in range(in_a_row(nbytes)):
            at = network.run(plan, at, scale)
        predicted = at.max() / in_a_row(nbytes) * 1e6
        row = [f"{operation}, {algorithm}, {nbytes >> 10} KB", measured / 1e3, predicted / 1e3]
        record["collectives"].append(row)
    for asleep in training.predict_asleep(found["asleep"], cluster, ranks):
        record["iterations, layers asleep"].append(list(asleep))
    for design, parts in found["iterations"].items():
        sketch = Sketch(read_net(NET), sizes=parts["sizes"])
        seconds = {
            (way, layer): times[2 + index] / 1e3
            for layer, times in enumerate(found["layers"])
            for index, way in enumerate(("forward", "backward"))
        }
        row = [design, parts["ms"]]
        for times, made in (
            (seconds, cluster),
            training.in_the_run(seconds, parts, cluster, len(sketch.arena)),
        ):
            row.append(training.predict(sketch, times, made, ranks, design))
        record["iterations"].append(row)
    return record


def compare_servers() -> list[list[Any]]:
    """Rows of what iterations with servers took between hosts, and what is predicted."""
    rows: list[list[Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        hosts(3, RATE, Path(folder), burst=f"{BURST_KB}kb") as made,
    ):
        if made is None:
            return rows
        made.shape_inward(RATE, f"{BURST_KB}kb")
        cluster: Cluster | None = None
        for on_host, servers in ((1, 1), (2, 1), (2, 2)):
            words = "-m", "benchmarks.prediction.bench_predict_training", str(servers)
            found = rows_of(made.mpiexec(on_host, *words, timeout=900))
            cluster = cluster or cluster_of(found, BURST_KB)
            near = replace(cluster.node, latency_us=NEAR_US, gb_s=NEAR_GB_S)
            here = replace(cluster, ranks_per_host=on_host, node=near)
            ranks = on_host * len(made.names)
            title = f"{ranks - servers} workers and {servers} on 3 hosts"
            for design, *times in training.predict_served(found["served"], here, ranks, servers):
                rows.append([f"{title}, {design}", *times])
    return rows


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    machine = record["machine"]
    text = f"# Predicted and measured, {record['date']}\n\n{ABOUT.format(**machine)}"
    cells = [
        [name, f"{measured:.0f}", f"{predicted:.0f} ({predicted / measured - 1:+.0%})"]
        for name, measured, predicted in record["servers"]
    ]
    text += f"\n## Parameter servers, layers asleep, links of {RATE} each way\n\n"
    text += "The mean of a row of iterations.\n\n"
    text += f"{results.table(['iterations', 'measured', 'predicted'], cells)}\n"
    for title, part in record["runs"].items():
        text += (
            f"\n## {title}\n\nMeasured before: latency {part['latency_us']:.0f} us, "
            f"{part['gb_s']:.3f} GB/s, buffers of {part['buffer_kb']:.0f} KB, "
            f"additions {part['add_gb_s']:.1f} GB/s; computation loses "
            f"{part['stolen']:.0%} of the time of what travels beside it, which loses "
            f"{part['held']:.0%} of the computation's.\n"
        )
        for kind, heads in HEADS.items():
            rows = part[kind]
            cells = [
                [name, f"{measured:.2f}"]
                + [f"{each:.2f} ({each / measured - 1:+.0%})" for each in predicted]
                for name, measured, *predicted in rows
            ]
            text += f"\n{results.table([kind, 'measured', *heads], cells)}\n\n"
            for index, head in enumerate(heads):
                errors = [abs(row[2 + index] / row[1] - 1) for row in rows]
                text += f"- {head}: error {np.median(errors):.0%} (median), {max(errors):.0%}\n"
    return text


def main() -> None:
    """Measure, predict, write."""
    parser = results.parser(__doc__)
    args = parser.parse_args()
    record = results.begin(runs={})
    for count in (2, 4):
        with (
            tempfile.TemporaryDirectory() as folder,
            hosts(count, RATE, Path(folder), burst=f"{BURST_KB}kb") as made,
        ):
            if made is not None:
                found = rows_of(made.mpiexec(1, "-m", MODULE, SOLVER, timeout=1200))
                record["runs"][f"{count} hosts, links of {RATE}"] = compare(found, count, BURST_KB)
    record["servers"] = compare_servers()
    found = rows_of(mpiexec(2, "-m", MODULE, SOLVER, timeout=600))
    record["runs"]["2 ranks of one host"] = compare(found, 2)
    record["machine"]["load"] = round(os.getloadavg()[1], 1)
    results.show("predict-cpu", record, render(record), args.out)


if __name__ == "__main__":
    main()
