"""`osucaffe parse_log`: tables and a plot of a training log, of osucaffe or C++ Caffe."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from ...api.curves import COLOURS
from ...api.logs import Log, Row, panels_of, parse
from ...errors import UserError
from ...files import read_bytes, write_bytes
from .. import output, plots
from .options import ParseLog

_MAX_OUTPUTS = 1000
"""Columns of a table: a row has a cell for each."""


def run(options: ParseLog) -> None:
    """Read, write, draw."""
    if not (options.folder or options.json):
        raise UserError("say in which FOLDER to write the tables, or --json to print them")
    path = Path(options.log)
    log = parse(read_bytes(path).decode(errors="replace").splitlines())
    if not log.train and not log.tests:
        raise UserError(
            f"{path}: has no lines of a training run with outputs, such as "
            '"I1121 09:22:33.123456  4711 solver.py:218] Iteration 100, lr = 0.01"; '
            "set display in the solver"
        )
    if options.json:
        output.print_json({"train": log.train, "tests": log.tests})
    if options.folder:
        _write(options, log, path, Path(options.folder))


def _write(options: ParseLog, log: Log, path: Path, folder: Path) -> None:
    """Write the tables, draw the plot; written files are listed unless JSON is requested."""
    output.make_folder(folder)
    tables = {".train": log.train}
    tables |= {f".test{net or ''}": rows for net, rows in sorted(log.tests.items())}
    for suffix, rows in tables.items():
        write_table(folder / (path.name + suffix), rows, options.delimiter)
        output.tell(options, f"wrote {folder / (path.name + suffix)}")
    if options.plot or importlib.util.find_spec("matplotlib"):
        picture = options.plot or str(folder / f"{path.name}.png")
        draw(log, picture, title=path.name)
        output.tell(options, f"wrote {picture}")


def write_table(path: Path, rows: Sequence[Row], delimiter: str = ",") -> None:
    """Write a table; columns are all that some row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if len(columns) > _MAX_OUTPUTS:
        raise UserError(f"{path}: the log has {len(columns):,} outputs, too many for a table")
    lines = ([f"{row[key]:.10g}" if key in row else "" for key in columns] for row in rows)
    write_bytes(path, output.csv_text([columns, *lines], delimiter).encode())


def draw(log: Log, path: str, title: str) -> None:
    """Draw losses in one panel, other outputs (accuracies) in another, and the learning rate."""
    plt = plots.pyplot()
    *outputs, (_, rate) = panels_of(log).items()
    rates = rate["rate"]
    panels = [(name, series) for name, series in outputs if series]
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
                color=COLOURS[index % len(COLOURS)],
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
