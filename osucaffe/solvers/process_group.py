"""The interface of a solver to the processes that train together, for a single process.

`osucaffe/parallel` implements it for several: a solver knows of them only through this.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Protocol, TypeVar

import numpy as np

from ..backends.backend import Backend
from ..backends.tensor import Run
from ..layers.base import Splitter
from ..net import Net
from ..proto import caffe_pb2
from .update.loss_scaling import LossScale
from .update.optimizer import Optimizer

logger = logging.getLogger("osucaffe")

_Value = TypeVar("_Value")


class SolverView(Protocol):
    """What a group of processes needs of the solver that trains with it."""

    param: caffe_pb2.SolverParameter
    backend: Backend
    iteration: int
    net: Net
    test_nets: list[Net]
    optimizer: Optimizer
    loss_scale: LossScale | None


class ProcessGroup:
    """A process that trains alone: rank 0 of 1."""

    rank = 0
    size = 1
    accumulates = True
    """Whether backward adds up the gradients of the passes of an iteration."""

    def divide(self, param: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
        """The training net of this rank: with its share of the batch, if that is divided."""
        return param

    def splitter(self, passes: int) -> Splitter | None:
        """What divides layers of the training net among processes. passes: of an iteration."""
        return None

    def attach(self, solver: SolverView) -> None:
        """The solver's nets have been built, or built again."""

    def changed(self) -> None:
        """Weights or a snapshot were loaded: the ranks must synchronize before they go on."""

    def begin(self) -> None:
        """Iterations follow."""

    def step(self, solver: SolverView, *, accumulate: bool, update: bool) -> Run:
        """One forward and backward pass as a step; update: also the update from the mean gradient.

        accumulate: the gradients are added to those of the pass before.
        """
        net, optimizer = solver.net, solver.optimizer
        if not update:
            return net.as_step(accumulate=accumulate)
        concurrent = [optimizer.take_rate]
        return net.as_step(accumulate=accumulate, concurrent=concurrent, last=optimizer.steps)

    def overlap_hooks(
        self, *, accumulate: bool, update: bool
    ) -> tuple[dict[int, Run], dict[int, Run]]:
        """By layer: what to run before its forward, and after its backward (`step` includes it)."""
        return {}, {}

    def watch(self) -> contextlib.AbstractContextManager[None]:
        """For code that waits for this rank's device, which may wait for those of others."""
        return contextlib.nullcontext()

    def exchange(self) -> None:
        """Replace the gradients by the mean of all ranks', including those that `overlap_hooks`
        has not sent (`step` includes it)."""

    def updated(self) -> None:
        """The weights were updated outside `step`."""

    def synchronize_weights(self, *, history: bool = False) -> None:
        """Bring every rank to the weights of the last update; history: to its history, too."""

    def read_buffers(self) -> dict[str, list[np.ndarray]]:
        """What the exchange between processes needs in a snapshot, as `synchronize_weights` with
        history has left it: by name, an array for each of the net's parameters."""
        return {}

    def write_buffers(self, values: dict[str, list[np.ndarray]]) -> None:
        """The reverse of `read_buffers`, of a snapshot that may be of another design."""
        for name in sorted(values):
            logger.warning("The %s of the exchange between ranks is left out", name)

    def broadcast_object(self, value: _Value) -> _Value:
        """Rank 0's value."""
        return value

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum of all ranks' float64 values."""
        return values

    def agree(self, request: str) -> str:
        """The request (see `signals.py`) of any rank, agreed on by all ranks."""
        return request

    def check(self, occasion: str) -> None:
        """UserError unless all ranks have the same weights."""

    def close(self) -> None:
        """No more iterations follow."""
