"""A net's outputs as numbers, iterations as epochs, and the log lines that show them in
Caffe's format."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..net import Net
from .observer import Display, Output, TestResult

logger = logging.getLogger("osucaffe")


def numbers(net: Net) -> list[str]:
    """The outputs whose elements mean the same in each pass: not those of varying length."""
    return [name for name in net.outputs if net.blobs[name].length is None]


def read_outputs(net: Net) -> np.ndarray:
    """All elements of these outputs of the last forward pass, concatenated (float64)."""
    arrays = [np.ravel(net.read(name)) for name in numbers(net)]
    return np.concatenate([*arrays, np.empty(0)])


def name_outputs(net: Net, values: Sequence[float] | np.ndarray) -> list[Output]:
    """The elements from `read_outputs` (or means of them) with the names of their blobs."""
    labels = [
        (name, net.loss_weight(name))
        for name in numbers(net)
        for _ in range(net.blobs[name].data.count)
    ]
    return [
        Output(index, name, float(value), weight)
        for index, ((name, weight), value) in enumerate(zip(labels, values, strict=True))
    ]


@dataclass(frozen=True)
class Epochs:
    """The data set that a layer reads: its number of records, and those per iteration. One epoch
    is all records once."""

    layer: str
    count: int
    per_iteration: int

    def records(self, iterations: int) -> int:
        """The number of records in this many iterations."""
        return iterations * self.per_iteration

    def epoch(self, iterations: int) -> float:
        """The number of epochs in this many iterations."""
        return self.records(iterations) / self.count


def epochs_of(net: Net, batches: int = 1) -> Epochs | None:
    """Those of the first layer that knows its number of records; None if there is none.

    batches: per iteration, of all ranks.
    """
    for node in net.nodes:
        if node.layer.records and node.top:
            batch = node.top[0].shape[0]
            return Epochs(node.layer.title, node.layer.records, batch * batches)
    return None


def log_display(event: Display, interval: int) -> None:
    """The lines of a displayed iteration. interval: iterations from one display to the next."""
    logger.info(
        "Iteration %d (%g iter/s, %gs/%d iters), loss = %g",
        event.iteration,
        event.speed,
        event.seconds,
        interval,
        event.loss,
    )
    _log_outputs("Train", event.outputs)
    logger.info("Iteration %d, lr = %g", event.iteration, event.rate)
    if event.epoch is not None:
        logger.info("    Epoch %.4g, %s records", event.epoch, f"{event.records:,}")


def log_test(result: TestResult) -> None:
    """The lines of a finished test."""
    if result.loss is not None:
        logger.info("Test loss: %g", result.loss)
    _log_outputs("Test", result.outputs)


def _log_outputs(phase: str, outputs: Sequence[Output]) -> None:
    for output in outputs:
        text = f"    {phase} net output #{output.index}: {output.name} = {output.value:g}"
        if output.loss_weight:
            weighted = output.loss_weight * output.value
            text += f" (* {output.loss_weight:g} = {weighted:g} loss)"
        logger.info(text)
