"""`osucaffe time`: times each layer of a net, and compares it with the device's limits."""

from __future__ import annotations

import itertools
import logging
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import log, plugins
from ...api.tables import scaled, table
from ...backends.primitives.movement import is_feed
from ...graph.flops import by_layer, bytes_moved, flops
from ...net import Net
from .. import loading, output
from ..nets.summary import memory_of, report_memory
from .device_rates import Rates, measure_rates
from .options import Time


def run(options: Time) -> None:
    """Build the net, run it, and print the times."""
    log.start(options.log_dir)

    if options.cluster:
        plugins.need(plugins.ACTIONS, "measure_device")(options, options.cluster)
        return
    # On a separate backend: it caches nothing.
    rates = None if options.passes else measure_rates(loading.make_backend(options.device))
    net = loading.load_net(options, reads=False, phase=options.phase, gradients=True)
    if rates is None:
        for net_pass in net.passes:  # its calls in all programs before and after, and what it did
            counts = ("+".join(map(str, part)) or "-" for part in (net_pass.before, net_pass.after))
            print("{:20} {:>12} -> {:12} {}".format(net_pass.name, *counts, net_pass.did).rstrip())
        if options.verify:
            print(f"verified after each pass: {net.verified} reads; each gets what was recorded")
        return
    layers = measure(net, options.iterations)
    total = measure_whole(net, options.iterations)
    _log(layers, rates, total, options.iterations)
    report_memory(net)
    if options.json:
        output.print_json(document(net, layers, rates, total))
    elif sys.stdout.isatty() or log.quiet:  # the log does not tell
        _print_table(layers, rates)


def measure(net: Net, iterations: int) -> list[Layer]:
    """Run forward and backward `iterations` times, after an untimed pass."""
    logger = logging.getLogger("osucaffe")
    layers = [Layer(layer.label, layer.type) for layer in net.layers]
    _count(net, layers)
    logger.info("Performing Forward")
    net.forward()
    logger.info("Initial loss: %g", net.loss())
    logger.info("Performing Backward")
    net.backward()
    logger.info("*** Benchmark begins ***")
    logger.info("Testing for %d iterations.", iterations)
    timer = net.backend.timer()

    def mark(index: int) -> None:
        timer.mark()

    for iteration in range(iterations):
        timer.begin()
        net.forward(after=mark)
        net.backward(after=mark)
        marks = timer.read()
        spans = [(end - start) * 1e3 for start, end in itertools.pairwise(marks)]
        # After the last layer the net adds up the losses: that belongs to no layer.
        forward, backward = spans[: len(layers)], spans[len(layers) + 1 :]
        for layer, there, back in zip(layers, forward, reversed(backward), strict=True):
            layer.forward.times.append(there)
            layer.backward.times.append(back)
        total = (marks[-1] - marks[0]) * 1e3
        logger.info("Iteration: %d forward-backward time: %.4g ms.", iteration + 1, total)
    return layers


def measure_whole(net: Net, iterations: int) -> float:
    """The milliseconds of forward and backward as training runs them: as one graph, on a GPU."""
    step = net.as_step()
    for _ in range(3):
        step()
    times = []
    for _ in range(5):
        net.backend.synchronize()
        start = time.perf_counter()
        for _ in range(iterations):
            step()
        net.backend.synchronize()
        times.append((time.perf_counter() - start) * 1e3 / iterations)
    return statistics.median(times)


def _count(net: Net, layers: list[Layer]) -> None:
    """Add up the operations of each layer's calls, and the bytes of the tensors in them."""
    for direction, program in zip(("forward", "backward"), net.programs, strict=True):
        for layer, calls in zip(layers, by_layer(program, len(layers)), strict=True):
            cost = getattr(layer, direction)
            cost.flops = sum(map(flops, calls))
            cost.served = [
                (_computed(call.name, direction), call.implementation)
                for call in calls
                if call.implementation and flops(call)
            ]
            computing = (call for call in calls if not is_feed(call))
            cost.nbytes = bytes_moved(computing, net.backend.nbytes)


def _computed(primitive: str, direction: str) -> str:
    """What a call computes, in words."""
    gradients = {"backward_data": "data gradient", "backward_filter": "weight gradient"}
    return next((gradients[end] for end in gradients if primitive.endswith(end)), direction)


def _log(layers: Sequence[Layer], rates: Rates, total: float, iterations: int) -> None:
    """Log the times in Caffe's format, with operations and floors after them."""
    logger = logging.getLogger("osucaffe")
    logger.info("Average time per layer: ")
    for layer in layers:
        for word, cost in ("forward", layer.forward), ("backward", layer.backward):
            rate = f" ({_rates(cost.flops, cost.milliseconds)})" if cost.flops else ""
            floor = cost.floor(rates)
            share = f" floor {floor:.3g} ms ({_share(floor, cost.milliseconds)})" if floor else ""
            logger.info("%10s\t%s: %.4g ms.%s%s", layer.name, word, cost.milliseconds, rate, share)
            for computed, implementation in cost.served:
                logger.info("%10s\t%s by %s", layer.name, computed, implementation)
    forward, backward = (_sum(layers, word) for word in ("forward", "backward"))
    spent = forward.milliseconds + backward.milliseconds
    floor = sum(layer.forward.floor(rates) + layer.backward.floor(rates) for layer in layers)
    logger.info("Average Forward pass: %.4g ms.", forward.milliseconds)
    logger.info("Average Backward pass: %.4g ms.", backward.milliseconds)
    logger.info("Average Forward-Backward: %.4g ms.", spent)
    logger.info("Total Time: %.4g ms.", spent * iterations)
    logger.info("Arithmetic: %s", _rates(forward.flops + backward.flops, spent))
    logger.info("Rates of the device: %s", rates)
    logger.info("Floor: %.4g ms (%s of the layers' sum)", floor, _share(floor, spent))
    logger.info(
        "Whole iteration, as training runs it: %.4g ms (floor: %s)", total, _share(floor, total)
    )
    logger.info("*** Benchmark ends ***")


def _sum(layers: Sequence[Layer], direction: str) -> Cost:
    """The costs of all layers in one direction."""
    costs: list[Cost] = [getattr(layer, direction) for layer in layers]
    return Cost(
        [sum(cost.milliseconds for cost in costs)],
        sum(cost.flops for cost in costs),
        sum(cost.nbytes for cost in costs),
    )


def _share(floor: float, milliseconds: float) -> str:
    return f"{floor / milliseconds:.0%}" if milliseconds else "-"


def _rates(count: int, milliseconds: float) -> str:
    """Operations and their rate: "1.23 MFLOP, 45.6 GFLOP/s"."""
    rate = count / milliseconds / 1e6 if milliseconds else 0.0
    return f"{scaled(count, 'FLOP')}, {rate:.3g} GFLOP/s"


def _print_table(layers: Sequence[Layer], rates: Rates) -> None:
    """The same as a table."""
    total = Layer("total", "", _sum(layers, "forward"), _sum(layers, "backward"))
    heads = ("layer", "type", "forward ms", "GFLOP/s", "floor", "backward ms", "GFLOP/s", "floor")
    rows = [(layer.name, layer.type, *_cells(layer, total, rates)) for layer in (*layers, total)]
    print(*table("<<>>>>>>>", (*heads, "share"), *rows), sep="\n")


def _cells(layer: Layer, net: Layer, rates: Rates) -> tuple[str, ...]:
    cells = []
    for cost in layer.forward, layer.backward:
        spent = cost.milliseconds
        rate = f"{cost.flops / spent / 1e6:.1f}" if cost.flops and spent else ""
        cells += [f"{spent:.3f}", rate, _share(cost.floor(rates), spent)]
    total = net.forward.milliseconds + net.backward.milliseconds
    spent = layer.forward.milliseconds + layer.backward.milliseconds
    return (*cells, f"{spent / (total or 1):.1%}")


@dataclass
class Cost:
    """One direction of a layer: milliseconds of each iteration, operations and bytes of one.

    served: what it computes, and the library or kernel that computes it.
    """

    times: list[float] = field(default_factory=list)
    flops: int = 0
    nbytes: int = 0
    served: list[tuple[str, str]] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        return statistics.median(self.times) if self.times else 0.0

    def floor(self, rates: Rates) -> float:
        """The least milliseconds that the device needs."""
        return 1e3 * max(self.flops / rates.flops, self.nbytes / rates.nbytes)


@dataclass
class Layer:
    """The costs of one layer."""

    name: str
    type: str
    forward: Cost = field(default_factory=Cost)
    backward: Cost = field(default_factory=Cost)


def document(net: Net, layers: list[Layer], rates: Rates, total: float) -> dict[str, Any]:
    """The results for scripts: milliseconds, operations and bytes."""
    return {
        "name": net.name,
        "whole": total,
        "layers": [
            {"name": layer.name, "type": layer.type}
            | {
                word: {
                    "milliseconds": cost.milliseconds,
                    "floor": cost.floor(rates),
                    "flops": cost.flops,
                    "bytes": cost.nbytes,
                    "by": [implementation for _, implementation in cost.served],
                }
                for word, cost in (("forward", layer.forward), ("backward", layer.backward))
            }
            for layer in layers
        ],
        "rates": vars(rates),
        "memory": memory_of(net),
    }
