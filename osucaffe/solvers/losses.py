"""The losses of the last iterations, which stay on the device until one is displayed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection

import numpy as np

from ..backends.backend import Backend
from ..backends.tensor import Tensor
from ..net import Net
from .process_group import ProcessGroup

logger = logging.getLogger("osucaffe")


class Losses:
    """The last `length` losses of iterations of `parts` passes each, the mean of all ranks'.

    Reading a loss makes the host wait for the device: `note` only enqueues its copy, and `read`
    reads all recorded ones at once.

    recent: those read. shown: of them those that a display smooths over, all unless it is cleared.
    """

    def __init__(self, backend: Backend, group: ProcessGroup, length: int, parts: int) -> None:
        self.recent: deque[float] = deque(maxlen=length)
        self.shown: deque[float] = deque(maxlen=length)
        self._backend, self._group, self._parts = backend, group, parts
        self._noted = 0
        self.lost = False
        """Whether one of those read is not finite."""
        self._ring = Tensor((length * parts,), name="losses", persistent=True)
        backend.allocate_for(self._ring)
        backend.write(self._ring, 0)

    def note(self, net: Net, part: int) -> None:
        """Record the loss of the pass enqueued last, number `part` (from 0) of its iteration."""
        self._noted += part - self._noted % self._parts  # an iteration may have been broken off
        if self._noted == self._ring.count:
            self.read()
        if net.total.array is not None:  # else the net has no loss
            self._backend.store(net.total, self._ring, self._noted)
        self._noted += 1

    def read(self) -> None:
        """Append the losses of the recorded iterations. All ranks call it together."""
        if self._noted:
            with self._group.watch():
                passes = self._backend.read(self._ring)[: self._noted].astype(np.float64)
            local = np.zeros(self._noted // self._parts)
            for part in range(self._parts):
                local += passes[part :: self._parts] / self._parts
            self._noted = 0
            self.append(local)

    def append(self, local: np.ndarray) -> None:
        """Append the mean over all ranks of each rank's losses."""
        losses = self._group.sum(local) / self._group.size
        if not self.lost and not np.isfinite(losses).all():
            self.lost = True
            logger.warning(
                "The loss is %g: training has diverged. Lower base_lr, to a tenth say, or set "
                "clip_gradients, and check that the data is scaled as the net expects; train "
                "again, or resume from an earlier snapshot",
                losses[~np.isfinite(losses)][0],
            )
        for those in self.recent, self.shown:
            those.extend(losses.tolist())

    def reset(self, losses: list[float]) -> None:
        """Replace all by these."""
        self._noted = 0
        self.lost = False
        for those in self.recent, self.shown:
            those.clear()
            those.extend(losses)

    @property
    def diverged(self) -> bool:
        """Whether the mean of those read is not finite."""
        return bool(self.recent) and not np.isfinite(mean(self.recent))


def mean(losses: Collection[float]) -> float:
    """The mean; NaN if there are none yet."""
    return sum(losses) / len(losses) if losses else float("nan")
