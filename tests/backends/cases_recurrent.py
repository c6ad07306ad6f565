"""Owns the cases of the recurrence over time: an LSTM and a plain cell, with and without states."""

from __future__ import annotations

from typing import Any

import numpy as np

from osucaffe.layers.recurrent import LSTM_DERIVATIVE, LSTM_FORMULA, RNN_DERIVATIVE, RNN_FORMULA

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
