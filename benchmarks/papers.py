"""Predict what the published systems' figures would be with our designs: `make papers`.

Without a GPU, in some minutes. docs/papers.md says what each figure is and why ours differ. Results
go to benchmarks/results.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.comm.tuning import table
from osucaffe.comm.tuning.table import CHUNK, Choice, Selection
from osucaffe.parallel.batch import divide_batches, readers
from osucaffe.parallel.config import ParallelConfig
from osucaffe.predict.cluster import read_cluster
from osucaffe.predict.iteration import DESIGNS, Prediction, Simulation
from osucaffe.predict.network import Network
from osucaffe.predict.plan import Planner
from osucaffe.predict.sketch import Sketch
from osucaffe.predict.times import estimate_times
from osucaffe.proto import read_net

from . import results
from .bench_predict_cases import config_of

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
"""Images a second, as published (EDSR on MVAPICH2-GDR, 2021)."""

GPUS, AR_GRPC = (8, 16, 24), ("+30%", "+34%", "+44%")
"""ResNet-50's gain by AR-gRPC over gRPC on as many GPUs, as published (2018)."""
AR, RPC_BUCKET = 2.5, 4 << 20
"""Its bandwidth, in gRPC's; what a call carries at least: assumed."""
K80_RESNET = 52.0
"""Images a second of ResNet-50 on half a K80: assumed."""


class Broadcasting(Selection):
    """One algorithm for broadcasts, the table's for the rest."""

    def __init__(self, algorithm: str) -> None:
        super().__init__(file=TABLE)
        self._algorithm = algorithm

    def choose(self, operation: str, nbytes: int, ranks: int, level: str) -> Choice:
        """The algorithm for an operation on arrays of nbytes."""
        if operation == "broadcast":
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
) -> Prediction:
    """What `osucaffe predict` says."""
    made = read_cluster(ROOT / "clusters" / f"{cluster}.toml")
    param = read_net(str(ROOT / "models" / model / "train_val.prototxt"))
    for _, message in readers(param):
        message.batch_size = batch
    sketch = Sketch(divide_batches(param, ranks) if strong else param)
    seconds = estimate_times(sketch, made)
    chosen = selection or Selection(file=TABLE)
    simulation = Simulation(sketch, seconds, made, ranks, chosen)
    return simulation.predict(design, config_of(DESIGNS[design], BUCKET), ITERATIONS)


def collective(cluster: str, ranks: int, operation: str, nbytes: int, algorithm: str) -> float:
    """Milliseconds of one operation by one algorithm among all ranks, without levels."""
    made = read_cluster(ROOT / "clusters" / f"{cluster}.toml")
    chosen = Selection(algorithm, file=TABLE)
    planner = Planner(made, ranks, chosen, hierarchical=False)
    plan, scale = planner.plan(operation, nbytes // 4)
    return float(Network(made, ranks).run(plan, np.zeros(ranks), scale).max() * 1e3)


def edsr() -> tuple[str, list[list[Any]]]:
    """Images a second by GPUs, beside the three published curves."""
    rows = []
    for index, ranks in enumerate(RANKS):
        found = predict("edsr", "power9-v100", ranks, "all-reduce", batch=4)
        known = EDSR["MPI-Opt"][index]
        gap = f"{found.images / known - 1:+.0%}"
        published = [EDSR[name][index] for name in EDSR]
        band = f"{found.images:.0f} ({found.images * found.ms / found.high:.0f} - "
        rows.append([ranks, *published, f"{band}{found.images * found.ms / found.low:.0f})", gap])
    heads = ["GPUs", *EDSR, "predicted", "to MPI-Opt"]
    return "EDSR, images/s, 4 images a V100", [heads, *rows]


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
    """Strong scaling from 32 to 160 K80 GPUs by S-Caffe's designs."""
    rows = []
    for design in ("SC-B", "SC-OB", "SC-OBR", "all-reduce"):
        few, many = (
            predict("googlenet", "kesch-k80", ranks, design, batch=1280, strong=True)
            for ranks in (32, 160)
        )
        published = "2.5x" if design == "SC-OBR" else ""
        rates = [f"{each.images:.0f}" for each in (few, many)]
        rows.append([design, *rates, f"{many.images / few.images:.1f}x", published])
    heads = ["design", "32 GPUs, images/s", "160 GPUs, images/s", "speed-up", "published"]
    return "GoogLeNet, global batch 1,280, K80s", [heads, *rows]


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
    for operation in ("reduce", "broadcast"):
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


def servers() -> tuple[str, list[list[Any]]]:
    """How much faster ResNet-50 trains with parameter servers over links 2.5 times as fast."""
    made = read_cluster(ROOT / "clusters" / "edr-k80.toml")
    device = replace(made.device, images_per_second={"ResNet-50": K80_RESNET})
    param = read_net(str(ROOT / "models/resnet50/train_val.prototxt"))
    for _, message in readers(param):
        message.batch_size = 64
    sketch = Sketch(param)

    def took(count: int, workers: int, gb_s: float) -> float:
        links = replace(made.network, gb_s=gb_s)
        cluster = replace(made, device=device, node=links, network=links, sigma=0.0)
        seconds = estimate_times(sketch, cluster)
        given = sketch, seconds, cluster, workers, Selection(file=TABLE)
        config = ParallelConfig(bucket=RPC_BUCKET)
        return (
            Simulation(*given, servers=[made.host(workers + each) for each in range(count)])
            .predict("servers", config)
            .ms
        )

    rows = [
        [count, f"{gb_s:g}"]
        + [f"{took(count, each, gb_s) / took(count, each, AR * gb_s) - 1:+.0%}" for each in GPUS]
        for count in (1, 4)
        for gb_s in (0.5, 1.0, 2.0)
    ]
    heads = ["servers", "default, GB/s", *(f"{each} GPUs" for each in GPUS)]
    published = ["published", "", *AR_GRPC]
    return "ResNet-50 with servers, 64 images a K80, 2.5 times the rate", [heads, *rows, published]


def main() -> None:
    """Predict and write."""
    parser = results.parser(__doc__)
    args = parser.parse_args()
    record: dict[str, Any] = {"date": results.today(), "tables": {}}
    text = (
        f"# The papers' figures, predicted, {record['date']}\n\nBy `make papers`: clusters/*.toml "
        "say what is assumed of the machines, docs/papers.md what differs and why.\n"
    )
    for part in (trees, vgg, edsr, resnet, googlenet, alexnet, servers):
        title, (heads, *rows) = part()
        record["tables"][title] = [heads, *rows]
        text += f"\n## {title}\n\n{results.table(heads, rows)}\n"
        print(f"{title}\n{results.table(heads, rows)}\n", flush=True)
    print(f"wrote {results.write('papers-predicted-' + record['date'], record, text, args.out)}")


if __name__ == "__main__":
    main()
