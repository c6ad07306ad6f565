"""The test of one net: the means of its outputs over batches, divided among the ranks. The
outputs stay on the device until they are read.

Detections are scored by their mean average precision (`detection.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from ..backends.tensor import Tensor
from ..net import Net
from ..proto import caffe_pb2
from .detection import detection_outputs, mean_average_precision
from .observer import Output, TestResult
from .process_group import ProcessGroup
from .report import log_test, name_outputs, numbers, read_outputs
from .snapshots.resume_position import NetPosition

logger = logging.getLogger("osucaffe")

_ROWS, _ELEMENTS = 128, 1 << 20
"""The most batches, and the most elements in total, that are buffered."""


class OutputBuffer:
    """Collects all elements of a net's outputs, as `read_outputs` gives them, batch by batch.

    Reading them makes the host wait for the device: `note` only enqueues a copy, where possible.
    loss: append the sum of the losses (0 if there are none).
    """

    def __init__(self, net: Net, *, loss: bool = False) -> None:
        self._net, self._loss = net, loss
        self._blobs = [net.blobs[name].data for name in numbers(net)]
        if loss and net.seeds:
            self._blobs.append(net.total)
        self._count = sum(blob.count for blob in self._blobs)
        self.width = self._count + (loss and not net.seeds)
        """The number of values per batch."""
        plain = all(blob.layout is None and blob.dtype == "float32" for blob in self._blobs)
        self._rows = min(_ROWS, _ELEMENTS // max(self._count, 1)) if plain and net.replays else 0
        self._buffers: list[Tensor] = []
        for blob in self._blobs if self._rows else ():
            tensor = Tensor((self._rows, *blob.shape), name="outputs", persistent=True)
            net.backend.allocate_for(tensor)
            self._buffers.append(tensor)
        self._noted = 0
        self._host_rows: list[np.ndarray] = []

    @property
    def full(self) -> bool:
        """Whether `take` must be called before the next `note`."""
        return 0 < self._rows == self._noted

    def forget(self) -> None:
        """Discard all that are stored."""
        self._noted, self._host_rows = 0, []

    def note(self) -> None:
        """Store those of the last forward pass."""
        if not self._rows:
            values = read_outputs(self._net)
            self._host_rows.append(np.append(values, self._net.loss()) if self._loss else values)
            return
        for blob, tensor in zip(self._blobs, self._buffers, strict=True):
            self._net.backend.store(blob, tensor, self._noted)
        self._noted += 1

    def take(self) -> np.ndarray:
        """Those stored since the last call: (batches, `width`), float64."""
        rows = np.array(self._host_rows) if self._host_rows else np.zeros((self._noted, self.width))
        if self._noted:
            # Rows beyond those stored are uninitialized memory: they must not be converted.
            arrays = [
                self._net.backend.read(tensor).reshape(self._rows, -1)[: self._noted]
                for tensor in self._buffers
            ]
            if arrays:
                rows[:, : self._count] = np.concatenate(arrays, axis=1)
        self.forget()
        return rows


class Tester:
    """Tests net number `index` of a solver, with the solver's fields and group."""

    def __init__(
        self, net: Net, index: int, param: caffe_pb2.SolverParameter, group: ProcessGroup
    ) -> None:
        self.net, self._index, self._param, self._group = net, index, param, group
        self._forward = net.as_step(backward=False)
        self._outputs = OutputBuffer(net)

    def run(self, iteration: int, interrupted: Callable[[], bool]) -> TestResult | None:
        """Run test_iter batches, and log the means; None if it was interrupted between two."""
        logger.info("Iteration %d, Testing net (#%d)", iteration, self._index)
        net, group, results = self.net, self._group, self._outputs
        batches, with_loss = self._param.test_iter[self._index], self._param.test_compute_loss
        if not batches:
            return TestResult(iteration, self._index, [])
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
