"""The options of the commands that read the logs of training runs."""

from __future__ import annotations

from dataclasses import dataclass

from ...options.flags import argument, flag, like
from ...options.kinds import Kind, character
from ..options import JSON


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
