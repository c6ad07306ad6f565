"""The update rules: each solver type as one formula over weights, gradients and history.

The language is that of `backends/formula.py`. w and g are the weights and their gradients, h and h2
the history; `rate` and `decay` are the parameter's own multipliers (lr_mult, decay_mult);
`lr` is the learning rate of the iteration, `squares` the sum of squares of all raw gradients,
`scale` their factor from loss scaling (see `loss_scaling.py`); `ww`, `gg` and `wg` are the
parameter's own sums of w^2, g^2 and w * g, of raw gradients.
Everything else is a constant of the run, named after its solver field.

The order is Caffe's: clip by the global norm of the accumulated gradients, divide by iter_size,
regularize, compute the step, subtract it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...errors import UserError
from ...proto import SolverParameter

CLIP = "g = g * (clip_gradients / max(sqrt(squares), clip_gradients))"
"""Pascanu et al. 2013, arXiv 1211.5063, algorithm 1."""
UNSCALE = "g = g / scale"
FINITE = 3e38
"""A sum of squares not below this contains an infinity or NaN (or soon will)."""
AVERAGE = "g = g / iter_size"
REGULARIZATION = {
    "L2": "g = g + weight_decay * decay * w",
    "L1": "g = g + weight_decay * decay * sign(w)",
}
LOCAL = ("larc", "local_lr_auto")
"""The solver fields that give each parameter a rate of its own, by its L2 norm and its gradient's,
in place of its lr_mult: NVIDIA Caffe's (the gradient without weight decay, as on its GPUs) and
Intel Caffe's (the gradient with it). You et al. 2017, arXiv 1708.03888, equation 6."""
RATIO = {
    "larc": "ratio = larc_eta * sqrt(ww) / max(norm, 1e-30)",
    "local_lr_auto": "size = sqrt(ww);"
    "ratio = local_gw_ratio * size / max(norm + weight_decay * size, 1e-30)",
}
LOCAL_RATE = {"scale": "local_rate = lr * trust", "clip": "local_rate = min(lr, trust)"}
"""By larc_policy."""


def _bias_correction(param: SolverParameter, iteration: int) -> float:
    """Adam's moments begin at zero; this undoes it (Kingma & Ba, end of section 2)."""
    done = iteration + 1
    return math.sqrt(1 - param.momentum2**done) / (1 - param.momentum**done)


def _lamb_corrections(param: SolverParameter, iteration: int) -> tuple[float, float]:
    """What undoes it for the first moment, and for the root of the second."""
    done = iteration + 1
    return 1 / (1 - param.momentum**done), 1 / math.sqrt(1 - param.momentum2**done)


@dataclass(frozen=True)
class Rule:
    """One solver type.

    formula: the step. constants: the solver fields in it. histories: buffers as large as the
    weights (0 at the start). correction: an iteration-dependent factor of the learning rate.
    momentum: whether it uses the field momentum. step: `formula` gives no new w, but a direction,
    from which, as g, this one computes it: it reads the sums of both. scalars: what else
    depends on the iteration (`values`), by name.
    """

    formula: str
    constants: tuple[str, ...]
    histories: int = 1
    correction: Callable[[SolverParameter, int], float] | None = None
    momentum: bool = True
    step: str = ""
    scalars: tuple[str, ...] = ()
    values: Callable[[SolverParameter, int], tuple[float, ...]] | None = None


RULES: dict[str, Rule] = {
    # Polyak 1964, with the learning rate inside the history as in Krizhevsky et al. 2012.
    "SGD": Rule("h = momentum * h + lr * rate * g; w = w - h", ("momentum",)),
    # Nesterov 1983, as in Sutskever et al. 2013: look ahead along the history.
    "Nesterov": Rule(
        "v = momentum * h; h = v + lr * rate * g; w = w - ((1 + momentum) * h - v)",
        ("momentum",),
    ),
    # Duchi et al. 2011.
    "AdaGrad": Rule(
        "h = h + g**2; w = w - lr * rate * (g / (sqrt(h) + delta))",
        ("delta",),
        momentum=False,
    ),
    # Tieleman & Hinton 2012, lecture 6.5.
    "RMSProp": Rule(
        "h = rms_decay * h + (1 - rms_decay) * g**2; w = w - lr * rate * (g / (sqrt(h) + delta))",
        ("rms_decay", "delta"),
        momentum=False,
    ),
    # Zeiler 2012, arXiv 1212.5701, algorithm 1; momentum is its decay rate.
    "AdaDelta": Rule(
        "h = momentum * h + (1 - momentum) * g**2;"
        "v = g * sqrt((delta + h2) / (delta + h));"
        "h2 = momentum * h2 + (1 - momentum) * v**2;"
        "w = w - lr * rate * v",
        ("momentum", "delta"),
        histories=2,
    ),
    # Kingma & Ba 2014, arXiv 1412.6980, the efficient form at the end of section 2.
    "Adam": Rule(
        "h = momentum * h + (1 - momentum) * g;"
        "h2 = momentum2 * h2 + (1 - momentum2) * g**2;"
        "w = w - lr * rate * (h / (sqrt(h2) + delta))",
        ("momentum", "momentum2", "delta"),
        histories=2,
        correction=_bias_correction,
    ),
    # You et al. 2019, arXiv 1904.00962, algorithm 2; phi is the norm itself.
    "LAMB": Rule(
        "h = momentum * h + (1 - momentum) * g;"
        "h2 = momentum2 * h2 + (1 - momentum2) * g**2;"
        "w = first * h / (second * sqrt(h2) + delta)",
        ("momentum", "momentum2", "delta", "weight_decay"),
        histories=2,
        step="l2 = weight_decay * decay;"
        "norm = sqrt(max(gg + 2 * l2 * wg + l2**2 * ww, 0));"
        "trust = where(min(ww, norm) > 0, sqrt(ww) / max(norm, 1e-30), 1);"
        "w = w - lr * rate * trust * (g + l2 * w)",
        scalars=("first", "second"),
        values=_lamb_corrections,
    ),
}


@dataclass(frozen=True)
class Update:
    """What a solver evaluates every iteration: its rule with clipping and regularization.

    names: the run-time scalars, in order; row(learning_rate, iteration) gives the first of them, of
    which rate(learning_rate, iteration), `lr`, is one. sums: the formula reads those of each
    parameter, too. step: see `Rule`; then it is this formula that does.
    """

    formula: str
    names: tuple[str, ...]
    constants: dict[str, float]
    histories: int
    rate: Callable[[float, int], float]
    values: Callable[[int], tuple[float, ...]] | None = None
    sums: bool = False
    step: str = ""

    @property
    def separable(self) -> bool:
        """Whether parameters may be updated separately: no sum over all gradients is needed."""
        return not self.sums and "squares" not in self.names

    def row(self, learning_rate: float, iteration: int) -> list[float]:
        """As float32 has them."""
        more = self.values(iteration) if self.values else ()
        numbers = [self.rate(learning_rate, iteration), *more]
        values: list[float] = np.array(numbers, np.float32).tolist()
        return values


def update_of(param: SolverParameter, file: str = "the solver", *, scaled: bool = False) -> Update:
    """The update that a solver's fields select; UserError if they contradict each other.

    scaled: with loss scaling. Then an update whose gradients are not all finite changes nothing.
    """
    rule = RULES.get(param.type)
    if rule is None:
        raise UserError(
            f"{file}: solver type {param.type!r} is not known; choose one of {', '.join(RULES)}"
        )
    _check(param, rule, file)
    names, parts, fields = ["lr", *rule.scalars], [], list(rule.constants)
    clipped = param.clip_gradients >= 0
    if clipped or scaled:
        names.append("squares")
    if scaled:
        names.append("scale")
        parts.append(UNSCALE)
    if clipped:
        parts.append(CLIP.replace("sqrt(squares)", "(sqrt(squares) / scale)") if scaled else CLIP)
        fields.append("clip_gradients")
    if param.iter_size > 1:
        parts.append(AVERAGE)
        fields.append("iter_size")
    local = next((field for field in LOCAL if getattr(param, field)), None)
    before = list(parts)
    if param.weight_decay and not rule.step:
        parts.append(REGULARIZATION[param.regularization_type])
        fields.append("weight_decay")

    def rate(learning_rate: float, iteration: int) -> float:
        factor = rule.correction(param, iteration) if rule.correction else 1.0
        return learning_rate * factor

    parts.append(rule.formula)
    if local:
        parts[-1:] = [
            *_local_rate(param, local, before),
            rule.formula.replace("lr * rate", "local_rate"),
        ]
        fields += {"larc": ["larc_eta"], "local_lr_auto": ["local_gw_ratio", "weight_decay"]}[local]
    constants = {field: float(getattr(param, field)) for field in fields}
    if scaled:
        constants["finite"] = FINITE

    def whole(parts: list[str], *changed: str) -> str:
        if scaled:
            before = [f"{name}_before = {name}" for name in changed]
            kept = [f"{name} = where(squares < finite, {name}, {name}_before)" for name in changed]
            parts = [*before, *parts, *kept]
        return "; ".join(parts)

    return Update(
        formula=whole(parts, *("w", "h", "h2")[: 1 + rule.histories]),
        names=tuple(names),
        constants=constants,
        histories=rule.histories,
        rate=rate,
        values=partial(rule.values, param) if rule.values else None,
        sums=local is not None or bool(rule.step),
        step=whole([rule.step], "w") if rule.step else "",
    )


def _local_rate(param: SolverParameter, local: str, scaling: list[str]) -> list[str]:
    """What computes a parameter's own rate. scaling: what was done to the gradient before decay."""
    factor = ["factor = 1", *(part.replace("g = g", "factor = factor") for part in scaling)]
    norm = "norm = factor * sqrt(gg)"
    if local == "local_lr_auto":
        norm = (
            "l2 = weight_decay * decay;"
            "norm = sqrt(max(factor**2 * gg + 2 * factor * l2 * wg + l2**2 * ww, 0))"
        )
    # A parameter or gradient of zeros says nothing: its rate is the solver's.
    trust = "trust = where(min(ww, norm) > 0, ratio, 1)"
    policy = param.larc_policy if local == "larc" else "scale"
    return [*factor, norm, RATIO[local], trust, LOCAL_RATE[policy]]


def _check(param: SolverParameter, rule: Rule, file: str) -> None:
    if param.momentum and not rule.momentum:
        raise UserError(f"{file}: momentum has no meaning for type {param.type!r}; remove it")
    if param.regularization_type not in REGULARIZATION:
        raise UserError(
            f"{file}: regularization_type {param.regularization_type!r} is not known; "
            f"choose one of {', '.join(REGULARIZATION)}"
        )
    for field in ("momentum", "momentum2", "rms_decay"):
        value = getattr(param, field)
        if field in rule.constants and not 0 <= value < 1:
            raise UserError(f"{file}: {field} must lie in 0 <= {field} < 1, not {value:g}")
    if "delta" in rule.constants and param.delta <= 0:
        raise UserError(
            f"{file}: delta keeps {param.type} from dividing by zero, so it must be positive, "
            f"not {param.delta:g}"
        )
    if rule.step and any(getattr(param, field) for field in LOCAL):
        raise UserError(
            f"{file}: {param.type} sets its own learning rates: remove {' and '.join(LOCAL)}"
        )
    if all(getattr(param, field) for field in LOCAL):
        raise UserError(f"{file}: give larc or local_lr_auto, not both")
    if param.larc and param.larc_policy not in LOCAL_RATE:
        raise UserError(
            f"{file}: larc_policy {param.larc_policy!r} is not known; "
            f"choose one of {', '.join(LOCAL_RATE)}"
        )
    only = "local_lr_auto" if param.local_lr_auto else param.type if rule.step else ""
    if only and param.weight_decay and param.regularization_type != "L2":
        raise UserError(f"{file}: {only} requires regularization_type L2")
    if param.iter_size < 1:
        raise UserError(f"{file}: iter_size must be at least 1, not {param.iter_size}")
    if param.clip_gradients == 0:
        raise UserError(
            f"{file}: clip_gradients must not be 0, nothing would be learnt; remove it to not clip"
        )
