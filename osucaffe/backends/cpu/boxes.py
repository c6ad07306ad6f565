"""Owns the boxes that codes against priors stand for, by NumPy."""

from __future__ import annotations

import numpy as np

from ..boxes import decode, without_warnings
from ..tensor import Step, Tensor
from .registry import CpuCall, primitive


def decoded(location: np.ndarray, priors: np.ndarray, coding: str, scaled: bool) -> np.ndarray:
    """The boxes (N, P, L, 4) of their codes."""
    boxes, variances = priors[:, :, None]
    return decode(location * variances if scaled else location, boxes, coding)


@primitive()
def decode_boxes(
    call: CpuCall, location: Tensor, priors: Tensor, boxes: Tensor, *, coding: str, scaled: bool
) -> Step:
    @without_warnings
    def step() -> None:
        boxes.array[...] = decoded(location.array, priors.array, coding, scaled)

    return step
