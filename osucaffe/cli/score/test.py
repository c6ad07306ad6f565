"""Owns `osucaffe test`: scores a model, the mean of its outputs over a number of batches."""

from __future__ import annotations

import argparse
import logging
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ...comm.job.job import Job
from ...errors import UserError, listed
from ...solvers.detection import (
    VERSIONS,
    average_precisions,
    check_detection,
    detection_outputs,
    mean_average_precision,
)
from ...solvers.report import name_outputs
from .. import options, output
from . import sharding
from .detection_results import gather

if TYPE_CHECKING:
    More = tuple[list[np.ndarray], list[Any]]
    """The detections of a batch, and what the files of results are made of."""

_log = logging.getLogger("osucaffe")


def run(args: argparse.Namespace) -> None:
    """Run the net in its TEST phase and print the scores."""
    if not args.weights:
        raise UserError("--weights is missing: give the .caffemodel to score")
    with sharding.joined(args) as (args, job):
        _test(args, job)


def _test(args: argparse.Namespace, job: Job) -> None:
    net = options.load_net(args, reads=True, phase="TEST", inference=True)
    if args.detection:
        check_detection(net, args.model)
    detections: dict[str, list[np.ndarray]] = {name: [] for name in detection_outputs(net)}
    results = gather(net, args.results) if args.results else []
    sharding.split(net, job)

    def more() -> More:
        rows = [net.read(name)[0, 0] for name in detections]
        return rows, [result.read(net) for result in results]

    _log.info("Running for %d iterations.", args.iterations)
    start, total, loss = time.perf_counter(), np.zeros(0), 0.0
    scores = sharding.outputs(net, job, args.iterations, more, loss=True)
    for batch, (numbers, (rows, batch_results)) in enumerate(scores):
        values = numbers[:-1]
        total = values if batch == 0 else total + values
        loss += float(numbers[-1])
        for detection, row in zip(detections.values(), rows, strict=True):
            detection.append(row)
        for gathered, read in zip(results, batch_results, strict=True):
            gathered.add(read)
        for one in name_outputs(net, values):
            _log.info("Batch %d, %s = %g", batch, one.name, one.value)
    if job.rank:
        return
    _log.info("All %d batches: %.3f s", args.iterations, time.perf_counter() - start)
    _log.info("Loss: %g", loss / args.iterations)
    means = name_outputs(net, total / args.iterations)
    for mean in means:
        text = f"{mean.name} = {mean.value:g}"
        if mean.loss_weight:
            text += f" (* {mean.loss_weight:g} = {mean.loss_weight * mean.value:g} loss)"
        _log.info("%s", text)
    for gathered in results:
        _log.info("Detections in %s", listed(gathered.write()))
    precisions = {name: _precision(name, np.concatenate(rows)) for name, rows in detections.items()}
    if args.json:
        outputs = [vars(mean) for mean in means]
        scored = {"iterations": args.iterations, "loss": loss / args.iterations, "outputs": outputs}
        judged = {"average_precision": precisions} if precisions else {}
        output.print_json({**scored, **judged})


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
