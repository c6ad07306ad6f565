"""What is recorded of a run: its history as rows, curves of it, and a line of progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import listed
from ..files import write_bytes
from ..solvers.observer import Display, Observer, Output, TestResult
from .curves import panel
from .logs import Log
from .tables import html_table

Row = dict[str, Any]
_AXES = ("iteration", "seconds", "epoch", "lr")
_STYLE = """<style>
.osucaffe figure { display: inline-block; width: 460px; max-width: 100%; margin: 4px }
.osucaffe polyline { fill: none; stroke-width: 2 } .osucaffe polyline.raw { opacity: .5 }
.osucaffe .grid { stroke: #8884 } .osucaffe svg text { font-size: 13px; fill: currentColor }
.osucaffe .legend i { display: inline-block; width: 14px; border-top-width: 3px; margin: 3px }
</style>"""


def numbers(outputs: Iterable[Output]) -> dict[str, float]:
    """A net's outputs by name: of several elements `name[1]` is the second."""
    found: dict[str, float] = {}
    for each in outputs:
        count = sum(name.partition("[")[0] == each.name for name in found)
        found[f"{each.name}[{count}]" if count else each.name] = each.value
    return found


class History(Observer):
    """A row for each iteration that was displayed or tested, for `pandas.DataFrame(rows)`:
    iteration, seconds, lr, loss, epoch where the size of the data is known, the other outputs
    as "train NAME", and those of tests as "test NAME"."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._begun = time.monotonic()

    def add(self, iteration: int, values: Mapping[str, Any]) -> None:
        """Add to the row of an iteration."""
        if not self.rows or self.rows[-1]["iteration"] != iteration:
            seconds = round(time.monotonic() - self._begun, 3)
            self.rows.append({"iteration": iteration, "seconds": seconds})
        self.rows[-1] |= values

    def on_display(self, event: Display) -> None:
        """Note the loss, the rate, and outputs that are not losses."""
        epoch = {} if event.epoch is None else {"epoch": event.epoch}
        others = numbers(output for output in event.outputs if not output.loss_weight)
        named = {f"train {name}": value for name, value in others.items()}
        self.add(event.iteration, {"lr": event.rate, "loss": event.loss, **epoch, **named})

    def on_test(self, event: TestResult) -> None:
        """Note the outputs."""
        self.add(event.iteration, tested(event))

    @classmethod
    def of(cls, log: Log) -> History:
        """What a log tells."""
        self, rows = cls(), dict[int, Row]()
        tables = [("train", log.train), *((_test(net), each) for net, each in log.tests.items())]
        for kind, table in tables:
            for line in table:
                at = int(line["NumIters"])
                row = rows.setdefault(at, {"iteration": at, "seconds": line["Seconds"]})
                row["lr"] = line["LearningRate"]
                for name in line.keys() - {"NumIters", "Seconds", "LearningRate"}:
                    key = f"{kind} {name}"
                    row["loss" if key == "train loss" else key] = line[name]
        self.rows = [rows[at] for at in sorted(rows)]
        return self


def _test(net: int) -> str:
    return f"test #{net}" if net else "test"


def tested(event: TestResult) -> Row:
    """What a test gave, by "test NAME"."""
    return {f"{_test(event.net)} {name}": value for name, value in numbers(event.outputs).items()}


class Plot:
    """The curves of a history: a notebook shows them, `save` writes them as a page."""

    def __init__(self, rows: Sequence[Row]) -> None:
        names = dict.fromkeys(name for row in rows for name in row if name not in _AXES)
        series = {
            name: [(row["iteration"], row[name]) for row in rows if name in row] for name in names
        }
        self._names = listed(names) or "nothing, as nothing was displayed yet"
        titles = {name: "Loss" if "loss" in name else "Other outputs" for name in series}
        self._panels = "".join(
            panel(title, {name: series[name] for name in series if titles[name] == title})
            for title in sorted({*titles.values()})
        )

    def __repr__(self) -> str:
        return f"Plot of {self._names}: a notebook shows it, save(path) writes a page"

    def _repr_html_(self) -> str:
        return f'{_STYLE}<div class="osucaffe">{self._panels or repr(self)}</div>'

    def save(self, path: str | Path) -> None:
        """Write them as a page of HTML."""
        text = f'<!DOCTYPE html><meta charset="utf-8">{self._repr_html_()}\n'
        write_bytes(path, text.encode())


def latest(rows: Sequence[Row]) -> Row:
    """The last value of each column."""
    last: Row = {}
    for row in rows:
        last |= row
    return last


def words(rows: Sequence[Row]) -> str:
    """The last values but those of the axes: "loss 0.31, test accuracy 0.93"."""
    shown = (f"{name} {value:.4g}" for name, value in latest(rows).items() if name not in _AXES)
    return ", ".join(shown)


def html_rows(rows: Sequence[Row], caption: str, most: int = 10) -> str:
    """The last rows as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[f"{row[n]:.6g}" if n in row else "" for n in names] for row in rows[-most:]]
    return html_table(">" * len(names), names, *cells, caption=caption)


class ProgressLine(Observer):
    """One line about the iterations so far, written again at each display and test. shown: whether
    it is (None: in a terminal and in a notebook, of what takes longer than a second)."""

    def __init__(self, history: History, shown: bool | None) -> None:
        self._history, self.total = history, 0
        there = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._shown, self._width = there if shown is None else shown, 0
        self._patience = 0.0 if shown else 1.0

    def begin(self, iteration: int, total: int) -> None:
        """Training goes on, up to this iteration."""
        self._first, self._since, self.total = iteration, time.monotonic(), total
        self._write(iteration)

    def on_display(self, event: Display) -> None:
        """Show it."""
        self._write(event.iteration)

    def on_test(self, event: TestResult) -> None:
        """Show the result."""
        self._write(event.iteration)

    def end(self, iteration: int) -> None:
        """Training has stopped there."""
        self._write(iteration)
        if self._width:
            print(file=sys.stderr)
            self._width = 0

    def _write(self, iteration: int) -> None:
        done, took = iteration - self._first, time.monotonic() - self._since
        if not self._shown or took < self._patience:
            return
        left = f", {took / done * (self.total - iteration):.0f} s left" if done else ""
        filled = 20 * iteration // max(self.total, 1)
        bar = "█" * filled + "░" * (20 - filled)
        said = words(self._history.rows)
        text = f"{bar} {iteration:,}/{self.total:,}{left}{', ' if said else ''}{said}"
        print(f"\r{text:{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)
