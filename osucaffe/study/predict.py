"""`osucaffe predict`: how long training takes on a cluster that is not available."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ..api.curves import COLOURS
from ..backends.cores import computing_threads
from ..backends.cpu import Cpu
from ..cli import output, plots
from ..cli.score.time import Layer, measure
from ..comm.tuning.table import Selection
from ..errors import UserError
from ..files import write_bytes
from ..layers.base import Splitter
from ..net import Net
from ..options.kinds import names
from ..parallel.batch import divide_batches, readers
from ..parallel.choose import choose_hook
from ..parallel.config import TUNED, ParallelConfig
from ..parallel.tuning import candidates, choose_size
from ..proto import caffe_pb2, read_net, read_solver
from ..solvers.nets import Choice, training_net
from ..solvers.update.rules import update_of
from .cluster import Cluster, read_cluster
from .designs.split import SplitInnerProducts
from .iteration import DESIGNS, SERVED, SHARDED, SPLIT, SYNC, Prediction, Simulation
from .messages import Planner
from .options import Predict, Question
from .script import Ranks
from .servers.shards import Consistency
from .sketch import Sketch
from .times import (
    Seconds,
    Times,
    describe_times,
    estimate_times,
    find_half_batch,
    read_times,
    sizes_of,
    times_from,
)


def run(args: Predict) -> None:
    """Predict, print a table, and write the requested files."""
    designs = [*_DEFAULT, *(SERVED if args.servers else ())]
    case = Case(args, names(args.designs) if args.designs else designs)
    predictions = case.predict()
    if args.out:
        _write(args, args.out, case.cluster, predictions)


class Case:
    """A net on a cluster, by these designs, for some numbers of ranks: what the options ask for.

    choice: the solver's training net. UserError.
    """

    def __init__(self, args: Question, designs: Sequence[str]) -> None:
        self.args = args
        self.cluster = read_cluster(args.cluster, args.set)
        self.ranks = parse_ranks(args.ranks)
        if unknown := [design for design in designs if design not in DESIGNS]:
            raise UserError(f"--designs {unknown[0]}: choose among {', '.join(DESIGNS)}")
        if not args.servers and (lacking := [design for design in designs if design in SERVED]):
            raise UserError(f"--designs {lacking[0]}: needs --servers K, or K/host")
        self.configs = {design: DESIGNS[design] for design in designs} | dict(_asked(args))
        for design, config in self.configs.items():
            config.check(args.gradient_type if design in DESIGNS else "float32")
            choose_hook(config)
        self.consistency = Consistency.parse(args.consistency)
        if self.consistency != SYNC and not args.servers:
            raise UserError(f"--consistency {args.consistency} goes with --servers: give it, too")
        self._selection = Selection(args.algorithm, file=args.tuning)
        self.solver = read_solver(args.solver)
        self._separable = update_of(self.solver, args.solver).separable
        self.designs = list(self.configs)
        if SHARDED in designs and not (self._separable or args.designs):
            self.designs.remove(SHARDED)
        self.choice = training_net(self.solver, args.solver, read_net)
        self._times = _Times(args, self.choice, self.cluster)

    @property
    def title(self) -> str:
        """The cluster and the net, and what is not as the cluster's file says."""
        return (
            f"{self.cluster.name}: {self.choice.param.name or self.args.solver}, "
            f"{self.cluster.ranks_per_host} ranks per host"
            + "".join(f", {change}" for change in self.args.set)
        )

    def sketch(self, size: int) -> Sketch:
        """What one of that many ranks trains."""
        return self._times(size)[0]

    def predict(self) -> list[Prediction]:
        """Predict all, and print a table."""
        print(self.title)
        if not self._separable:
            print(f"{SHARDED} can't be trained: the update needs sums over all gradients")
        print(HEADING)
        predictions: list[Prediction] = []
        for size in self.ranks:
            here = []
            for prediction, chosen in self._predict(size):
                here.append(prediction)
                print(row(prediction) + chosen, flush=True)
            if len(here) > 1:
                best, *alike = [one.design for one in fastest(here)]
                also = f"; as fast: {', '.join(alike)}" if alike else ""
                print(f"        {best} wins{also}")
            predictions += here
        return predictions

    def _predict(self, size: int) -> Iterator[tuple[Prediction, str]]:
        """Each design on that many ranks, and which size of buckets was chosen for it."""
        args, cluster, passes = self.args, self.cluster, max(self.solver.iter_size, 1)
        hierarchical = not args.flat
        make = partial(
            Simulation,
            cluster=cluster,
            size=size,
            selection=self._selection,
            hierarchical=hierarchical,
            passes=passes,
            narrow=args.gradient_type != "float32",
            separable=self._separable,
        )
        taken = self._times(size)
        plain = served = split = make(*taken)
        if args.servers:
            hosts = cluster.server_hosts(args.servers, size)
            if (self.consistency.backups or 0) >= size:
                raise UserError(f"--consistency {args.consistency}: choose less, for {size} ranks")
            served = make(*taken, servers=hosts, consistency=self.consistency)
        if SPLIT in self.designs and size > 1:
            planner = Planner(cluster, size, self._selection, hierarchical=hierarchical)
            ranks = Ranks(planner)
            split = make(*self._times(size, SplitInnerProducts(ranks, "auto", passes)))
        alone = ALONE, *(design for design in self.designs if design in SERVED)
        for design in self.designs if size > 1 else alone:
            simulation = served if design in SERVED else split if design == SPLIT else plain
            config = replace(self.configs.get(design, ParallelConfig()), scaling=args.scal)
            tunes = args.bucket == TUNED and design != "Horovod"
            if design != "Horovod":
                bucket = ParallelConfig.bucket if tunes else args.bucket
                config = replace(config, bucket=bucket)
            sizes = [*candidates(simulation.sketch, config)] if tunes else []
            tried = {
                nbytes: simulation.predict(
                    design, replace(config, bucket=nbytes), args.iterations, args.seed
                )
                for nbytes in sizes or [config.bucket]
            }
            best = choose_size({each: result.ms for each, result in tried.items()}, config.bucket)
            yield tried[best], f"  --bucket_mb {best / 2**20:g}" if len(sizes) > 1 else ""


def _asked(args: Question) -> Iterator[tuple[str, ParallelConfig]]:
    """The designs that options of train make."""
    if args.aggregation:
        yield args.aggregation, ParallelConfig(args.aggregation)
    if args.compression != "none":
        yield args.compression, ParallelConfig(compression=args.compression)
    if args.local_steps:
        yield f"{args.local_steps} local steps", ParallelConfig(local_steps=args.local_steps)
    if args.reproducible:
        yield "reproducible", ParallelConfig(reproducible=True)


logger = logging.getLogger("osucaffe")
ALONE = "one rank"
"""The design of a rank that has nobody to talk to."""
_DEFAULT = ("SC-B", "SC-OBR", "all-reduce", SHARDED)
HEADING = "".join(
    f"{word:>{width}}"
    for word, width in (
        *(("ranks", 7), ("design", 19), ("ms", 11), ("tenth", 10), ("9/10", 10)),
        *(("exposed", 10), ("images/s", 11), ("efficiency", 12)),
    )
)


def parse_ranks(text: str) -> list[int]:
    """ "1,2,4,...,64": "..." continues by doubling. UserError."""
    ranks: list[int] = []
    words = [word.strip() for word in text.replace("\u2026", "...").split(",")]
    dots = False
    for word in words:
        if word == "..." and ranks and not dots:
            dots = True
            continue
        if not word.isdecimal() or int(word) < 1 or (ranks and int(word) <= ranks[-1]):
            raise UserError(f"--ranks {text}: give increasing numbers, such as 1,2,4,...,64")
        while dots and 2 * ranks[-1] < int(word):
            ranks.append(2 * ranks[-1])
        dots = False
        ranks.append(int(word))
    if dots:
        raise UserError(f"--ranks {text}: give a number after '...'")
    return ranks


class _Times:
    """The sketch of what one of several ranks trains, and how long its layers take."""

    def __init__(self, args: Question, choice: Choice, cluster: Cluster) -> None:
        self._args, self._choice, self._cluster = args, choice, cluster
        self._sizes: dict[str, int] = {}
        self._times: Times | None = None
        if args.measure:
            self._times = self._measure(args.measure)
        elif args.times:
            self._times = read_times(args.times)
        if self._times is not None:
            self._sizes = self._times.sizes
        elif choice.param.name not in cluster.device.images_per_second:
            logger.warning(
                "%s has no images_per_second for %s: times are estimated from operations and bytes",
                *(args.cluster, choice.param.name or "this net"),
            )

    def __call__(self, ranks: int, splitter: Splitter | None = None) -> tuple[Sketch, Seconds]:
        sketch = self._sketch(ranks if self._args.scal == "strong" else 1, splitter)
        if self._times is not None:
            return sketch, self._times.of(sketch)
        return sketch, estimate_times(sketch, self._cluster)

    def _param(self, divisor: int) -> caffe_pb2.NetParameter:
        param = self._choice.chosen("TRAIN")
        for _, message in readers(param) if self._args.batch else ():
            message.batch_size = self._args.batch
        return divide_batches(param, divisor) if divisor > 1 else param

    def _sketch(self, divisor: int, splitter: Splitter | None = None) -> Sketch:
        choice, param = self._choice, self._param(divisor)
        settings: dict[str, Any] = {"level": choice.level, "stages": choice.stages}
        return Sketch(param, sizes=self._sizes, splitter=splitter, **settings)

    def _measure(self, count: int) -> Times:
        """Measure the layers of one rank's net here, and where its batch is divided, with a batch
        of one, too."""
        sketch, half_batch = self._sketch(1), 0.0
        net, layers = self._time(sketch, count)
        if self._args.scal == "strong" and sketch.batch > 1:
            part = self._sketch(sketch.batch)  # whatever numbers of ranks are asked for
            whole, little = _total(layers), _total(self._time(part, count)[1])
            half_batch = find_half_batch(sketch.batch, whole, part.batch, little)
            batches = f"batches of {part.batch} and {sketch.batch}"
            print(f"half_batch = {half_batch:g} on this machine, by {batches}")
        made = describe_times(layers, sketch.name, sketch.batch, sizes_of(net), half_batch).encode()
        if self._args.save_times:
            write_bytes(self._args.save_times, made)
        return times_from(made, "--measure")

    def _time(self, sketch: Sketch, count: int) -> tuple[Net, list[Layer]]:
        """A sketch as a net, and its layers' times."""
        share = computing_threads(self._cluster.ranks_per_host)
        net = Net(
            sketch.param,
            phase="TRAIN",
            backend=Cpu(threads=self._args.threads or share),
            level=self._choice.level,
            stages=self._choice.stages,
            gradients=True,
        )
        return net, measure(net, count)


def _total(layers: Sequence[Layer]) -> float:
    return sum(layer.forward.milliseconds + layer.backward.milliseconds for layer in layers)


def fastest(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The fastest, and after it those that take at most 1 % longer, which count as equal."""
    best = min(predictions, key=lambda one: one.ms)
    return [best, *(one for one in predictions if one is not best and one.ms <= 1.01 * best.ms)]


def row(one: Prediction) -> str:
    """A line of the table."""
    return (
        f"{one.ranks:7} {one.design:>18}{one.ms:11.3f}{one.low:10.3f}{one.high:10.3f}"
        f"{one.exposed:10.3f}{one.images:11.1f}{one.efficiency:12.1%}"
    )


def _write(args: Predict, file: str, cluster: Cluster, predictions: Sequence[Prediction]) -> None:
    rows = [values(prediction) for prediction in predictions]
    content: dict[str, Any] = {"cluster": cluster.name, "set": args.set, "solver": args.solver}
    content["predictions"] = rows
    text = json.dumps(content, indent=1)
    if file.endswith(".csv"):
        text = comma_separated(rows)
    write_bytes(file, text.encode())
    print(f"wrote {file}")
    print(plots.draw_next_to(file, lambda picture: _draw(cluster, predictions, picture)))


def values(prediction: Prediction) -> dict[str, Any]:
    """All of its numbers, by name."""
    return asdict(prediction) | {"efficiency": prediction.efficiency}


def comma_separated(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV."""
    return output.csv_text([rows[0], *(row.values() for row in rows)])


WIDTHS = 7.0, 4.5, 2.8, 1.6
"""The line widths, the fastest design's first: it is drawn below the others and stays visible."""


def _draw(cluster: Cluster, predictions: Sequence[Prediction], path: str) -> None:
    """Images per second and efficiency by ranks: a line with a band for each design."""
    figure, (images, efficiency) = plots.pyplot().subplots(
        1, 2, figsize=(11, 4.5), layout="constrained"
    )
    ranks = sorted({one.ranks for one in predictions})
    lines = sorted(curves(predictions), key=lambda line: -line[1][-1].images)
    for number, (design, points) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        width = WIDTHS[min(number, len(WIDTHS) - 1)]
        at = [point.ranks for point in points]
        for axes, name, unit in (images, "images", 1), (efficiency, "efficiency", 100):
            values = [unit * getattr(point, name) for point in points]
            axes.plot(
                at, values, "o-", color=colour, linewidth=width, markersize=width + 2, label=design
            )
            bounds = [[point.high for point in points], [point.low for point in points]]
            worst, best = (
                [
                    value * point.ms / ms
                    for value, point, ms in zip(values, points, bound, strict=True)
                ]
                for bound in bounds
            )
            axes.fill_between(at, worst, best, color=colour, alpha=0.12, linewidth=0)
    rate = max(one.images / one.ranks / one.efficiency for one in predictions if one.efficiency)
    images.plot(ranks, [rate * count for count in ranks], ":", color="gray", label="perfect")
    images.set_yscale("log")
    images.yaxis.set_major_formatter("{x:,.0f}")
    efficiency.set_ylim(0, 105)
    efficiency.yaxis.set_major_formatter("{x:.0f} %")
    for axes, title in (images, "images per second"), (efficiency, "efficiency"):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, [str(count) for count in ranks])
        axes.set_xlabel("ranks")
        axes.set_title(title)
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
    images.legend(title="the fastest first")
    figure.suptitle(f"Predicted: {cluster.name}")
    plots.save(figure, path)


def curves(predictions: Sequence[Prediction]) -> Iterator[tuple[str, list[Prediction]]]:
    """Each design with its points by ranks, of which the first is one rank alone."""
    alone = [one for one in predictions if one.design == ALONE]
    for design in dict.fromkeys(one.design for one in predictions if one.design != ALONE):
        own = [one for one in predictions if one.design == design]
        yield design, own if own[0].ranks == 1 else alone + own
