"""The reading of training logs, of osucaffe or C++ Caffe: tables of what they report."""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..files import read_bytes
from ..messages import printable

Row = dict[str, float]

_RANK = r"(?:\[([\d.,]+)\](?:<\w+>:)?|(\d+):)? *"
"""What precedes a line or a message where several ranks or devices write one log: mpirun's "[0] "
or "[1,0]<stderr>:", srun's "0: ", NVIDIA Caffe's "[0.0] "."""
_NUMBER = (
    r"([-+]?(?:nan(?:\(\w+\))?|inf|\d++\.#\w+|(?:\d++\.?+\d*+|\.\d++)(?:e[-+]?\d++)?))(?=[\s,]|$)"
)
"""A whole number: what a log that is still being written breaks off at is none."""
_LINE = re.compile(
    rf" *{_RANK}[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{{6}}) +\d+ [^\]]+\] *{_RANK}(.*)",
    re.ASCII,
)
_COUNT = r"Iteration (\d{1,15})(?!\d)"
_ITERATION = re.compile(_COUNT, re.ASCII)
_RATE = re.compile(rf"{_COUNT}(?: \([^)]*\))?, lr = {_NUMBER}", re.IGNORECASE | re.ASCII)
_TEST = re.compile(rf"{_COUNT}(?: \([^)]*\))?, Testing net \(#(\d{{1,4}})\)", re.ASCII)
_OUTPUT = re.compile(
    rf"(Train|Test) net output #\d+: (.+) = {_NUMBER}(?: \(\*[^)]{{0,99}}\)?)?\s*$",
    re.IGNORECASE | re.ASCII,
)
_RANGE = 1e-38, 3.5e38
"""Of float32, which all that a net gives is: beyond, axes have no ticks."""


@dataclass
class Log:
    """The tables of a log: `train`, and one of `tests` for each test net; its length in seconds,
    and what its heading says: when it began, and the command."""

    train: list[Row] = field(default_factory=list)
    tests: dict[int, list[Row]] = field(default_factory=dict)
    seconds: float = 0
    began: str = ""
    commands: list[str] = field(default_factory=list)


def parse(lines: Sequence[str]) -> Log:
    """The tables of these lines. Seconds count from the first line."""
    log = Log()
    start: datetime.datetime | None = None
    rate = float("nan")
    iteration, net = -1, 0
    row: Row = {}
    copies = Counter[str]()
    rank: str | None = None
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            heading, _, value = line.partition(": ")
            log.began = value if heading == "Log file created at" else log.began
            log.commands += [value] if heading == "Command" else []
            continue
        # Logs state no year; that of a leap year knows every day.
        numbers = [int(group) for group in match.groups()[2:8]]
        try:
            moment = datetime.datetime(2000, *numbers)  # type: ignore[arg-type]
        except ValueError:  # a damaged line
            continue
        start = start or moment
        seconds = (moment - start).total_seconds()
        if seconds < 0:  # the run went on into another year
            seconds += 366 * 86400
        log.seconds = seconds
        writer, text = match[1] or match[2] or match[9] or match[10], match[11]
        if not text.startswith(("Iteration ", "Train ", "Test ")):
            continue
        rank = rank or writer
        if writer and writer != rank:  # the ranks' outputs differ: those of the first count
            continue
        if entry := _RATE.match(text):
            rate = _value(entry[2])
            if log.train and log.train[-1]["NumIters"] == int(entry[1]):
                log.train[-1]["LearningRate"] = rate
        elif entry := _ITERATION.match(text):
            iteration, row, copies = int(entry[1]), {}, Counter[str]()
            testing = _TEST.match(text)
            net = int(testing[2]) if testing else net
        elif entry := _OUTPUT.match(text):
            rows = log.train if entry[1] == "Train" else log.tests.setdefault(net, [])
            if not row:
                row = {"NumIters": iteration, "Seconds": seconds, "LearningRate": rate}
                rows.append(row)
            name = printable(entry[2])
            row[f"{name}[{copies[name]}]" if copies[name] else name] = _value(entry[3])
            copies[name] += 1  # an output of several elements: name, name[1], name[2] ...
    first = next((row["LearningRate"] for row in log.train), rate)
    for tested in (row for rows in log.tests.values() for row in rows):
        if math.isnan(tested["LearningRate"]):  # a test before the first rate was logged
            tested["LearningRate"] = first
    return log


def _value(number: str) -> float:
    """A number, also as Microsoft's C library writes what is none: 1.#INF, -1.#IND, nan(ind)."""
    if ".#" in number:
        return float("-inf" if number[0] == "-" else "inf") if "#INF" in number else math.nan
    value = float(number.partition("(")[0])
    if abs(value) > _RANGE[1]:
        return math.copysign(math.inf, value)
    return 0.0 if abs(value) < _RANGE[0] else value


def joined(logs: Iterable[Log]) -> Log:
    """The log of a run that was resumed: a resumed part replaces what the one before it logged of
    the same iterations, all if it begins with the first."""
    run = Log()
    for log in logs:
        tables = [log.train, *log.tests.values()]
        first = min((rows[0]["NumIters"] for rows in tables if rows), default=None)
        if first is None:
            continue
        run = run if first else Log()
        for rows, more in (
            (run.train, log.train),
            *((run.tests.setdefault(net, []), more) for net, more in log.tests.items()),
        ):
            rows[:] = [row for row in rows if row["NumIters"] < first] + more
        run.began = run.began or log.began
        run.seconds += log.seconds
        run.commands += log.commands
    return run


def log_of(places: Iterable[Path]) -> Log | None:
    """The log of a run, of all its parts if it was resumed: the first of these files, or of these
    folders with logs, that is there."""
    for path in places:
        paths = path.glob("osucaffe.*.log.INFO.*") if path.is_dir() else [path]
        there = [path for path in paths if path.is_file()]
        if parts := sorted(
            there, key=lambda path: (path.name.split(".")[-2:-1], path.stat().st_mtime)
        ):
            lines = (read_bytes(path).decode(errors="replace").splitlines() for path in parts)
            return joined(map(parse, lines))
    return None


Series = dict[str, list[tuple[float, float]]]
"""Points (iteration, value), by the name of the line that they make: "test accuracy"."""


def panels_of(log: Log) -> dict[str, Series]:
    """What is drawn together: losses, other outputs, and last the learning rate."""
    series: Series = {f"train {name}": points for name, points in _series(log.train).items()}
    for net, rows in sorted(log.tests.items()):
        test = f"test #{net}" if len(log.tests) > 1 else "test"
        series |= {f"{test} {name}": points for name, points in _series(rows).items()}
    losses = {name for name in series if "loss" in name.lower()}
    return {
        "loss": {name: points for name, points in series.items() if name in losses},
        "other outputs": {name: points for name, points in series.items() if name not in losses},
        "learning rate": {"rate": [(row["NumIters"], row["LearningRate"]) for row in log.train]},
    }


def _series(rows: Sequence[Row]) -> Series:
    series: Series = {}
    for row in rows:
        for name in row.keys() - {"NumIters", "Seconds", "LearningRate"}:
            series.setdefault(name, []).append((row["NumIters"], row[name]))
    return dict(sorted(series.items()))
