"""The learning-rate policies: the rate of an iteration from the solver's settings."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Callable

from ...errors import UserError
from ...proto import SolverParameter

logger = logging.getLogger("osucaffe")

NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma", "power"),
    "multistep": ("gamma", "stepvalue"),
    "poly": ("power", "max_iter"),
    "sigmoid": ("gamma", "stepsize"),
    "multifixed": ("stagelr", "stageiter"),
    "plateau": ("gamma", "plateau_winsize"),
}
"""The policies, each with the solver fields that it uses (besides base_lr)."""


def _sigmoid(param: SolverParameter, iteration: int) -> float:
    x = param.gamma * (iteration - param.stepsize)
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _multifixed(param: SolverParameter, iteration: int) -> float:
    """The rate itself."""
    ends = param.stageiter
    stage = next((i for i, end in enumerate(ends) if iteration <= end), len(ends) - 1)
    return float(param.stagelr[stage])


FACTORS: dict[str, Callable[[SolverParameter, int], float]] = {
    "fixed": lambda param, t: 1.0,
    "exp": lambda param, t: param.gamma**t,
    "inv": lambda param, t: (1 + param.gamma * t) ** -param.power,
    # An iteration beyond max_iter (a Python script may go there) must not turn complex.
    "poly": lambda param, t: max(0.0, 1 - t / param.max_iter) ** param.power,
    "sigmoid": _sigmoid,
    "multifixed": _multifixed,
}
"""The factor of base_lr in iteration t; the other policies count steps."""


class Policy:
    """The rate as a function of the iteration t, for one `lr_policy`.

    fixed: base_lr. step: base_lr * gamma^floor(t / stepsize). exp: base_lr * gamma^t.
    inv: base_lr * (1 + gamma * t)^-power. multistep: base_lr * gamma^(steps passed), of which an
    iteration passes one at most, as in C++ Caffe.
    poly: base_lr * (1 - t / max_iter)^power. sigmoid: base_lr / (1 + e^(-gamma * (t - stepsize))).
    plateau (SSD): base_lr * gamma^(steps passed); a step passes when plateau_winsize[step]
    iterations have brought no smaller smoothed loss since the last step or the last smaller one.
    multifixed (caffe-yolo9000): the first stagelr whose stageiter has not passed, or the last one.

    Any policy may have a warm-up: for warmup_iter iterations on a line from
    warmup_start_lr to base_lr (Intel Caffe), or for rampup_interval from rampup_lr on, with
    the square of t (NVIDIA Caffe); and min_lr is the least, to which poly falls (NVIDIA Caffe).

    current_step: how many steps of `step` and `multistep` have passed; part of a solver state.
    best: of plateau, the least loss so far, and the iteration since which it waits for a lower one.
    loss: returns the smoothed loss of the iterations before, for plateau.
    Raises UserError for an unknown policy or one whose fields are missing.
    """

    def __init__(
        self,
        param: SolverParameter,
        file: str = "the solver",
        loss: Callable[[], float] = lambda: math.nan,
    ) -> None:
        name = param.lr_policy
        if name not in NEEDS:
            known = ", ".join(NEEDS)
            what = f"lr_policy {name!r} is not known" if name else "lr_policy is missing"
            raise UserError(f"{file}: {what}; choose one of {known}")
        given = {field.name for field, _ in param.ListFields()}
        for field in NEEDS[name]:
            if field not in given:
                raise UserError(f"{file}: lr_policy {name!r} needs the field {field}; set it")
        if name == "step" and param.stepsize <= 0:
            raise UserError(f"{file}: stepsize must be positive, not {param.stepsize}")
        if list(param.stepvalue) != sorted(param.stepvalue):
            raise UserError(f"{file}: the stepvalues must not fall; sort them")
        if len(param.stagelr) != len(param.stageiter):
            raise UserError(
                f"{file}: {len(param.stagelr)} stagelr, but {len(param.stageiter)} stageiter: "
                "give as many"
            )
        if list(param.stageiter) != sorted(param.stageiter):
            raise UserError(f"{file}: the stageiters must not fall; sort them")
        if param.warmup_iter > 0 and param.rampup_interval > 0:
            raise UserError(f"{file}: give warmup_iter or rampup_interval, not both")
        if not 0 <= param.min_lr <= param.base_lr and "min_lr" in given:
            raise UserError(f"{file}: min_lr must be between 0 and base_lr, not {param.min_lr:g}")
        if "base_lr" not in given and name != "multifixed":
            raise UserError(f"{file}: base_lr is missing, nothing would be learnt; set it")
        self.name = name
        self.current_step = 0
        self.best = [math.inf, 0]
        self.watches_loss = name == "plateau"
        self._loss = loss
        self._param = param
        self._logs = True

    def rate(self, iteration: int) -> float:
        """The learning rate of this iteration; call it once per iteration, in order."""
        param = self._param
        for start, length, power in (
            (param.warmup_start_lr, param.warmup_iter, 1),
            (param.rampup_lr, param.rampup_interval, 2),
        ):
            if iteration < length:
                rate = start + (param.base_lr - start) * (iteration / length) ** power
                return float(max(rate, param.min_lr))
        try:
            if self.name in FACTORS:
                factor = float(FACTORS[self.name](param, iteration))
            else:
                self._take_steps(iteration)
                factor = float(param.gamma**self.current_step)
        except (OverflowError, ZeroDivisionError, TypeError):  # TypeError: it is complex
            factor = math.nan
        if not math.isfinite(factor):
            raise UserError(
                f'lr_policy "{self.name}": in iteration {iteration} the learning rate is not a '
                "number: correct gamma, power or stepsize"
            )
        if self.name == "multifixed":
            return factor
        if self.name == "poly":
            return float(param.min_lr + (param.base_lr - param.min_lr) * factor)
        return float(max(param.base_lr * factor, param.min_lr))

    def ahead(self, iteration: int, count: int) -> list[float]:
        """What `rate` will return from this iteration on, the next that it is called for: up to
        count rates, as far as they are known now."""
        rates: list[float] = []
        twin = copy.copy(self)
        twin._logs = False
        with contextlib.suppress(UserError):  # it is raised in its turn
            while len(rates) < (0 if self.watches_loss else count):
                rates.append(twin.rate(iteration + len(rates)))
        return rates

    def _take_steps(self, iteration: int) -> None:
        """Advance current_step to this iteration."""
        param = self._param
        if self.name == "step":
            self.current_step = iteration // param.stepsize
        elif self.name == "multistep":
            values = param.stepvalue
            if self.current_step < len(values) and iteration >= values[self.current_step]:
                self._pass_step("MultiStep", iteration)
        else:
            # The loss of this very iteration is not known yet: a step comes one later than in SSD.
            loss = self._loss()
            if loss < self.best[0]:
                self.best = [loss, iteration]
            windows = [*param.plateau_winsize, math.inf]
            if iteration >= self.best[1] + windows[self.current_step]:
                self.best[1] = iteration
                self._pass_step("Plateau", iteration)

    def _pass_step(self, name: str, iteration: int) -> None:
        self.current_step += 1
        if self._logs:
            logger.info("%s Status: Iteration %d, step = %d", name, iteration, self.current_step)
