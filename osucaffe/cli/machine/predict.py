"""Predict how long training takes on a cluster that is not at hand, and which design wins there.

  osucaffe predict --solver solver.prototxt --cluster clusters/lassen.toml --ranks 1,2,4,...,512
  osucaffe predict --solver solver.prototxt --cluster here.toml --ranks 2,4 --measure 20
  osucaffe predict --solver solver.prototxt --cluster here.toml --ranks 2,4 --times times.json

The code that trains runs with a communicator that only notes what is asked of it, rank by rank;
then the same schedules of messages are carried out over a model of the cluster's links. How long
layers compute is measured here (--measure N iterations; --save_times keeps it), read (--times), or
made from the cluster's file: from images a second of this net, or from the device's rates. Data
that is not here is not needed where layers say crop_size.

An iteration's time is a median, with what a tenth of all iterations are below and above, where the
cluster's file says how much ranks differ (stragglers). Efficiency: of ranks that need not
communicate."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .. import options
from ..launch import rank_options

if TYPE_CHECKING:
    from ...predict.cluster import Cluster
    from ...predict.iteration import Prediction
    from ...predict.sketch import Sketch
    from ...predict.times import Seconds
    from ...proto import caffe_pb2
    from ...solvers.nets import Choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--solver", metavar="FILE", required=True, help="the solver's prototxt")
    add("--cluster", metavar="FILE", required=True, help="the cluster's file (TOML)")
    add(
        "--ranks",
        metavar="LIST",
        default="1,2,4,...,64",
        help="numbers of ranks; three dots go on by doubling (default: 1,2,4,...,64)",
    )
    add(
        "--designs", metavar="LIST", help="some of the designs, with commas (default: four of them)"
    )
    add(
        "--servers",
        metavar="K",
        type=options.positive,
        help="one more design: so many parameter servers beside the ranks (--consistency sync)",
    )
    add("--batch", metavar="N", type=options.positive, help="another batch_size than the net's")
    add(
        "--scal",
        choices=("weak", "strong"),
        default="weak",
        help="batch_size is each rank's (weak, the default) or is divided among them (strong)",
    )
    rank_options.add_bucket(
        parser, "the least that travels at once; auto: what takes the least time"
    )
    add("--algorithm", metavar="NAME", default="auto", help="as in osucaffe train")
    add("--tuning", metavar="FILE", help="a tuning table that `osucaffe tune` wrote")
    add("--flat", action="store_true", help="no levels: one communicator over all ranks")
    add("--iterations", metavar="N", type=options.positive, default=10, help="default: 10")
    add("--seed", metavar="N", type=int, default=1, help="of the stragglers (default: 1)")
    times = parser.add_mutually_exclusive_group()
    times.add_argument("--times", metavar="FILE", help="measured times of the layers (JSON)")
    times.add_argument(
        "--measure", metavar="N", type=options.positive, help="measure them here, N times"
    )
    add("--save_times", metavar="FILE", help="where --measure writes them")
    add("--out", metavar="FILE", help="write the numbers (JSON), and a picture beside it (.png)")
    add(
        "--threads",
        metavar="N",
        type=options.positive,
        help="of --measure (default: a rank's share of the cores here, with as many ranks as the "
        "cluster has on a host, as in training)",
    )


def run(args: argparse.Namespace) -> None:
    """Predict, print a table, and write what is asked for."""
    from ...comm.tuning.table import Selection
    from ...parallel.config import ParallelConfig
    from ...parallel.tuning import candidates, choose_size
    from ...predict.cluster import read_cluster
    from ...predict.iteration import DESIGNS, SERVERS, Simulation
    from ...proto import read_net, read_solver
    from ...solvers.nets import training_net

    cluster = read_cluster(args.cluster)
    ranks = parse_ranks(args.ranks)
    designs = [each for each in DESIGNS if each in _DEFAULT]
    if args.designs:
        designs = options.names(args.designs)
        if unknown := [each for each in designs if each not in DESIGNS]:
            raise UserError(f"--designs {unknown[0]}: choose among {', '.join(DESIGNS)}")
    selection = Selection(args.algorithm, file=args.tuning)
    solver = read_solver(args.solver)
    choice = training_net(solver, args.solver, read_net)
    seconds_of = _Times(args, choice, cluster)
    found: list[Prediction] = []
    print(
        f"{cluster.name}: {choice.param.name or args.solver}, {cluster.ranks_per_host} ranks a host"
    )
    print(_HEADING)
    for size in ranks:
        sketch, seconds = seconds_of(size)
        given = sketch, seconds, cluster, size, selection
        passes = max(solver.iter_size, 1)
        plain = Simulation(*given, hierarchical=not args.flat, passes=passes)
        simulations = dict.fromkeys(designs if size > 1 else ["one rank"], plain)
        if args.servers:
            simulations[SERVERS] = Simulation(*given, servers=args.servers, passes=passes)
        here = []
        for design, simulation in simulations.items():
            base = DESIGNS.get(design, ParallelConfig())
            config = replace(base, bucket=rank_options.bucket_nbytes(args), scaling=args.scal)
            sizes = [*candidates(sketch, config)] if rank_options.tunes_bucket(args) else []
            tried = {
                size: simulation.predict(
                    design, replace(config, bucket=size), args.iterations, args.seed
                )
                for size in sizes or [config.bucket]
            }
            size = choose_size({size: each.ms for size, each in tried.items()}, config.bucket)
            here.append(tried[size])
            chosen = f"  --bucket_mb {size / 2**20:g}" if len(sizes) > 1 else ""
            print(_row(here[-1]) + chosen, flush=True)
        if len(here) > 1:
            print(_verdict(here))
        found += here
    if args.out:
        _write(args, cluster, found)


_DEFAULT = ("SC-B", "SC-OBR", "all-reduce", "sharded")
_HEADING = "".join(
    f"{word:>{width}}"
    for word, width in (
        *(("ranks", 7), ("design", 19), ("ms", 11), ("tenth", 10), ("9/10", 10)),
        *(("images/s", 11), ("efficiency", 12)),
    )
)


def parse_ranks(text: str) -> list[int]:
    """ "1,2,4,...,64": three dots go on by doubling. UserError."""
    found: list[int] = []
    words = [word.strip() for word in text.replace("\u2026", "...").split(",")]
    dots = False
    for word in words:
        if word == "..." and found and not dots:
            dots = True
            continue
        if not word.isdecimal() or int(word) < 1 or (found and int(word) <= found[-1]):
            raise UserError(f"--ranks {text}: give rising numbers, such as 1,2,4,...,64")
        while dots and 2 * found[-1] < int(word):
            found.append(2 * found[-1])
        dots = False
        found.append(int(word))
    if dots:
        raise UserError(f"--ranks {text}: give a number behind the dots")
    return found


class _Times:
    """The sketch of what one of several ranks trains, and how long its layers take."""

    def __init__(self, args: argparse.Namespace, choice: Choice, cluster: Cluster) -> None:
        from ...predict.times import read_times

        self._args, self._choice, self._cluster = args, choice, cluster
        self._sizes: dict[str, int] = {}
        file = self._measure() if args.measure else args.times
        self._times = None if file is None else read_times(file)
        if self._times is not None:
            self._sizes = self._times.sizes

    def __call__(self, ranks: int) -> tuple[Sketch, Seconds]:
        from ...predict.times import estimate_times

        sketch = self._sketch(ranks if self._args.scal == "strong" else 1)
        if self._times is not None:
            return sketch, self._times.of(sketch)
        return sketch, estimate_times(sketch, self._cluster)

    def _param(self, divisor: int) -> caffe_pb2.NetParameter:
        from ...parallel.batch import divide_batches, readers
        from ...proto import caffe_pb2

        param = caffe_pb2.NetParameter()
        param.CopyFrom(self._choice.param)
        for _, message in readers(param) if self._args.batch else ():
            message.batch_size = self._args.batch
        return divide_batches(param, divisor) if divisor > 1 else param

    def _sketch(self, divisor: int) -> Sketch:
        from ...predict.sketch import Sketch

        choice, param = self._choice, self._param(divisor)
        return Sketch(param, level=choice.level, stages=choice.stages, sizes=self._sizes)

    def _measure(self) -> str:
        """Measure the layers of one rank's net here; the file that they are written to."""
        import tempfile

        from ...backends.cores import usable_cores
        from ...backends.cpu import Cpu
        from ...files import write_bytes
        from ...net import Net
        from ...predict.times import describe_times, sizes_of
        from ..score.time import measure

        sketch = self._sketch(1)
        share = max(1, usable_cores() // self._cluster.ranks_per_host)
        net = Net(
            sketch.param,
            phase="TRAIN",
            backend=Cpu(threads=self._args.threads or share),
            level=self._choice.level,
            stages=self._choice.stages,
            gradients=True,
        )
        layers = measure(net, self._args.measure)
        path = self._args.save_times or tempfile.mkstemp(suffix=".json")[1]
        write_bytes(path, describe_times(layers, sketch.name, sketch.batch, sizes_of(net)).encode())
        return str(path)


def _verdict(found: Sequence[Prediction]) -> str:
    """Which design wins; those that take at most 1 % longer are as fast."""
    best = min(found, key=lambda each: each.ms)
    alike = [each.design for each in found if each is not best and each.ms <= 1.01 * best.ms]
    return f"        {best.design} wins" + (f"; as fast: {', '.join(alike)}" if alike else "")


def _row(each: Prediction) -> str:
    return (
        f"{each.ranks:7} {each.design:>18}{each.ms:11.3f}{each.low:10.3f}{each.high:10.3f}"
        f"{each.images:11.1f}{each.efficiency:12.1%}"
    )


def _write(args: argparse.Namespace, cluster: Cluster, found: Sequence[Prediction]) -> None:
    from ...files import write_bytes
    from .. import plots
    from .predict_picture import draw

    rows: list[dict[str, Any]] = [asdict(each) | {"efficiency": each.efficiency} for each in found]
    content = {"cluster": cluster.name, "solver": args.solver, "predictions": rows}
    write_bytes(args.out, json.dumps(content, indent=1).encode())
    print(f"wrote {args.out}")
    try:
        plots.pyplot()
    except UserError as error:
        print(f"no picture: {error}")
        return
    picture = str(Path(args.out).with_suffix(".png"))
    draw(cluster, found, picture)
    print(f"wrote {picture}")
