"""Owns the test of one net: the means of its outputs over batches, divided among the ranks.

Detections are scored by their mean average precision (`detection.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from ..net import Net
from ..proto import caffe_pb2
from .detection import detection_outputs, mean_average_precision
from .observer import Output, TestResult
from .outputs import OutputBuffer
from .process_group import ProcessGroup
from .report import log_test, name_outputs
from .snapshots.resume_position import NetPosition

logger = logging.getLogger("osucaffe")


class Tester:
    """Tests net number `index` of a solver, with the solver's fields and group."""

    def __init__(
        self, net: Net, index: int, param: caffe_pb2.SolverParameter, group: ProcessGroup
    ) -> None:
        self.net, self._index, self._param, self._group = net, index, param, group
        self._forward = net.whole(backward=False)
        self._kept = OutputBuffer(net)

    def run(self, iteration: int, interrupted: Callable[[], bool]) -> TestResult | None:
        """Run test_iter batches, and log the means; None if it was interrupted between two."""
        logger.info("Iteration %d, Testing net (#%d)", iteration, self._index)
        net, group, results = self.net, self._group, self._kept
        batches, with_loss = self._param.test_iter[self._index], self._param.test_compute_loss
        total, loss = np.zeros(results.width), 0.0
        results.forget()
        # The rows of all batches; each rank fills in those of its batches.
        detections = {
            name: np.zeros((batches, *net.blobs[name].shape[-2:]))
            for name in detection_outputs(net)
        }
        before = NetPosition.of(net)
        for first in range(0, batches, group.size):
            if interrupted():
                return None
            if first + group.rank >= batches:
                continue
            self._forward()
            if results.full:
                _add(results, total)
            results.note()
            for name, rows in detections.items():
                rows[first + group.rank] = net.backend.read(net.blobs[name].data)[0, 0]
            if with_loss:
                loss += net.loss()
        if batches % group.size:
            turns = -(-batches // group.size) * group.size
            group.broadcast_object(NetPosition.of(net).part(before, batches, turns)).apply(net)
        _add(results, total)
        total, [loss] = np.split(group.sum(np.append(total, loss)), [-1])
        outputs = name_outputs(net, total / batches)
        for name, rows in detections.items():
            every = group.sum(rows.ravel()).reshape(-1, rows.shape[-1])
            value = mean_average_precision(every, self._param.ap_version)
            outputs.append(Output(len(outputs), name, value))
        mean_loss = loss / batches if with_loss else None
        result = TestResult(iteration, self._index, outputs, mean_loss)
        log_test(result)
        return result


def _add(results: OutputBuffer, total: np.ndarray) -> None:
    """Add the stored outputs, batch by batch."""
    for row in results.take():
        total += row
