"""Owns what a solver asks of the processes that train together, and its answers for one alone.

`osucaffe/parallel` gives the answers for several: a solver knows of them only through this.
"""

from __future__ import annotations

import contextlib
from typing import Protocol, TypeVar

import numpy as np

from ..backends.backend import Backend
from ..backends.tensor import Step
from ..net import Net
from ..proto import caffe_pb2
from .update.loss_scaling import LossScale
from .update.optimizer import Optimizer

_Value = TypeVar("_Value")


class Trained(Protocol):
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

    def divide(self, param: caffe_pb2.NetParameter) -> caffe_pb2.NetParameter:
        """The training net as this rank runs it: where ranks divide the batch, with a share."""
        return param

    def attach(self, solver: Trained) -> None:
        """The solver's nets have been built, or built again."""

    def changed(self) -> None:
        """Weights were loaded, or a snapshot: the ranks are to agree on them before they go on."""

    def begin(self) -> None:
        """Iterations follow."""

    def step(self, solver: Trained, *, accumulate: bool, update: bool) -> Step:
        """One forward and backward pass as a step; update: and the update from the mean gradient.

        accumulate: the gradients are added to those of the pass before.
        """
        optimizer = solver.optimizer
        then = [optimizer.take_rate, *optimizer.steps] if update else ()
        return solver.net.whole(accumulate=accumulate, then=then)

    def overlap_hooks(
        self, *, accumulate: bool, update: bool
    ) -> tuple[dict[int, Step], dict[int, Step]]:
        """By layer: what to run ahead of its forward, and behind its backward (`step` does it by
        itself)."""
        return {}, {}

    def watch(self) -> contextlib.AbstractContextManager[None]:
        """For where this rank waits for its device, which may wait for those of others."""
        return contextlib.nullcontext()

    def exchange(self) -> None:
        """Make the gradients of this pass the mean of all ranks', those too that `overlap_hooks`
        has not begun (`step` does it by itself)."""

    def updated(self) -> None:
        """The weights were updated outside `step`."""

    def synchronize_weights(self, *, history: bool = False) -> None:
        """Let the weights be what the last update made them, on every rank; history: that, too."""

    def broadcast_object(self, value: _Value) -> _Value:
        """Rank 0's value."""
        return value

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum of all ranks' float64 values."""
        return values

    def agree(self, request: str) -> str:
        """One request (see `signals.py`) for all ranks, that any of them may have received."""
        return request

    def check(self, occasion: str) -> None:
        """UserError unless all ranks have the same weights."""

    def close(self) -> None:
        """No more iterations follow."""
