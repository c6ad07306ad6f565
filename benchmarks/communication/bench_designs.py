"""Measure how long LeNet trains until it knows 98.5 % of MNIST's test images, by each design.

  python -m benchmarks.communication.bench_designs     needs mpiexec; namespaces need root

4 ranks on 2 hosts divide LeNet's batch of 64. How many iterations a design needs does not depend
on the network: it is found once, without one, and its iterations are timed on each. Only ratios
mean something. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from osucaffe.cli import plots
from osucaffe.comm.tuning.table import Selection
from osucaffe.proto import read_net
from osucaffe.study.cluster import read_cluster
from osucaffe.study.iteration import DESIGNS as PREDICTABLE
from osucaffe.study.iteration import Simulation
from osucaffe.study.sketch import Sketch
from osucaffe.study.times import estimate_times

from .. import results
from ..hosts import hosts
from ..papers import ROOT, TABLE
from ..ranks import mpiexec
from ..rows import MARK

MODULE = "benchmarks.communication.bench_designs_ranks"
GPUS = 8, 64, 512
LOCAL = 64
SETTINGS = "base_lr: 0.03"
ALONE = "no exchange"
PEER = "bf16 all-reduce"
COLOURS = 10
"""Lines from which on colours come again."""


@dataclass(frozen=True)
class Design:
    """options: of `osucaffe train`. multiple: the iterations of a round; what is timed and tested
    comes behind whole rounds."""

    name: str
    options: str
    multiple: int = 1


DESIGNS = (
    Design("fp32 all-reduce", ""),
    Design(PEER, "--gradient_type bfloat16"),
    Design("8 bits", "--compression 8bit"),
    Design("signs", "--compression sign"),
    Design("top 1 %", "--compression topk:0.01"),
    Design("PowerSGD, rank 4", "--compression powersgd:4"),
    Design("2 servers", "--servers 2 --channel adaptive"),
    Design("local SGD, 8 steps", "--local_steps 8", 8),
    Design("local SGD, 64 steps", "--local_steps 64", 64),
    Design("the same in bf16", "--local_steps 64 --gradient_type bfloat16", 64),
    Design("the same in 8 bits", "--local_steps 64 --compression 8bit", 64),
    Design("post-local SGD, 64 steps", "--local_steps 64 --local_after 64", 64),
    Design("DiLoCo, 64 steps", "--local_steps 64 --outer_lr 0.5 --outer_momentum 0.5", 64),
)
FLOOR = Design(ALONE, "--local_steps 1000000", 64)

TEXT = """
LeNet (0.43 million weights) on MNIST; 4 ranks on 2 hosts of one machine ({cpu}, {cores} cores,
which all share; a load of {load} at the end) divide its batch of 64; `{settings}`, else
models/lenet/solver.prototxt. *iterations*: until a test, one every {every} or so, first gave
{accuracy:.1%}. Seconds until then, without the tests: iterations, times what one takes where the
hosts' links are as fast as the column says (the best of three turns). *against bf16*: how many
times as fast as bf16 all-reduce at {rate}. The last row is computation alone, for the iterations of
the bf16 all-reduce: no exchange can be faster.
"""

PREDICTED = """
Predicted (`osucaffe predict`): an iteration of AlexNet, 256 images a GPU, on hosts with 8 H100s
(clusters/dgx-h100.toml, but 10 Gbit/s between them). What compression costs there is not modelled.
"""


def run(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What rank 0 printed."""
    if done.returncode:
        raise SystemExit(done.stderr or done.stdout)
    lines = done.stdout.splitlines()
    return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]


def task(designs: Sequence[Design], **more: Any) -> tuple[str, ...]:
    """The words that start the ranks' program."""
    given = {"settings": SETTINGS, "designs": [asdict(design) for design in designs], **more}
    return "-m", MODULE, json.dumps(given)


def iterations(designs: Sequence[Design], args: argparse.Namespace) -> dict[str, int | None]:
    """How many each design needs; None where it did not get there."""
    goal = {"accuracy": args.accuracy, "every": args.every, "most": args.most}
    needed: dict[str, int | None] = {}
    for row in run(mpiexec(4, *task(designs, **goal), timeout=3600)):
        reached = max(row["accuracies"]) >= args.accuracy
        needed[row["name"]] = row["iterations"] if reached else None
    return needed


def milliseconds(designs: Sequence[Design], rate: str, seconds: float) -> dict[str, float] | None:
    """What an iteration takes between two hosts; None where the machine does not permit them."""
    with tempfile.TemporaryDirectory() as folder, hosts(2, rate, Path(folder), "64kb") as made:
        if made is None:
            return None
        made.shape_inward(rate, "64kb")
        words = task([*designs, FLOOR], seconds=seconds)
        found = run(made.mpiexec(1, *words, times=2, timeout=3600))
        return {row["name"]: row["ms"] for row in found}


def seconds_of(record: dict[str, Any], name: str, rate: str) -> float | None:
    """Until the accuracy; None where it was not reached."""
    count = record["iterations"][PEER if name == ALONE else name]
    return None if count is None else count * record["ms"][rate][name] / 1e3


def predict() -> list[list[Any]]:
    """Rows of milliseconds of an iteration on GPUS H100s, of the designs that `predict` knows.

    Local SGD's is what it says of one GPU, and a part of what an all-reduce behind backward adds.
    """
    path = str(ROOT / "clusters" / "dgx-h100.toml")
    cluster = read_cluster(path, ["links.network.gb_s=1.25", "links.network.ports=1"])
    sketch = Sketch(read_net(str(ROOT / "models" / "alexnet" / "train_val.prototxt")))
    seconds, selection = estimate_times(sketch, cluster), Selection(file=TABLE)

    def took(ranks: int, design: str, *, narrow: bool = False) -> float:
        simulation = Simulation(sketch, seconds, cluster, ranks, selection, narrow=narrow)
        return simulation.predict(design, PREDICTABLE[design]).ms

    behind, alone = "all-reduce behind", took(1, "all-reduce behind")
    local = [alone + (took(ranks, behind) - alone) / LOCAL for ranks in GPUS]
    return [
        ["fp32 all-reduce", *(took(ranks, "all-reduce") for ranks in GPUS)],
        [PEER, *(took(ranks, "all-reduce", narrow=True) for ranks in GPUS)],
        [f"local SGD, {LOCAL} steps", *local],
    ]


def render(record: dict[str, Any], rate: str) -> str:
    """The record as Markdown. rate: at which designs are compared with the peer."""
    rates = list(record["ms"])
    heads = ["design", "iterations", *rates, f"against bf16, {rate}"]
    cells = []
    for name in [*record["iterations"], ALONE]:
        took = [seconds_of(record, name, each) for each in rates]
        peer, own = seconds_of(record, PEER, rate), seconds_of(record, name, rate)
        cells.append([
            name,
            record["iterations"].get(name) or ("" if name == ALONE else "not reached"),
            *("" if each is None else f"{each:.1f}" for each in took),
            f"{peer / own:.1f}" if peer and own else "",
        ])  # fmt: skip
    machine, given = record["machine"], record["given"]
    told = TEXT.format(**machine, **given, settings=SETTINGS, rate=rate)
    text = f"# Designs, {record['date']}\n{told}\n{results.table(heads, cells)}\n"
    heads = ["ms", *(f"{ranks} GPUs" for ranks in GPUS)]
    cells = [[name, *(f"{each:.2f}" for each in took)] for name, *took in record["predicted"]]
    return f"{text}{PREDICTED}\n{results.table(heads, cells)}\n"


def draw(record: dict[str, Any], path: Path) -> None:
    """Seconds by rate, a line for each design."""
    figure, axes = plots.pyplot().subplots(figsize=(8, 5))
    for name in [*record["iterations"], ALONE]:
        took = [seconds_of(record, name, rate) for rate in record["ms"]]
        if None not in took:
            style = "-" if len(axes.lines) < COLOURS else "--"
            axes.plot(list(record["ms"]), took, style, marker="o", label=name)
    axes.set(xlabel="the hosts' links", ylabel="seconds to the accuracy", yscale="log")
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, bbox_inches="tight", dpi=120)


def main() -> None:
    """Measure and write."""
    parser = results.parser(__doc__)
    parser.add_argument("--rates", default="200mbit,1gbit,10gbit", help="of the hosts' links")
    parser.add_argument("--at", default="200mbit", help="the rate at which designs are compared")
    parser.add_argument("--accuracy", type=float, default=0.985, help="of the test images (0.985)")
    parser.add_argument("--every", type=int, default=64, help="iterations between tests (64)")
    parser.add_argument("--most", type=int, default=1600, help="iterations at most (1600)")
    parser.add_argument("--seconds", type=float, default=2, help="for which iterations are timed")
    parser.add_argument("--designs", default="", help="only those whose names have one of these")
    args = parser.parse_args()
    wanted = [*filter(None, args.designs.split(",")), PEER]
    designs = [d for d in DESIGNS if not args.designs or any(word in d.name for word in wanted)]
    given = {"every": args.every, "accuracy": args.accuracy}
    needed = iterations(designs, args)
    record = results.begin(given=given, iterations=needed, ms={}, predicted=predict())
    name = f"designs-cpu-{record['date']}"
    for rate in args.rates.split(","):
        found = milliseconds(designs, rate, args.seconds)
        if found is None:
            sys.exit("two hosts need network namespaces, which need root")
        record["ms"][rate] = found
        record["machine"]["load"] = round(os.getloadavg()[0], 1)
        text = render(record, args.at if args.at in record["ms"] else rate)
        path = results.write(name, record, text, args.out)
    print(text)
    draw(record, args.out / f"{name}.png")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
