"""Owns the learning-rate policies: the rate of an iteration from the solver's settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from ..proto.caffe_pb2 import SolverParameter

logger = logging.getLogger("osucaffe")

NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma", "power"),
    "multistep": ("gamma", "stepvalue"),
    "poly": ("power", "max_iter"),
    "sigmoid": ("gamma", "stepsize"),
}
"""The policies, each with the solver fields that it is made of (besides base_lr)."""


class Policy:
    """The rate as a function of the iteration t, for one `lr_policy`.

    fixed: base_lr. step: base_lr * gamma^floor(t / stepsize). exp: base_lr * gamma^t.
    inv: base_lr * (1 + gamma * t)^-power. multistep: base_lr * gamma^(steps passed).
    poly: base_lr * (1 - t / max_iter)^power. sigmoid: base_lr / (1 + e^(-gamma * (t - stepsize))).

    current_step: how many steps of `step` and `multistep` lie behind; part of a solver state.
    Raises UserError for an unknown policy or one whose fields are missing.
    """

    def __init__(self, param: SolverParameter, file: str = "the solver") -> None:
        name = param.lr_policy
        if name not in NEEDS:
            known = ", ".join(NEEDS)
            what = f"lr_policy {name!r} is not known" if name else "lr_policy is missing"
            raise UserError(f"{file}: {what}; choose one of {known}")
        for field in NEEDS[name]:
            value = getattr(param, field)
            given = len(value) > 0 if field == "stepvalue" else param.HasField(field)
            if not given:
                raise UserError(f"{file}: lr_policy {name!r} needs the field {field}; set it")
        if name == "step" and param.stepsize <= 0:
            raise UserError(f"{file}: stepsize must be positive, not {param.stepsize}")
        if list(param.stepvalue) != sorted(param.stepvalue):
            raise UserError(f"{file}: the stepvalues must not fall; sort them")
        if not param.HasField("base_lr"):
            raise UserError(f"{file}: base_lr is missing, nothing would be learnt; set it")
        self.name = name
        self.current_step = 0
        self._param = param
        self._factor: Callable[[int], float] = getattr(self, f"_{name}")

    def rate(self, iteration: int) -> float:
        """The learning rate of this iteration; call it once an iteration, in their order."""
        return self._param.base_lr * self._factor(iteration)

    def _fixed(self, iteration: int) -> float:
        return 1.0

    def _step(self, iteration: int) -> float:
        self.current_step = iteration // self._param.stepsize
        return float(self._param.gamma**self.current_step)

    def _exp(self, iteration: int) -> float:
        return float(self._param.gamma**iteration)

    def _inv(self, iteration: int) -> float:
        return float((1 + self._param.gamma * iteration) ** -self._param.power)

    def _multistep(self, iteration: int) -> float:
        values = self._param.stepvalue
        while self.current_step < len(values) and iteration >= values[self.current_step]:
            self.current_step += 1
            logger.info("MultiStep Status: Iteration %d, step = %d", iteration, self.current_step)
        return float(self._param.gamma**self.current_step)

    def _poly(self, iteration: int) -> float:
        # An iteration beyond max_iter (a Python script may go there) must not turn complex.
        return float(max(0.0, 1 - iteration / self._param.max_iter) ** self._param.power)

    def _sigmoid(self, iteration: int) -> float:
        return 1 / (1 + math.exp(-self._param.gamma * (iteration - self._param.stepsize)))
