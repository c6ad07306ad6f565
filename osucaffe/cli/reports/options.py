"""Owns the options of the commands that read the logs of training runs."""

from __future__ import annotations

from dataclasses import dataclass

from ...options.flags import argument, flag, group, like
from ...options.kinds import COUNT, EXTENT, Kind, character
from ..options import JSON, LABELS, NO_PYTHON_LAYERS, PAGE, WEIGHTS, Device


@dataclass(frozen=True, kw_only=True)
class ParseLog:
    """
      osucaffe parse_log caffe.INFO results

    writes results/caffe.INFO.train and .test, tables in CSV: NumIters, Seconds, LearningRate, and
    the net's outputs; and the plot results/caffe.INFO.png, if matplotlib is installed (pip install
    "osucaffe[tools]"). Further test nets get .test1, .test2 ..."""

    log: str = argument("the log file", "LOG")
    folder: str | None = argument(
        "where to write the tables and the plot (not needed with --json)", "FOLDER", nargs="?"
    )
    json: bool = like(JSON)
    delimiter: str = flag("column separator", Kind("D", character), ",")
    plot: str | None = flag("the plot's file: .png, .svg or .pdf (default: as above)", "FILE")


@dataclass(frozen=True, kw_only=True)
class Report:
    """
      osucaffe report solver.prototxt                    its best or newest model, on its test data
      osucaffe report FOLDER --log log --out page.html   that in a folder, and its log

    The page is a single HTML file without external resources. Its curves come from the log given by
    --log, or else from osucaffe.INFO next to the solver or in a folder log there (train --log_dir
    log writes it). Predictions are those of the first test net; names of classes come from
    --labels, or from labels.txt next to its data."""

    solver: str = argument("the solver's prototxt, or a folder with one", "RUN")
    out: str = like(PAGE, default="report.html")
    log: str | None = flag("the training log, or its folder", "FILE")
    weights: list[str] = like(WEIGHTS, "the model (default: PREFIX_best, or the newest snapshot)")
    labels: str | None = like(LABELS)
    iterations: int | None = flag("number of test batches (default: test_iter)", COUNT)
    pictures: int = flag("how many best and worst predictions to show", COUNT, 12)
    passes: int = flag("how many passes to time (default: %(default)s; 0: no times)", EXTENT, 5)
    no_python_layers: bool = like(NO_PYTHON_LAYERS)
    device: Device = group(Device)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """
      osucaffe profile ring.json
      osucaffe profile ring.json tree.json --plot both.png

    Of two: the parts of an iteration, and what travelled by operation, algorithm, level and size,
    with the second's time over the first's."""

    profile: str = argument("a profile (JSON)", "FILE")
    other: str | None = argument("another one, to be compared", "FILE", nargs="?")
    plot: str | None = flag("draw it: .png, .svg or .pdf", "FILE")
