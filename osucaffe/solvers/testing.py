"""Owns the test of one net: the means of its outputs over batches, which the ranks share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from .observer import TestResult
from .progress import NetProgress
from .report import log_test, name_outputs, read_outputs

if TYPE_CHECKING:
    from .solver import Solver

logger = logging.getLogger("osucaffe")


def test(solver: Solver, index: int) -> TestResult | None:
    """Run test_iter batches of a test net, and log the means; None if `solver.interrupted`."""
    logger.info("Iteration %d, Testing net (#%d)", solver.iteration, index)
    net, team = solver.test_nets[index], solver.team
    batches, with_loss = solver.param.test_iter[index], solver.param.test_compute_loss
    total, loss = np.zeros(sum(net.blobs[name].data.count for name in net.outputs)), 0.0
    before = NetProgress.of(net)
    for first in range(0, batches, team.size):
        if solver.interrupted():
            return None
        if first + team.rank >= batches:
            continue
        solver.test_steps[index]()
        total += read_outputs(net)
        if with_loss:
            loss += net.loss()
    if batches % team.size:
        turns = -(-batches // team.size) * team.size
        team.share(NetProgress.of(net).part(before, batches, turns)).apply(net)
    total, [loss] = np.split(team.sum(np.append(total, loss)), [-1])
    mean_loss = loss / batches if with_loss else None
    result = TestResult(solver.iteration, index, name_outputs(net, total / batches), mean_loss)
    log_test(result)
    return result
