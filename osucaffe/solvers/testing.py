"""Owns the test of one net: the means of its outputs over batches, which the ranks share.

Of detections, their mean average precision takes the place of a mean (`detection.py`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from .detection import detection_outputs, mean_average_precision
from .observer import Output, TestResult
from .report import log_test, name_outputs
from .snapshots.resume_state import NetProgress

if TYPE_CHECKING:
    from .solver import Solver

logger = logging.getLogger("osucaffe")


def test(solver: Solver, index: int) -> TestResult | None:
    """Run test_iter batches of a test net, and log the means; None if `solver.interrupted`."""
    logger.info("Iteration %d, Testing net (#%d)", solver.iteration, index)
    net, group = solver.test_nets[index], solver.group
    batches, with_loss = solver.param.test_iter[index], solver.param.test_compute_loss
    found, loss = solver.test_outputs[index], 0.0
    found.reset()
    # The rows of all batches; each rank fills in those of its own.
    detections = {
        name: np.zeros((batches, *net.blobs[name].shape[-2:])) for name in detection_outputs(net)
    }
    before = NetProgress.of(net)
    for first in range(0, batches, group.size):
        if solver.interrupted():
            return None
        if first + group.rank >= batches:
            continue
        solver.test_steps[index]()
        found.note()
        for name, rows in detections.items():
            rows[first + group.rank] = net.backend.read(net.blobs[name].data)[0, 0]
        if with_loss:
            loss += net.loss()
    if batches % group.size:
        turns = -(-batches // group.size) * group.size
        group.broadcast_object(NetProgress.of(net).part(before, batches, turns)).apply(net)
    total, [loss] = np.split(group.sum(np.append(found.sum(), loss)), [-1])
    mean_loss = loss / batches if with_loss else None
    outputs = name_outputs(net, total / batches)
    for name, rows in detections.items():
        whole = group.sum(rows.ravel()).reshape(-1, rows.shape[-1])
        value = mean_average_precision(whole, solver.param.ap_version)
        outputs.append(Output(len(outputs), name, value))
    result = TestResult(solver.iteration, index, outputs, mean_loss)
    log_test(result)
    return result
