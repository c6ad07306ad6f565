"""Make tables and a plot of a training log, of osucaffe or of C++ Caffe.

  osucaffe parse_log caffe.INFO results

writes results/caffe.INFO.train and .test, tables in CSV: NumIters, Seconds, LearningRate, and the
net's outputs; and the plot results/caffe.INFO.png, if matplotlib is installed
(pip install "osucaffe[tools]"). Further test nets get .test1, .test2 ..."""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.util
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UserError
from ...files import read_bytes, write_bytes
from .. import json_output, plots

Row = dict[str, float]

_LINE = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) +\d+ [^\]]+\] (.*)")
_ITERATION = re.compile(r"Iteration (\d+)")
_RATE = re.compile(r"Iteration (\d+), lr = (\S+)")
_TEST = re.compile(r"Iteration \d+, Testing net \(#(\d+)\)")
_OUTPUT = re.compile(r"\s*(Train|Test) net output #\d+: (.+?) = (\S+)")


@dataclass
class Log:
    """The tables of a log: `train`, and one of `tests` for each test net."""

    train: list[Row] = field(default_factory=list)
    tests: dict[int, list[Row]] = field(default_factory=dict)


def _character(text: str) -> str:
    if len(text) != 1:
        raise argparse.ArgumentTypeError(f"must be one character, not {text!r}")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("log", metavar="LOG", help="the log file")
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        help="where to write the tables and the plot (not needed with --json)",
    )
    json_output.add_json(parser)
    parser.add_argument(
        "--delimiter",
        metavar="D",
        type=_character,
        default=",",
        help="column separator (default: ,)",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="the plot's file: .png, .svg or .pdf (default: as above)"
    )


def run(args: argparse.Namespace) -> None:
    """Read, write, draw."""
    if not (args.folder or args.json):
        raise UserError("say in which FOLDER to write the tables, or --json to print them")
    path = Path(args.log)
    log = parse(read_bytes(path).decode(errors="replace").splitlines())
    if not log.train and not log.tests:
        raise UserError(
            f"{path}: has no lines of a training run with outputs, such as "
            '"I1121 09:22:33.123456  4711 solver.py:218] Iteration 100, lr = 0.01"; '
            "set display in the solver"
        )
    if args.json:
        json_output.print_json({"train": log.train, "tests": log.tests})
    if args.folder:
        _write(args, log, path, Path(args.folder))


def _write(args: argparse.Namespace, log: Log, path: Path, folder: Path) -> None:
    """Write the tables, draw the plot; what was written is told where that is no document."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    tables = {".train": log.train}
    tables |= {f".test{net or ''}": rows for net, rows in sorted(log.tests.items())}
    for suffix, rows in tables.items():
        write_table(folder / (path.name + suffix), rows, args.delimiter)
        json_output.tell(args, f"wrote {folder / (path.name + suffix)}")
    if args.plot or importlib.util.find_spec("matplotlib"):
        picture = args.plot or str(folder / f"{path.name}.png")
        draw(log, picture, title=path.name)
        json_output.tell(args, f"wrote {picture}")


def parse(lines: Sequence[str]) -> Log:
    """The tables of these lines. Seconds count from the first line."""
    log = Log()
    start: datetime.datetime | None = None
    rate = float("nan")
    iteration, net = -1, 0
    row: Row = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        # Logs state no year; that of a leap year knows every day.
        numbers = [int(group) for group in match.groups()[:6]]
        moment = datetime.datetime(2000, *numbers)  # type: ignore[arg-type]
        start = start or moment
        seconds = (moment - start).total_seconds()
        if seconds < 0:  # the run went on into another year
            seconds += 366 * 86400
        text = match[7]
        if found := _RATE.match(text):
            rate = float(found[2])
            if log.train and log.train[-1]["NumIters"] == int(found[1]):
                log.train[-1]["LearningRate"] = rate
        elif found := _ITERATION.match(text):
            iteration, row = int(found[1]), {}
            testing = _TEST.match(text)
            net = int(testing[1]) if testing else net
        elif found := _OUTPUT.match(text):
            rows = log.train if found[1] == "Train" else log.tests.setdefault(net, [])
            if not row:
                row = {"NumIters": iteration, "Seconds": seconds, "LearningRate": rate}
                rows.append(row)
            row[_free(row, found[2])] = float(found[3])
    first = next((each["LearningRate"] for each in log.train), rate)
    for each in (row for rows in log.tests.values() for row in rows):
        if math.isnan(each["LearningRate"]):  # a test before the first rate was told
            each["LearningRate"] = first
    return log


def _free(row: Row, name: str) -> str:
    """The column of an output: an output with several elements has name, name[1], name[2] ..."""
    index, free = 0, name
    while free in row:
        index += 1
        free = f"{name}[{index}]"
    return free


def write_table(path: Path, rows: Sequence[Row], delimiter: str = ",") -> None:
    """Write a table; columns are all that some row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.10g}" for k, v in row.items()} for row in rows)
    write_bytes(path, table.getvalue().encode())


def draw(log: Log, path: str, title: str) -> None:
    """Draw losses in one panel, other outputs (accuracies) in another, and the learning rate."""
    plt = plots.pyplot()
    series = all_series(log)
    losses = {name: points for name, points in series.items() if "loss" in name.lower()}
    others = {name: points for name, points in series.items() if name not in losses}
    panels = [(name, each) for name, each in (("loss", losses), ("other outputs", others)) if each]
    rates = [(row["NumIters"], row["LearningRate"]) for row in log.train]
    figure, axes = plt.subplots(
        len(panels) + 1,
        sharex=True,
        squeeze=False,
        figsize=(8, 1.6 + 2.7 * len(panels)),
        height_ratios=[3] * len(panels) + [1],
        layout="constrained",
    )
    for axis, (label, lines) in zip(axes[:-1, 0], panels, strict=True):
        for index, (name, points) in enumerate(lines.items()):
            iterations, values = zip(*points, strict=True)
            tested = name.startswith("test")
            axis.plot(
                iterations,
                values,
                label=name,
                color=plots.COLOURS[index % len(plots.COLOURS)],
                linewidth=1.8 if tested else 1.2,
                marker="o" if tested and len(points) < 40 else None,
                markersize=4,
            )
        axis.set_ylabel(label if len(lines) > 1 else next(iter(lines)).partition(" ")[2])
        axis.legend(frameon=False)
    if rates:
        axes[-1, 0].plot(*zip(*rates, strict=True), color="#666666", drawstyle="steps-post")
        axes[-1, 0].set_ylim(bottom=0)
    axes[-1, 0].set_ylabel("learning rate")
    axes[-1, 0].set_xlabel("iteration")
    for axis in axes[:, 0]:
        axis.grid(color="#DDDDDD", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.align_ylabels()
    plots.save(figure, path)
    plt.close(figure)


def all_series(log: Log) -> dict[str, list[tuple[float, float]]]:
    """The points (iteration, value) of every output, by the name of its line: "test accuracy"."""
    series = {f"train {name}": points for name, points in _series(log.train).items()}
    for net, rows in sorted(log.tests.items()):
        test = f"test #{net}" if len(log.tests) > 1 else "test"
        series |= {f"{test} {name}": points for name, points in _series(rows).items()}
    return series


def _series(rows: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    """The points (iteration, value) of every output."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name in row.keys() - {"NumIters", "Seconds", "LearningRate"}:
            series.setdefault(name, []).append((row["NumIters"], row[name]))
    return dict(sorted(series.items()))
