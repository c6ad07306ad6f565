"""`osucaffe report`: gathers the content of an HTML page about a training run."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ... import __version__, log
from ...api.curves import panel
from ...api.logs import Log, log_of, panels_of
from ...api.model_files import best_models, newest_model
from ...cli import loading
from ...cli.reports.report_page import cards, code, facts, page, results, table
from ...cli.score.predictions import Scoring, predict, scored_blobs, sources_of
from ...cli.score.time import measure
from ...errors import UserError
from ...files import write_bytes
from ...proto import SolverParameter, format_text, read_net, read_solver
from ...solvers.nets import testing_nets, training_net
from ...solvers.report import epochs_of
from .adapt import UNSEEN
from .options import Report

logger = logging.getLogger("osucaffe")


def run(options: Report) -> None:
    """Gather, and write the page."""
    log.start()
    options.device.check()
    file = Path(options.solver)
    file = file / "solver.prototxt" if file.is_dir() else file
    param = read_solver(str(file))
    gpu = options.device.gpu
    device = "the CPU" if gpu is None else f"GPU {gpu}"
    log_of_run = _log_of_run(options, file)
    panels = panels_of(log_of_run).items()
    sections = [
        ("Run", _facts(log_of_run, param, file)),
        ("Curves", "".join(panel(name.capitalize(), curves) for name, curves in panels)),
        *_predictions(options, file, param),
        (f"Time per layer, on {device}", _times(options, file, param)),
        ("Solver", code(format_text(param))),
    ]
    text = page(f"{file.parent.resolve().name}: {file.name}", f"osucaffe {__version__}", sections)
    write_bytes(options.out, text.encode())
    print(f"wrote {options.out}")


def _log_of_run(options: Report, file: Path) -> Log:
    """The run's log: of all its parts, if it was resumed; an empty one without a log."""
    places = [Path(options.log)] if options.log else [file.parent, file.parent / "log"]
    if found := log_of(places):
        return found
    if options.log:
        raise UserError(f"--log {options.log}: no log found")
    logger.warning("No log next to %s, so no curves: give --log", file)
    return Log()


def _facts(run: Log, param: SolverParameter, file: Path) -> str:
    """When and how long the run was, on which data, and by which commands."""
    rows = [("began", run.began)] if run.began else []
    if run.seconds:
        rows.append(("took", str(datetime.timedelta(seconds=round(run.seconds)))))
    sources = sources_of(training_net(param, str(file), read_net).param)
    rows += [("data", ", ".join(dict.fromkeys(sources)))] if sources else []
    return facts([*rows, *(("command", command) for command in run.commands)])


def _predictions(options: Report, file: Path, param: SolverParameter) -> Iterator[tuple[str, str]]:
    """The model's predictions on the test records, in sections; none without test nets."""
    choices = testing_nets(param, str(file), read_net)
    weights = options.weights or newest_model(param.snapshot_prefix)
    batches = options.iterations or next(iter(param.test_iter), 0)
    if not choices or not weights or not batches:
        logger.warning("%s: no test batches or no model yet, so no predictions", file)
        return
    choice, titles = choices[0], {"": "Test"}
    chose = weights[0] in best_models(param.snapshot_prefix)
    if any(UNSEEN in rule.stage for layer in choice.param.layer for rule in layer.include):
        titles = {UNSEEN: "Test, on records that had no part in training", "": "Validation"}
    titles[""] += ", on the records that chose this model" if chose else ""
    for at, (stage, title) in enumerate(titles.items()):
        stages = (*choice.stages, *filter(None, [stage]))
        net = replace(choice, stages=stages).build(
            phase="TEST",
            backend=loading.make_backend(options.device),
            inspectable=True,
            gradients=False,
        )
        loading.check_fed(net, str(file))
        loading.load_weights(net, loading.read_weights(weights), strict=False)
        blobs = scored_blobs(net.param)
        if blobs is None:
            logger.warning("%s: its net gives no classes scores, so no predictions", file)
            return
        scoring = Scoring(net, blobs, options.labels)
        epochs = epochs_of(net)
        count = -(-epochs.count // epochs.per_iteration) if stage and epochs else batches
        predictions, names = predict(net, scoring, count, options.pictures), scoring.names
        yield f"{title}: {', '.join(weights)}", results(predictions, names)
        if not at:
            yield "Worst predictions", cards(predictions.worst, names)
            yield "Best predictions", cards(predictions.best, names)


def _times(options: Report, file: Path, param: SolverParameter) -> str:
    """A table of the training net's layers, as `osucaffe time` measures them."""
    if not options.passes:
        return ""
    choice = training_net(param, str(file), read_net)
    net = choice.build(phase="TRAIN", backend=loading.make_backend(options.device), gradients=True)
    layers = measure(net, options.passes)
    times = [(layer.forward.milliseconds, layer.backward.milliseconds) for layer in layers]
    total = sum(map(sum, times))
    rows = [
        (layer.name, layer.type, f"{there:.3f}", f"{back:.3f}", f"{(there + back) / total:.1%}")
        for layer, (there, back) in zip(layers, times, strict=True)
    ]
    there, back = map(sum, zip(*times, strict=True))
    rows.append(("all", "", f"{there:.3f}", f"{back:.3f}", "100.0%"))
    return table(("layer", "type", "forward ms", "backward ms", "share"), rows)
