"""Time a net: each layer forward and backward, and its arithmetic.

  osucaffe time --model train_val.prototxt --iterations 50

Milliseconds are means over the iterations; a first, untimed pass warms up."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import options

if TYPE_CHECKING:
    from ..net import Net


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", metavar="FILE", required=True, help="the net's prototxt")
    options.add_weights(parser, "weights to load first (default: the fillers' random ones)")
    parser.add_argument(
        "--iterations", metavar="N", type=options.positive, default=50, help="passes (default: 50)"
    )
    parser.add_argument(
        "--phase",
        type=str.upper,
        choices=("TRAIN", "TEST"),
        default="TRAIN",
        help="which phase's layers (default: TRAIN)",
    )
    options.add_log(parser)
    options.add_state(parser)
    options.add_device(parser)


@dataclass
class Layer:
    """What one layer took: mean milliseconds, and operations of a pass."""

    name: str
    type: str
    forward: float = 0.0
    backward: float = 0.0
    forward_flops: int = 0
    backward_flops: int = 0


def run(args: argparse.Namespace) -> None:
    """Build the net, run it, and print the times."""
    from .. import log

    log.start(args.log_dir)
    backend = options.make_backend(args)

    from ..net import Net
    from ..proto import read_net

    net = Net(
        read_net(args.model),
        phase=args.phase,
        backend=backend,
        level=args.level,
        stages=args.stage,
        gradients=True,
    )
    options.load_weights(net, args.weights)
    layers = measure(net, args.iterations)
    _log(layers, args.iterations)
    if sys.stdout.isatty():
        _print_table(net, layers)


def measure(net: Net, iterations: int) -> list[Layer]:
    """Run forward and backward `iterations` times, after a pass that is not timed."""
    logger = logging.getLogger("osucaffe")
    layers = [Layer(layer.name, layer.type) for layer in net.layers]
    _count(net, layers)
    logger.info("Performing Forward")
    net.forward()
    logger.info("Initial loss: %g", net.loss())
    logger.info("Performing Backward")
    net.backward()
    logger.info("*** Benchmark begins ***")
    logger.info("Testing for %d iterations.", iterations)
    last = time.perf_counter()

    def lap() -> float:
        """Milliseconds since the last call."""
        nonlocal last
        net.backend.synchronize()
        now = time.perf_counter()
        milliseconds, last = (now - last) * 1e3, now
        return milliseconds

    def forward(index: int) -> None:
        # Behind the last layer the net adds up the losses: that is not counted.
        milliseconds = lap() / iterations
        if index < len(layers):
            layers[index].forward += milliseconds

    def backward(index: int) -> None:
        layers[index].backward += lap() / iterations

    for iteration in range(iterations):
        start = time.perf_counter()
        lap()
        net.forward(after=forward)
        lap()
        net.backward(after=backward)
        milliseconds = (time.perf_counter() - start) * 1e3
        logger.info("Iteration: %d forward-backward time: %.4g ms.", iteration + 1, milliseconds)
    return layers


def _count(net: Net, layers: list[Layer]) -> None:
    """Add up the operations of each layer's calls."""
    from ..graph.flops import flops

    by_name = {layer.name: layer for layer in layers}
    forward, backward = net.programs[:2]
    for call in forward:
        if call.layer:
            by_name[call.layer].forward_flops += flops(call)
    for call in backward:
        if call.layer:
            by_name[call.layer].backward_flops += flops(call)


def _log(layers: Sequence[Layer], iterations: int) -> None:
    """Say it in Caffe's words, with operations after the times."""
    logger = logging.getLogger("osucaffe")
    logger.info("Average time per layer: ")
    for layer in layers:
        for word, milliseconds, operations in (
            ("forward", layer.forward, layer.forward_flops),
            ("backward", layer.backward, layer.backward_flops),
        ):
            rate = f" ({_rates(operations, milliseconds)})" if operations else ""
            logger.info("%10s\t%s: %.4g ms.%s", layer.name, word, milliseconds, rate)
    forward = sum(layer.forward for layer in layers)
    backward = sum(layer.backward for layer in layers)
    operations = sum(layer.forward_flops + layer.backward_flops for layer in layers)
    logger.info("Average Forward pass: %.4g ms.", forward)
    logger.info("Average Backward pass: %.4g ms.", backward)
    logger.info("Average Forward-Backward: %.4g ms.", forward + backward)
    logger.info("Total Time: %.4g ms.", (forward + backward) * iterations)
    logger.info("Arithmetic: %s", _rates(operations, forward + backward))
    logger.info("*** Benchmark ends ***")


def _rates(operations: int, milliseconds: float) -> str:
    """Operations and how many a second: "1.23 MFLOP, 45.6 GFLOP/s"."""
    size, unit = (operations / 1e9, "GFLOP") if operations >= 1e9 else (operations / 1e6, "MFLOP")
    rate = operations / milliseconds / 1e6 if milliseconds else 0.0
    return f"{size:.3g} {unit}, {rate:.3g} GFLOP/s"


def _print_table(net: Net, layers: Sequence[Layer]) -> None:
    """The same as a table, on a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=net.name or None, box=box.SIMPLE_HEAD, show_footer=True)
    whole = Layer("total", "")
    for layer in layers:
        whole.forward += layer.forward
        whole.backward += layer.backward
        whole.forward_flops += layer.forward_flops
        whole.backward_flops += layer.backward_flops
    table.add_column("layer", "total")
    table.add_column("type")
    headings = ("forward ms", "GFLOP/s", "backward ms", "GFLOP/s", "MFLOP", "share")
    for heading, total in zip(headings, _cells(whole, whole), strict=True):
        table.add_column(heading, total, justify="right")
    for layer in layers:
        table.add_row(layer.name, layer.type, *_cells(layer, whole))
    Console().print(table)


def _cells(layer: Layer, whole: Layer) -> tuple[str, ...]:
    def rate(operations: int, milliseconds: float) -> str:
        return f"{operations / milliseconds / 1e6:.1f}" if operations and milliseconds else ""

    operations = layer.forward_flops + layer.backward_flops
    share = (layer.forward + layer.backward) / ((whole.forward + whole.backward) or 1)
    return (
        f"{layer.forward:.3f}",
        rate(layer.forward_flops, layer.forward),
        f"{layer.backward:.3f}",
        rate(layer.backward_flops, layer.backward),
        f"{operations / 1e6:.1f}" if operations else "",
        f"{share:.1%}",
    )
