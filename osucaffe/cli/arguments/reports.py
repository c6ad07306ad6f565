"""Owns the options of the commands that read the logs of training runs."""

from __future__ import annotations

from .options import COUNT, EXTENT, Kind, Options, character


def parse_log(add: Options) -> None:
    """Make tables and a plot of a training log, of osucaffe or of C++ Caffe.

      osucaffe parse_log caffe.INFO results

    writes results/caffe.INFO.train and .test, tables in CSV: NumIters, Seconds, LearningRate, and
    the net's outputs; and the plot results/caffe.INFO.png, if matplotlib is installed (pip install
    "osucaffe[tools]"). Further test nets get .test1, .test2 ..."""
    add("log", "the log file", "LOG")
    add(
        "folder",
        "where to write the tables and the plot (not needed with --json)",
        "FOLDER",
        nargs="?",
    )
    add.common("--json")
    add("--delimiter", "column separator", Kind("D", character), ",")
    add("--plot", "the plot's file: .png, .svg or .pdf (default: as above)", "FILE")


def report(add: Options) -> None:
    """Write an HTML page about a training run: curves, predictions, times, settings.

      osucaffe report solver.prototxt                    its best or newest model, on its test data
      osucaffe report FOLDER --log log --out page.html   that in a folder, and its log

    The page is a single HTML file without external resources. Its curves come from the log given by
    --log, or else from osucaffe.INFO next to the solver or in a folder log there (train --log_dir
    log writes it). Predictions are those of the first test net; names of classes come from
    --labels, or from labels.txt next to its data."""
    add("solver", "the solver's prototxt, or a folder with one", "RUN")
    add("--out", "the page to write", "FILE", "report.html")
    add("--log", "the training log, or its folder", "FILE")
    add.common("--weights", help="the model (default: PREFIX_best, or the newest snapshot)")
    add("--labels", "names of the classes, one per line", "FILE")
    add("--iterations", "number of test batches (default: test_iter)", COUNT)
    add("--pictures", "how many best and worst predictions to show", COUNT, 12)
    add("--passes", "how many passes to time (default: %(default)s; 0: no times)", EXTENT, 5)
    add.device()


def profile(add: Options) -> None:
    """Show what train --comm_profile recorded, or two such profiles side by side.

      osucaffe profile ring.json
      osucaffe profile ring.json tree.json --plot both.png

    Of two: the parts of an iteration, and what travelled by operation, algorithm, level and size,
    with the second's time over the first's."""
    add("profile", "a profile (JSON)", "FILE")
    add("other", "another one, to be compared", "FILE", nargs="?")
    add("--plot", "draw it: .png, .svg or .pdf", "FILE")
