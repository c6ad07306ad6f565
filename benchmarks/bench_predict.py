"""Hold predictions against real runs: ranks of this machine, and hosts made of network namespaces.

  python -m benchmarks.bench_predict                needs mpiexec; namespaces need root

Links, additions and layers are measured first, then predicted and measured: single collective
operations, and iterations of LeNet by each design. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.comm.tuning import Selection
from osucaffe.predict.cluster import Cluster, Device, Link
from osucaffe.predict.iteration import DESIGNS, Simulation
from osucaffe.predict.network import Network
from osucaffe.predict.plan import Planner
from osucaffe.predict.sketch import Sketch
from osucaffe.predict.times import Seconds
from osucaffe.proto import read_net
from tests.comm.hosts import hosts
from tests.comm.ranks import mpiexec

from . import results
from .bench_comm import rows_of
from .bench_predict_cases import BUCKET, config_of

MODULE = "benchmarks.bench_predict_ranks"
SOLVER, NET = "models/lenet/solver.prototxt", "models/lenet/train_val.prototxt"
RATE = "200mbit"
HEADS = {
    "collectives": ["predicted"],
    "iterations": ["predicted", "predicted, with what layers took in the run"],
}

ABOUT = """Milliseconds on {cpu}, {cores} cores, which all ranks share, and others' work (a load of
{load}); one thread each. Everything is the least of some: of operations, passes and iterations the
slowest rank's. Links, additions, layers, and what computation and communication lose beside each
other, were measured first, all ranks at once, in the same run. After a rest, a link lets 64 KB
through at once, which the model does not know.

The second prediction of an iteration takes data, forward, backward and update to be as long as they
were in that iteration itself: what is left is the error of the model of communication.
"""


def cluster_of(found: dict[str, Any]) -> Cluster:
    """What the measured links and additions make: latency of the smallest message, bandwidth of
    what the largest takes more than the next smaller."""
    pings = sorted((int(nbytes), took) for nbytes, took in found["ping"].items())
    (below, fast), (most, slow) = pings[-2:]
    link = Link(pings[0][1], (most - below) / (slow - fast) / 1e3)
    rate = found["adding"] / 1e9
    lost = {"stolen": found["stolen"], "held": found["held"]}
    device = Device(memory_gb_s=3 * rate, add_gb_s=rate, **lost)
    return Cluster("measured", 1, device, link, link)


def compare(found: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Rows of what was measured and predicted."""
    cluster = cluster_of(found)
    record: dict[str, Any] = {
        "latency_us": cluster.network.latency_us, "gb_s": cluster.network.gb_s,
        "add_gb_s": cluster.device.add_gb_s, "stolen": cluster.device.stolen,
        "held": cluster.device.held, "collectives": [], "iterations": [],
    }  # fmt: skip
    for operation, algorithm, nbytes, measured in found["collectives"]:
        plan, scale = Planner(cluster, ranks, Selection(algorithm)).plan(operation, nbytes // 4)
        predicted = Network(cluster, ranks).run(plan, np.zeros(ranks), scale).max() * 1e6
        row = [f"{operation}, {algorithm}, {nbytes >> 10} KB", measured / 1e3, predicted / 1e3]
        record["collectives"].append(row)
    sketch = Sketch(read_net(NET))
    seconds = {
        (way, layer): times[2 + index] / 1e3
        for layer, times in enumerate(found["layers"])
        for index, way in enumerate(("forward", "backward"))
    }
    for design, parts in found["iterations"].items():
        predicted = []
        for times, made in (seconds, cluster), beside(seconds, parts, cluster, len(sketch.arena)):
            simulation = Simulation(sketch, times, made, ranks, Selection(), hierarchical=False)
            predicted.append(simulation.predict(design, config_of(DESIGNS[design], BUCKET)).ms)
        record["iterations"].append([design, parts["ms"], *predicted])
    return record


def beside(
    seconds: Seconds, parts: dict[str, float], cluster: Cluster, elements: int
) -> tuple[Seconds, Cluster]:
    """The layers' times, and the rate of updates, as they were while others communicated."""
    scaled = {}
    for way, extra in ("forward", parts["data"]), ("backward", 0.0):
        whole = sum(each for (direction, _), each in seconds.items() if direction == way)
        scale = (parts[way] + extra) / whole / 1e3
        scaled |= {key: scale * each for key, each in seconds.items() if key[0] == way}
    rate = 5 * 4 * elements / parts["update"] / 1e6
    device = replace(cluster.device, memory_gb_s=rate, stolen=0.0)  # what was lost is in the times
    return scaled, replace(cluster, device=device)


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    machine = record["machine"]
    text = f"# Predicted and measured, {record['date']}\n\n{ABOUT.format(**machine)}"
    for title, part in record["runs"].items():
        text += (
            f"\n## {title}\n\nMeasured before: latency {part['latency_us']:.0f} us, "
            f"{part['gb_s']:.3f} GB/s, additions {part['add_gb_s']:.1f} GB/s; computation loses "
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="folder of the results")
    args = parser.parse_args()
    record: dict[str, Any] = {"date": results.today(), "machine": results.machine(), "runs": {}}
    for count in (2, 4):
        with (
            tempfile.TemporaryDirectory() as folder,
            hosts(count, RATE, Path(folder), burst="64kb") as made,
        ):
            if made is not None:
                found: Any = rows_of(made.mpiexec(1, "-m", MODULE, SOLVER))
                record["runs"][f"{count} hosts, links of {RATE}"] = compare(found, count)
    found = rows_of(mpiexec(2, "-m", MODULE, SOLVER, timeout=600))
    record["runs"]["2 ranks of one host"] = compare(found, 2)
    record["machine"]["load"] = round(os.getloadavg()[1], 1)
    text = render(record)
    print(text)
    print(f"wrote {results.write('predict-cpu-' + record['date'], record, text, args.out)}")


if __name__ == "__main__":
    main()
