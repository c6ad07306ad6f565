"""`osucaffe test`: scores a model, the mean of its outputs over a number of batches."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import plugins
from ...comm.job.job import Job
from ...errors import UserError, listed, naming
from ...graph.prototxt.filter import filter_layers, net_state
from ...net import Net
from ...proto import read_net
from ...solvers.detection import (
    VERSIONS,
    average_precisions,
    check_detection,
    detection_outputs,
    mean_average_precision,
)
from ...solvers.report import epochs_of, name_outputs
from .. import loading, output
from . import sharding
from .options import Test
from .predictions import Prediction, Scoring, scored_blobs, write_predictions

if TYPE_CHECKING:
    More = tuple[list[np.ndarray], list[Any], tuple[np.ndarray, np.ndarray] | None]
    """The detections of a batch, the data for result files, and the scores and labels."""

_log = logging.getLogger("osucaffe")
_BATCHES = 50
"""Caffe's default."""


def run(options: Test) -> None:
    """Run the net in its TEST phase and print the scores."""
    if not options.weights:
        raise UserError("--weights is missing: give the .caffemodel to score")
    with sharding.joined(options, options.log_dir) as (device, job):
        _test(replace(options, device=device), job)


def _test(options: Test, job: Job) -> None:
    with naming(options.model):
        state = net_state(
            param := read_net(options.model), "TEST", options.state.level, options.state.stages
        )
        blobs = scored_blobs(filter_layers(param, state))
    wanted = blobs[:2] if blobs else ()
    settings = {"phase": "TEST", "inference": True, "wanted": wanted}
    net = loading.load_net(options, reads=True, param=param, **settings)
    if options.detection:
        check_detection(net, options.model)
    detections: dict[str, list[np.ndarray]] = {name: [] for name in detection_outputs(net)}
    results = []
    if options.results:
        results = plugins.need(plugins.ACTIONS, "detections")(net, options.results)
    scoring = Scoring(net, blobs, options.labels) if blobs and blobs.fit(net) else None
    if options.predictions and not scoring:
        raise UserError(f"--predictions: {options.model} has no class for each record")
    all_rows: list[Prediction] = []
    sharding.split(net, job)

    def more() -> More:
        rows = [net.read(name)[0, 0] for name in detections]
        predicted = scoring.blobs.read(net) if scoring else None
        return rows, [result.read(net) for result in results], predicted

    iterations = _iterations(options, net)
    start, total, loss = time.perf_counter(), np.zeros(0), 0.0
    scores = sharding.outputs(net, job, iterations, more, loss=True)
    for batch, (numbers, (rows, batch_results, predicted)) in enumerate(scores):
        values = numbers[:-1]
        total = values if batch == 0 else total + values
        loss += float(numbers[-1])
        for detection, row in zip(detections.values(), rows, strict=True):
            detection.append(row)
        for gathered, read in zip(results, batch_results, strict=True):
            gathered.add(read)
        if scoring and predicted:
            scoring.add(batch, *predicted)
            all_rows += scoring.rows if options.predictions else []
        for one in name_outputs(net, values):
            _log.info("Batch %d, %s = %g", batch, one.name, one.value)
    if job.rank:
        return
    _log.info("All %d batches: %.3f s", iterations, time.perf_counter() - start)
    _log.info("Loss: %g", loss / iterations)
    means = name_outputs(net, total / iterations)
    for mean in means:
        text = f"{mean.name} = {mean.value:g}"
        if mean.loss_weight:
            text += f" (* {mean.loss_weight:g} = {mean.loss_weight * mean.value:g} loss)"
        _log.info("%s", text)
    for gathered in results:
        _log.info("Detections in %s", listed(gathered.write()))
    precisions = {name: _precision(name, np.concatenate(rows)) for name, rows in detections.items()}
    document: dict[str, Any] = {"iterations": iterations, "loss": loss / iterations}
    document |= {"outputs": [vars(mean) for mean in means]}
    document |= {"average_precision": precisions} if precisions else {}
    if scoring:
        output.tell(options, scoring.result.text(scoring.names))
        document |= scoring.result.document(scoring.names)
    if scoring and options.predictions:
        write_predictions(options.predictions, all_rows, scoring.names)
        output.tell(options, f"wrote {options.predictions}")
    if options.json:
        output.print_json(document)


def _iterations(options: Test, net: Net) -> int:
    """The number of batches: by default those with which each record is read; and a log line on
    which records these are."""
    epochs = epochs_of(net)
    if epochs is None:
        count = options.iterations or _BATCHES
        _log.info("Running for %d iterations.", count)
        return count
    count = options.iterations or -(-epochs.count // epochs.per_iteration)
    read, there = count * epochs.per_iteration, f"{epochs.count:,}"
    which = f"{read:,} of {there} records, each once"
    if read == epochs.count:
        which = f"each of {there} records once"
    elif read > epochs.count:
        which = (
            f"each of {there} records, and {read - epochs.count:,} again to fill the batches: the "
            "means of batches count these again"
        )
    _log.info("Running for %d iterations: %s.", count, which)
    return count


def _precision(name: str, rows: np.ndarray) -> dict[str, Any]:
    """Log the average precisions of each label by all definitions, and their means; and give them
    by definition."""
    by_version = {version: average_precisions(rows, version) for version in VERSIONS}
    for label in next(iter(by_version.values())):
        values = ", ".join(f"{name} {aps[label]:.4f}" for name, aps in by_version.items())
        _log.info("%s, label %d: AP %s", name, label, values)
    means = {version: mean_average_precision(rows, version) for version in VERSIONS}
    text = ", ".join(f"{version} {mean:.4f}" for version, mean in means.items())
    _log.info("%s: mAP %s", name, text)
    return {name: {"mean": means[name], "labels": by_version[name]} for name in VERSIONS}
