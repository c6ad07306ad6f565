"""The cases of the recurrence over time: an LSTM and a plain cell, with and without states."""

from __future__ import annotations

from typing import Any

import numpy as np

from osucaffe.layers.core.recurrent import (
    LSTM_DERIVATIVE,
    LSTM_FORMULA,
    RNN_DERIVATIVE,
    RNN_FORMULA,
)
from tests.backends import reference
from tests.backends.cases import Gradients, case
from tests.backends.running import Output

Call = tuple[str, dict[str, Any], dict[str, Any]]


def sample(
    gates: int, steps: int, items: int, units: int, exposed: bool, *, ends: bool | None = None,
    keep: np.ndarray | None = None,
) -> tuple[Call, Call]:  # fmt: skip
    """Forward and backward of a cell with so many gates (4: an LSTM), where sequences begin midway.

    exposed: states come from outside and gradients go there; else they begin at zero. ends:
    gradients come from behind the last step, too (by default where states are exposed). keep: where
    sequences begin, instead of anywhere.
    """
    lstm, wide = gates == 4, (steps, items, gates * units)
    states, state = (steps, items, units), (items, units)
    generator = np.random.default_rng(items * units)

    def normal(*shape: int, given: bool | None = True) -> np.ndarray | None:
        values = generator.standard_normal(shape).astype(np.float32).astype(np.float64)
        return values if given else None

    def output(*shape: int, given: bool = True) -> Output | None:
        return Output(shape) if given else None

    ends = exposed if ends is None else ends
    keep = (generator.random((steps, items)) > 0.3).astype(np.float64) if keep is None else keep
    w = generator.standard_normal((wide[2], units)).astype(np.float32) / np.sqrt(units)
    gates_of, c = Output(wide), output(*states, given=lstm)
    both = {"keep": keep, "w": w, "c_first": normal(*state, given=exposed and lstm),
            "gates": gates_of, "c": c}  # fmt: skip
    forward = {"x": normal(*wide), "h_first": normal(*state, given=exposed),
               "h_in": Output(states), "h": Output(states)}  # fmt: skip
    backward = {
        "dh": normal(*states), "dh_last": normal(*state, given=ends),
        "dc_last": normal(*state, given=ends and lstm), "dgates": Output(wide),
        "dh_first": output(*state, given=exposed),
        "dc_first": output(*state, given=exposed and lstm),
    }  # fmt: skip
    formulas = (LSTM_FORMULA, LSTM_DERIVATIVE) if lstm else (RNN_FORMULA, RNN_DERIVATIVE)
    return (
        ("recurrent", both | forward, {"formula": formulas[0]}),
        ("recurrent_backward", both | backward, {"formula": formulas[1]}),
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


def recurrent_cases() -> None:
    """Values, and gradients to the gates and the first states, from every output."""
    keep = np.array([[0, 1, 1], [1, 1, 1], [1, 0, 1], [0, 0, 1]], np.float64)
    for label, gates, exposed in ("LSTM", 4, True), ("LSTM from zero", 4, False), ("RNN", 1, True):
        forward, backward = sample(gates, 4, 3, 2, exposed, ends=True, keep=keep)
        read, behind = forward[1], backward[1]
        states = ("h_first", "c_first") if gates == 4 else ("h_first",)
        given = {name: read[name] if exposed else np.zeros((3, 2)) for name in states}
        given = {"x": read["x"], "c_first": None} | given

        def loss(given=given, read=read, behind=behind, **changed: np.ndarray) -> np.ndarray:
            h, c = reference.recurrent(keep=keep, w=read["w"], **given | changed)
            total = (h * behind["dh"]).sum() + (h[-1] * behind["dh_last"]).sum()
            return total + (c[-1] * behind["dc_last"]).sum() if len(c) else total

        h, c = reference.recurrent(keep=keep, w=read["w"], **given)
        case(label, *forward, {"h": h, "c": c} if len(c) else {"h": h})
        of = {"dgates": "x"} | ({f"d{state}": state for state in states} if exposed else {})
        case(label, *backward, Gradients(**{
            gradient: (lambda v, name=name, loss=loss: loss(**{name: v}), given[name], 1)
            for gradient, name in of.items()
        }), forward)  # fmt: skip
