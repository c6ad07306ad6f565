"""Owns a net's outputs as numbers: reading, naming and logging them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from ..net import Net
from .observer import Output

logger = logging.getLogger("osucaffe")


def read_outputs(net: Net) -> np.ndarray:
    """All elements of all outputs of the last forward pass, one behind the other (float64)."""
    arrays = [np.ravel(net.read(name)) for name in net.outputs]
    return np.concatenate([*arrays, np.empty(0)])


def name_outputs(net: Net, values: Sequence[float] | np.ndarray) -> list[Output]:
    """The elements that `read_outputs` gives (or means of them) with the names of their blobs."""
    labels = [
        (name, net.loss_weight(name))
        for name in net.outputs
        for _ in range(net.blobs[name].data.count)
    ]
    return [
        Output(index, name, float(value), weight)
        for index, ((name, weight), value) in enumerate(zip(labels, values, strict=True))
    ]


def log_outputs(phase: str, outputs: Sequence[Output]) -> None:
    """A line for each. phase: "Train" or "Test"."""
    for output in outputs:
        text = f"    {phase} net output #{output.index}: {output.name} = {output.value:g}"
        if output.loss_weight:
            weighted = output.loss_weight * output.value
            text += f" (* {output.loss_weight:g} = {weighted:g} loss)"
        logger.info(text)
