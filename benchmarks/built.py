"""What one side of a comparison hands to its worker: an iteration that is ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from osucaffe.proto import caffe_pb2

LEARNING_RATE, MOMENTUM, DECAY = 0.001, 0.9, 0.0005
"""Of the update that every side makes."""

Iterate = Callable[[], Any]


def solver_settings(
    net: caffe_pb2.NetParameter, learning_rate: float = LEARNING_RATE
) -> caffe_pb2.SolverParameter:
    """What osucaffe's sides train a net with: SGD without end, at a fixed rate."""
    return caffe_pb2.SolverParameter(
        net_param=net,
        base_lr=learning_rate,
        lr_policy="fixed",
        momentum=MOMENTUM,
        weight_decay=DECAY,
        max_iter=2**31 - 1,
        random_seed=1,
    )


@dataclass
class Built:
    """What is ready to run, and what is worth noting about it."""

    iterate: Iterate | None = None
    """None: there are only notes."""
    notes: dict[str, Any] = field(default_factory=dict)
    iterations: int = 1
    """How many iterations one call of `iterate` makes."""
    device_peak: Callable[[], int] | None = None
    """The most bytes held on a GPU; None: the host's memory counts."""
