"""Score a model: the mean of its outputs over a number of batches.

  osucaffe test --model train_val.prototxt --weights trained.caffemodel --iterations 100

The log has the outputs of each batch and, at its end, their means. For a net with a
DetectionEvaluate layer (SSD) it has the average precision of each label, and their mean (mAP):

  osucaffe test --model test.prototxt --weights ssd.caffemodel --iterations 619 --detection"""

from __future__ import annotations

import argparse
import logging
import time
from typing import TYPE_CHECKING, Any

from ...errors import UserError, listed
from .. import json_output, options
from . import sharding

if TYPE_CHECKING:
    import numpy as np

    from ...comm.job.job import Job

    More = tuple[list[np.ndarray], list[Any]]
    """The detections of a batch, and what the files of results are made of."""

_log = logging.getLogger("osucaffe")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", metavar="FILE", required=True, help="the net's prototxt")
    options.add_weights(parser, "the trained weights (several files: with commas)")
    options.add_strict(parser)
    parser.add_argument(
        "--iterations",
        metavar="N",
        type=options.positive,
        default=50,
        help="number of batches (default: 50)",
    )
    parser.add_argument(
        "--detection",
        action="store_true",
        help="print the mean average precision; stop if the net has no layer that computes it",
    )
    parser.add_argument(
        "--results",
        metavar="DIR",
        help="write the detections to DIR, in the files that save_output_param describes",
    )
    json_output.add_json(parser)
    options.add_log(parser)
    options.add_state(parser)
    sharding.add_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Run the net in its TEST phase and print the scores."""
    if not args.weights:
        raise UserError("--weights is missing: give the .caffemodel to score")
    with sharding.joined(args) as (args, job):
        _test(args, job)


def _test(args: argparse.Namespace, job: Job) -> None:
    models = options.read_weights(args.weights)
    backend = options.make_backend(args)

    import numpy as np

    from ...net import Net
    from ...proto import read_net
    from ...solvers.detection import check_detection, detection_outputs
    from ...solvers.report import name_outputs
    from .detection_results import gather

    net = Net(
        read_net(args.model),
        phase="TEST",
        backend=backend,
        level=args.level,
        stages=args.stage,
        inference=True,
    )
    options.check_fed(net, args.model)
    if args.detection:
        check_detection(net, args.model)
    detections: dict[str, list[np.ndarray]] = {name: [] for name in detection_outputs(net)}
    results = gather(net, args.results) if args.results else []
    options.compare_preprocessing(net, args.model, models)
    options.load_weights(net, models, args)
    sharding.split(net, job)

    def more() -> More:
        rows = [net.read(name)[0, 0] for name in detections]
        return rows, [each.read(net) for each in results]

    _log.info("Running for %d iterations.", args.iterations)
    start, total, loss = time.perf_counter(), np.zeros(0), 0.0
    scores = sharding.outputs(net, job, args.iterations, more, loss=True)
    for batch, (numbers, (rows, found)) in enumerate(scores):
        values = numbers[:-1]
        total = values if batch == 0 else total + values
        loss += float(numbers[-1])
        for kept, row in zip(detections.values(), rows, strict=True):
            kept.append(row)
        for each, read in zip(results, found, strict=True):
            each.add(read)
        for output in name_outputs(net, values):
            _log.info("Batch %d, %s = %g", batch, output.name, output.value)
    if job.rank:
        return
    _log.info("All %d batches: %.3f s", args.iterations, time.perf_counter() - start)
    _log.info("Loss: %g", loss / args.iterations)
    means = name_outputs(net, total / args.iterations)
    for output in means:
        text = f"{output.name} = {output.value:g}"
        if output.loss_weight:
            weighted = output.loss_weight * output.value
            text += f" (* {output.loss_weight:g} = {weighted:g} loss)"
        _log.info("%s", text)
    for each in results:
        _log.info("Detections in %s", listed(each.write()))
    precisions = {name: _precision(name, np.concatenate(rows)) for name, rows in detections.items()}
    if args.json:
        outputs = [vars(output) for output in means]
        scored = {"iterations": args.iterations, "loss": loss / args.iterations, "outputs": outputs}
        judged = {"average_precision": precisions} if precisions else {}
        json_output.print_json({**scored, **judged})


def _precision(name: str, rows: np.ndarray) -> dict[str, Any]:
    """Log the average precisions of each label by all definitions, and their means; and give them
    by definition."""
    from ...solvers.detection import VERSIONS, average_precisions, mean_average_precision

    found = {version: average_precisions(rows, version) for version in VERSIONS}
    for label in next(iter(found.values())):
        values = ", ".join(f"{version} {each[label]:.4f}" for version, each in found.items())
        _log.info("%s, label %d: AP %s", name, label, values)
    means = {version: mean_average_precision(rows, version) for version in VERSIONS}
    text = ", ".join(f"{version} {mean:.4f}" for version, mean in means.items())
    _log.info("%s: mAP %s", name, text)
    return {version: {"mean": means[version], "labels": found[version]} for version in VERSIONS}
