"""Owns the cases of the recurrence over time: an LSTM and a plain cell, with and without states."""

from __future__ import annotations

from typing import Any

import numpy as np

from osucaffe.layers.core.recurrent import (
    LSTM_DERIVATIVE,
    LSTM_FORMULA,
    RNN_DERIVATIVE,
    RNN_FORMULA,
)

from . import reference
from .cases import case, normal
from .running import Output


def recurrent_cases() -> None:
    """Values, and gradients to the gates and the first states, from every output."""
    steps, items, size = 4, 3, 2
    state = (items, size)
    keep = np.ones((steps, items))
    keep[0, 0] = keep[2, 1] = keep[3] = 0
    keep[3, 2] = 1
    for label, parts, given in ("LSTM", 4, True), ("LSTM from zero", 4, False), ("RNN", 1, True):
        inner, wide = parts == 4, (steps, items, parts * size)
        x, w = normal(*wide), normal(parts * size, size)
        h_first, c_first = (normal(*state) if given else np.zeros(state) for _ in range(2))
        h, c = Output((steps, *state)), Output((steps, *state))
        dh, dh_last, dc_last = normal(steps, *state), normal(*state), normal(*state)
        gates, h_in = Output(wide), Output((steps, *state))

        def forward(x, h_first, c_first, keep=keep, w=w, inner=inner) -> tuple[np.ndarray, ...]:
            return reference.recurrent(x, keep, w, h_first, c_first if inner else None)

        def values(f=forward, x=x, h=h_first, c=c_first, inner=inner) -> dict[str, Any]:
            found = f(x, h, c)
            return {"h": found[0]} | ({"c": found[1]} if inner else {})

        def gradients(
            f=forward, x=x, h_first=h_first, c_first=c_first, dh=dh, dh_last=dh_last,
            dc_last=dc_last, given=given, inner=inner,
        ) -> dict[str, Any]:  # fmt: skip
            def loss(x, h_first, c_first) -> np.ndarray:
                h, c = f(x, h_first, c_first)
                total = (h * dh).sum() + (h[-1] * dh_last).sum()
                return np.array(total + (c[-1] * dc_last).sum() if inner else total)

            found = {
                "dgates": reference.gradient(lambda v: loss(v, h_first, c_first), x, 1),
                "dh_first": reference.gradient(lambda v: loss(x, v, c_first), h_first, 1),
                "dc_first": reference.gradient(lambda v: loss(x, h_first, v), c_first, 1),
            }
            if not inner:
                del found["dc_first"]
            return found if given else {"dgates": found["dgates"]}

        first_c = c_first if inner and given else None
        call = (
            "recurrent",
            {
                "x": x, "keep": keep, "w": w, "h_first": h_first if given else None,
                "c_first": first_c, "gates": gates, "h_in": h_in, "h": h,
                "c": c if inner else None,
            },
            {"formula": LSTM_FORMULA if inner else RNN_FORMULA},
        )  # fmt: skip
        case(label, *call, values)
        case(
            label, "recurrent_backward",
            {
                "keep": keep, "w": w, "c_first": first_c, "gates": gates,
                "c": c if inner else None, "dh": dh, "dh_last": dh_last,
                "dc_last": dc_last if inner else None, "dgates": Output(wide),
                "dh_first": Output(state) if given else None,
                "dc_first": Output(state) if inner and given else None,
            },
            {"formula": LSTM_DERIVATIVE if inner else RNN_DERIVATIVE}, gradients, call,
        )  # fmt: skip


Call = tuple[str, dict[str, Any], dict[str, Any]]


def sample(gates: int, steps: int, items: int, units: int, exposed: bool) -> tuple[Call, Call]:
    """Forward and backward of a cell with so many gates (4: an LSTM), where sequences begin midway.

    exposed: states come from outside and gradients go there; else they begin at zero.
    """
    inner, wide = gates == 4, (steps, items, gates * units)
    states, state = (steps, items, units), (items, units)
    generator = np.random.default_rng(items * units)

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32).astype(np.float64)

    keep = (generator.random((steps, items)) > 0.3).astype(np.float64)
    w = normal(wide[2], units) / np.sqrt(units)
    h_first, c_first, dh_last, dc_last = (normal(*state) if exposed else None for _ in range(4))
    if not inner:
        c_first = dc_last = None
    c = Output(states) if inner else None
    kept = Output(wide)
    first = {name: Output(state) if exposed else None for name in ("dh_first", "dc_first")}
    if not inner:
        first["dc_first"] = None
    forward = {
        "x": normal(*wide), "keep": keep, "w": w, "h_first": h_first, "c_first": c_first,
        "gates": kept, "h_in": Output(states), "h": Output(states), "c": c,
    }  # fmt: skip
    backward = {
        "keep": keep, "w": w, "c_first": c_first, "gates": kept, "c": c, "dh": normal(*states),
        "dh_last": dh_last, "dc_last": dc_last, "dgates": Output(wide), **first,
    }  # fmt: skip
    formulas = (LSTM_FORMULA, LSTM_DERIVATIVE) if inner else (RNN_FORMULA, RNN_DERIVATIVE)
    return (
        ("recurrent", forward, {"formula": formulas[0]}),
        ("recurrent_backward", backward, {"formula": formulas[1]}),
    )


SAMPLES = {
    "LSTM": (4, 5, 19, 24, True),
    "LSTM of whole tiles from zero": (4, 3, 16, 64, False),
    "LSTM of many items": (4, 3, 70, 40, True),
    "LSTM of odd size": (4, 3, 5, 11, True),
    "RNN": (1, 5, 19, 24, True),
    "RNN from zero": (1, 3, 33, 16, False),
}
"""Sizes at which the tiles of kernels are whole or cut, for `sample`."""
