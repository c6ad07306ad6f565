"""Predict what the published systems' figures would be with our designs: `make papers`.

Without a GPU, in some minutes. docs/papers.md says what each figure is and why ours differ. Results
go to benchmarks/results.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.comm.algorithms import Operation
from osucaffe.comm.tuning import table
from osucaffe.comm.tuning.table import CHUNK, Choice, Selection
from osucaffe.parallel.batch import divide_batches, readers
from osucaffe.proto import NetParameter, parse_text, read_net
from osucaffe.study.cluster import read_cluster
from osucaffe.study.iteration import DESIGNS, Prediction, Simulation
from osucaffe.study.messages import Planner
from osucaffe.study.network import Network
from osucaffe.study.sketch import Sketch
from osucaffe.study.times import estimate_times

from . import results
from .prediction.bench_predict_cases import config_of

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(table.__file__).with_name("table.json")
"""Of the tuner: the one that comes with osucaffe, whatever was measured here."""
ITERATIONS, BUCKET = 6, 16 << 20
RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
EDSR = {
    "NCCL": (11, 20, 40, 76, 142, 269, 511, 989, 1807, 3608),
    "MPI": (11, 21, 41, 75, 126, 242, 490, 933, 1675, 3258),
    "MPI-Opt": (11, 22, 44, 83, 156, 296, 588, 1152, 2185, 4116),
}
"""Images per second, as published (EDSR on MVAPICH2-GDR, 2021)."""

GPUS = 8, 16, 24
"""On as many AR-gRPC was published (2018)."""
AR, RPC_BUCKET = 2.5, 4 << 20
"""Its bandwidth, in gRPC's; what a call carries at least: assumed."""


class Broadcasting(Selection):
    """One algorithm for broadcasts, the table's for the rest."""

    def __init__(self, algorithm: str) -> None:
        super().__init__(file=TABLE)
        self._algorithm = algorithm

    def choose(self, operation: Operation, nbytes: int, ranks: int, level: str) -> Choice:
        """The algorithm for an operation on arrays of nbytes."""
        if operation == Operation.BROADCAST:
            return Choice(self._algorithm, CHUNK)
        return super().choose(operation, nbytes, ranks, level)


def predict(
    model: str,
    cluster: str,
    ranks: int,
    design: str,
    batch: int,
    strong: bool = False,
    selection: Selection | None = None,
    changes: Sequence[str] = (),
) -> Prediction:
    """What `osucaffe predict` says (changes: by --set)."""
    made = read_cluster(ROOT / "clusters" / f"{cluster}.toml", changes)
    param = read_net(str(ROOT / "models" / model / "train_val.prototxt"))
    for _, message in readers(param):
        message.batch_size = batch
    sketch = Sketch(divide_batches(param, ranks) if strong else param)
    seconds = estimate_times(sketch, made)
    chosen = selection or Selection(file=TABLE)
    simulation = Simulation(sketch, seconds, made, ranks, chosen)
    config = DESIGNS[design] if design == "Horovod" else config_of(DESIGNS[design], BUCKET)
    return simulation.predict(design, config, ITERATIONS)


def collective(
    cluster: str, ranks: int, operation: Operation, nbytes: int, algorithm: str
) -> float:
    """Milliseconds of one operation by one algorithm among all ranks, without levels."""
    made = read_cluster(ROOT / "clusters" / f"{cluster}.toml")
    chosen = Selection(algorithm, file=TABLE)
    planner = Planner(made, ranks, chosen, hierarchical=False)
    plan, scale = planner.plan(operation, nbytes // 4)
    return float(Network(made, ranks).run(plan, np.zeros(ranks), scale).max() * 1e3)


def edsr() -> tuple[str, list[list[Any]]]:
    """Images per second by GPUs, beside the three published curves."""
    rows = []
    for index, ranks in enumerate(RANKS):
        cells: list[str] = []
        for design, sigma in ("all-reduce", 0.03), ("Horovod", 0.06):
            changes = [f"stragglers.sigma={sigma}"]
            found = predict("edsr", "power9-v100", ranks, design, batch=4, changes=changes)
            cells += [f"{found.images:.0f}", f"{found.images / EDSR['MPI-Opt'][index] - 1:+.0%}"]
        rows.append([ranks, *(EDSR[name][index] for name in EDSR), *cells])
    heads = ["GPUs", *EDSR, "all-reduce, 3 %", "to MPI-Opt", "Horovod, 6 %", "to MPI-Opt"]
    return "EDSR, images/s, 4 images a V100, which differ by 3 or 6 %", [heads, *rows]


def edsr_assumptions() -> tuple[str, list[list[Any]]]:
    """How far from MPI-Opt, by what is assumed."""
    rows, some = [], (4, 16, 64, 512)
    for design, batch, sigma in (
        ("all-reduce", 4, 0.06), ("all-reduce", 4, 0.09), ("Horovod", 4, 0.03),
        ("Horovod", 4, 0.09), ("Horovod", 16, 0.06),
    ):  # fmt: skip
        gaps = []
        for ranks in some:
            changes = [f"stragglers.sigma={sigma}"]
            found = predict("edsr", "power9-v100", ranks, design, batch, changes=changes)
            gaps.append(f"{found.images / EDSR['MPI-Opt'][RANKS.index(ranks)] - 1:+.0%}")
        rows.append([design, batch, f"{sigma:.0%}", *gaps])
    heads = ["design", "images a GPU", "GPUs differ by", *(f"{ranks} GPUs" for ranks in some)]
    return "EDSR, predicted to MPI-Opt, by what is assumed", [heads, *rows]


def resnet() -> tuple[str, list[list[Any]]]:
    """Scaling of ResNet-50 over V100s."""
    rows = []
    for ranks in (1, 64, 512):
        start = time.process_time()
        found = predict("resnet50", "power9-v100", ranks, "all-reduce", batch=64)
        published = {64: "90 % (64 Pascal GPUs)"}.get(ranks, "")
        took = time.process_time() - start
        cells = [f"{found.ms:.1f}", f"{found.images:.0f}", f"{found.efficiency:.0%}"]
        rows.append([ranks, *cells, published, f"{took:.0f}"])
    heads = ["GPUs", "ms", "images/s", "efficiency", "published", "s to predict"]
    return "ResNet-50, 64 images a V100", [heads, *rows]


def googlenet() -> tuple[str, list[list[Any]]]:
    """Strong scaling from 32 to 160 K80 GPUs by S-Caffe's designs, by what is assumed."""
    rows = []
    for design, batch, half, supply in (
        ("SC-B", 1280, 3.3, 0), ("SC-OB", 1280, 3.3, 0), ("SC-OBR", 1280, 3.3, 0),
        ("SC-OBR", 1280, 0, 0), ("SC-OBR", 1280, 10, 0), ("SC-OBR", 640, 3.3, 0),
        ("SC-OBR", 640, 5, 0), ("SC-OBR", 1280, 3.3, 75.8), ("SC-OBR", 1280, 3.3, 86),
    ):  # fmt: skip
        changes = [f"device.half_batch={half}"]
        if supply:
            changes += [f"reading.records_per_second={supply}", "reading.readers=64"]
        few, many = (
            predict("googlenet", "kesch-k80", ranks, design, batch, strong=True, changes=changes)
            for ranks in (32, 160)
        )
        rates = [f"{each.images:.0f}" for each in (few, many)]
        reading = f"64 of {supply}/s" if supply else "any"
        speed_up = f"{many.images / few.images:.1f}x"
        rows.append([design, batch, half, reading, *rates, speed_up])
    heads = ["design", "batch", "half_batch", "readers", "32 GPUs, images/s", "160 GPUs"]
    rows.append(["published", *[""] * 5, "2.5x"])
    return "GoogLeNet from 32 to 160 K80s, one batch for all", [[*heads, "speed-up"], *rows]


def alexnet() -> tuple[str, list[list[Any]]]:
    """AlexNet on K80s: 64 images a GPU, and 256 that all GPUs share."""
    rows = []
    for ranks in (1, 2, 4, 8, 16, 32, 64):
        weak = predict("alexnet", "kesch-k80", ranks, "SC-OBR", batch=64)
        strong = predict("alexnet", "kesch-k80", ranks, "SC-OBR", batch=256, strong=True)
        rows.append([ranks, *(f"{cell:.0f}" for cell in (weak.images, strong.images))])
    return "AlexNet, images/s, K80s, SC-OBR", [["GPUs", "64 a GPU", "256 in all"], *rows]


def vgg() -> tuple[str, list[list[Any]]]:
    """VGG-16 on 128 K80s by the algorithm of its broadcasts."""
    rows = []
    for algorithm in ("binomial", "knomial", "scatter_allgather", "chain_binomial", "chain"):
        chosen = Broadcasting(algorithm)
        found = [
            predict("vgg16", "kesch-k80", 128, design, batch=8, selection=chosen).ms
            for design in ("SC-B", "SC-OB")
        ]
        rows.append([algorithm, *(f"{each:.0f}" for each in found)])
    return "VGG-16, 8 images a K80, 128 GPUs, ms", [["broadcast", "SC-B", "SC-OB"], *rows]


def trees() -> tuple[str, list[list[Any]]]:
    """Reductions and broadcasts among 160 GPUs, by algorithm."""
    rows = []
    for operation in (Operation.REDUCE, Operation.BROADCAST):
        for nbytes in (256 << 10, 8 << 20, 64 << 20):
            times = [
                collective("kesch-k80", 160, operation, nbytes, algorithm)
                for algorithm in ("binomial", "chain", "chain_binomial")
            ]
            best = times[0] / min(times)
            size = f"{nbytes >> 10} KB" if nbytes < 1 << 20 else f"{nbytes >> 20} MB"
            cells = [f"{each:.2f}" for each in times]
            rows.append([f"{operation}, {size}", *cells, f"{best:.1f}x"])
    heads = ["operation", "binomial, ms", "chain", "chain_binomial", "best over binomial"]
    return "Trees among 160 K80 GPUs", [heads, *rows]


INCEPTION3 = """name: "Inception3"
layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 1 dim: 2048 } shape { dim: 1 } } }
layer { name: "all" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 11638 bias_term: false } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }"""
"""A net of as many weights (Szegedy et al., 2015): behind backward only their number counts."""


def servers() -> tuple[str, list[list[Any]]]:
    """How much faster ResNet-50 and Inception3 train with parameter servers over links 2.5 times as
    fast, and images per second of ResNet-50 over these."""
    file = str(ROOT / "clusters" / "edr-k80.toml")
    resnet = read_net(str(ROOT / "models/resnet50/train_val.prototxt"))
    nets = Sketch(resnet), Sketch(parse_text(INCEPTION3, NetParameter))

    def took(
        sketch: Sketch, where: str, workers: int, gb_s: float, design: str, batch: int
    ) -> float:
        links = [f"links.{name}.gb_s={gb_s}" for name in ("node", "network")]
        cluster = read_cluster(file, [*links, "stragglers.sigma=0"])
        sketch.batch = batch
        seconds = estimate_times(sketch, cluster)
        hosts = cluster.server_hosts(where, workers)
        given = sketch, seconds, cluster, workers, Selection(file=TABLE)
        config = replace(DESIGNS[design], bucket=RPC_BUCKET)
        return Simulation(*given, servers=hosts).predict(design, config).ms

    rows = []
    for design, where, gb_s, batch in (
        ("servers", "1", 1.0, 64), ("servers", "1/host", 2.3, 16), ("servers behind", "1", 1.0, 64),
        ("servers behind", "1", 2.3, 64), ("servers behind", "1", 2.8, 16),
        *(("servers behind", "1/host", gb_s, 16) for gb_s in (1.0, 1.5, 2.3, 2.8)),
        ("servers behind", "1/host", 1.0, 64),
    ):  # fmt: skip
        gains, rates = [], []
        for sketch in nets if design == "servers behind" else nets[:1]:
            for gpus in GPUS:
                slow, fast = (took(sketch, where, gpus, r * gb_s, design, batch) for r in (1, AR))
                gains.append(f"{slow / fast - 1:+.0%}")
                rates += [f"{gpus * batch / fast * 1e3:.0f}"] if sketch is nets[0] else []
        rows.append([design, where, f"{gb_s:g}", batch])
        rows[-1] += [" ".join(gains[:3]), " ".join(rates), " ".join(gains[3:])]
    heads = ["design", "servers", "GB/s of gRPC", "images a GPU", "ResNet-50 on 8, 16, 24 GPUs"]
    heads += ["images/s", "Inception3"]
    rows.append(["published", "", "up to 2.8", "16, 32 or 64", "+30% +34% +44%"])
    rows[-1] += ["up to 300 600 800", "+20% +34% +37%"]
    return "AR-gRPC's gain with servers, K80s, 2.5 times the rate", [heads, *rows]


def main() -> None:
    """Predict and write."""
    parser = results.parser(__doc__)
    args = parser.parse_args()
    record: dict[str, Any] = {"date": results.today(), "tables": {}}
    text = (
        f"# The papers' figures, predicted, {record['date']}\n\nBy `make papers`: clusters/*.toml "
        "say what is assumed of the machines, docs/papers.md what differs and why.\n"
    )
    for part in (trees, vgg, edsr, edsr_assumptions, resnet, googlenet, alexnet, servers):
        title, (heads, *rows) = part()
        record["tables"][title] = [heads, *rows]
        text += f"\n## {title}\n\n{results.table(heads, rows)}\n"
        print(f"{title}\n{results.table(heads, rows)}\n", flush=True)
    print(f"wrote {results.write('papers-predicted-' + record['date'], record, text, args.out)}")


if __name__ == "__main__":
    main()
