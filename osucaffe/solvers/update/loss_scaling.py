"""Loss scaling: a factor of the loss that keeps gradients in fp16 from vanishing.

Micikevicius et al. 2018, arXiv 1710.03740, section 3.2. Backward begins with the factor, the update
divides by it. Where a gradient has become infinite or NaN, nothing is updated; a dynamic factor is
then halved, and after many good iterations doubled. All of this happens in the backend's memory.
"""

from __future__ import annotations

import logging

from ...backends.backend import Backend
from ...backends.primitives import Program
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor
from ...errors import UserError
from .rules import FINITE

logger = logging.getLogger("osucaffe")

START = 4096.0
"""The initial dynamic factor. Factors are powers of two: they change no digits."""
MAX_SCALE = 2.0**24
INTERVAL = 1000
"""Good iterations in a row before a dynamic factor is doubled."""

RULE = (
    "good = where(squares < finite, h + 1, 0);"
    "h2 = where(squares < finite, h2, h2 + 1);"
    "w = where(squares < finite, where(good < interval, w, min(w * growth, most)),"
    " max(w / growth, least));"
    "h = where(good < interval, good, 0)"
)
"""w: the factor; h: good iterations since it changed; h2: updates skipped so far."""


class LossScale:
    """The factor, and the counters that control it.

    factor: one float32 element in the backend's memory. value: a fixed factor; None: dynamic.
    """

    def __init__(self, backend: Backend, value: float | None) -> None:
        self._backend = backend
        self.dynamic = value is None
        self._start = START if value is None else value
        self.factor = self._number("loss_scale")
        self._good = self._number("loss_scale.good")
        self._skipped = self._number("loss_scale.skipped")
        self._logged = [self._start, 0.0]
        self.write([self._start, 0.0, 0.0])

    def change(self, squares: Tensor) -> Primitive:
        """The call that follows an update. squares: the sum of squares of the scaled gradients."""
        program = Program()
        program.update(
            self.factor,
            squares,
            [self._good, self._skipped],
            squares,
            formula=RULE,
            names=("squares",),
            segments=[(0, 1, 1.0, 1.0)],
            constants={
                "finite": FINITE,
                "interval": INTERVAL,
                "growth": 2.0 if self.dynamic else 1.0,
                "least": min(1.0, self._start),
                "most": max(MAX_SCALE, self._start),
            },
        )
        return program.calls[0]

    def read(self) -> list[float]:
        """The factor, the good iterations since it changed, and the updates skipped so far."""
        tensors = self.factor, self._good, self._skipped
        return [float(self._backend.read(tensor)[0]) for tensor in tensors]

    def write(self, values: list[float]) -> None:
        """The reverse of `read`. A fixed factor does not change."""
        tensors = self.factor, self._good, self._skipped
        values = [values[0] if self.dynamic else self._start, *values[1:]]
        for tensor, value in zip(tensors, values, strict=True):
            self._backend.write(tensor, value)

    def log(self) -> None:
        """Log the factor, if it or the count of skipped updates has changed."""
        factor, _, skipped = self.read()
        if [factor, skipped] != self._logged:
            self._logged = [factor, skipped]
            logger.info("Loss scale: %g (%d updates skipped so far)", factor, skipped)

    def _number(self, name: str) -> Tensor:
        tensor = Tensor((1,), name=name, persistent=True)
        self._backend.allocate_for(tensor)
        return tensor


def make_loss_scale(backend: Backend, setting: str | float | None) -> LossScale | None:
    """setting: "dynamic", "none" or a factor; None: dynamic where blobs are held in fp16.

    UserError where it is neither, or not positive.
    """
    if setting is None:
        setting = "dynamic" if backend.dtype == "float16" else "none"
    if setting == "none":
        return None
    if setting == "dynamic":
        return LossScale(backend, None)
    try:
        value = float(setting)
    except ValueError:
        value = 0.0
    if not 0 < value < FINITE:
        raise UserError(f'--loss_scale {setting}: give "dynamic", "none" or a positive number')
    return LossScale(backend, value)
