"""Score a model: the mean of a net's outputs over a number of batches.

  osucaffe test --model train_val.prototxt --weights trained.caffemodel --iterations 100

The log has the outputs of each batch, and at its end their means."""

from __future__ import annotations

import argparse
import logging

from . import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", metavar="FILE", required=True, help="the net's prototxt")
    options.add_weights(parser, "the trained weights (several files: with commas)")
    options.add_strict(parser)
    parser.add_argument(
        "--iterations", metavar="N", type=options.positive, default=50, help="batches (default: 50)"
    )
    options.add_log(parser)
    options.add_state(parser)
    options.add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Run the net in its TEST phase and print the scores."""
    from .. import log
    from ..errors import UserError

    log.start(args.log_dir)
    logger = logging.getLogger("osucaffe")
    if not args.weights:
        raise UserError("--weights is missing: give the .caffemodel to score")
    models = options.read_weights(args.weights)
    backend = options.make_backend(args)

    import numpy as np

    from ..net import Net
    from ..proto import read_net
    from ..solvers.report import name_outputs, read_outputs

    net = Net(
        read_net(args.model), phase="TEST", backend=backend, level=args.level, stages=args.stage
    )
    options.check_fed(net, args.model)
    options.compare_preprocessing(net, args.model, models)
    options.load_weights(net, models, args)
    logger.info("Running for %d iterations.", args.iterations)
    total, loss = np.zeros(0), 0.0
    for batch in range(args.iterations):
        net.forward()
        values = read_outputs(net)
        total = values if batch == 0 else total + values
        loss += net.loss()
        for output in name_outputs(net, values):
            logger.info("Batch %d, %s = %g", batch, output.name, output.value)
    logger.info("Loss: %g", loss / args.iterations)
    for output in name_outputs(net, total / args.iterations):
        text = f"{output.name} = {output.value:g}"
        if output.loss_weight:
            weighted = output.loss_weight * output.value
            text += f" (* {output.loss_weight:g} = {weighted:g} loss)"
        logger.info("%s", text)
