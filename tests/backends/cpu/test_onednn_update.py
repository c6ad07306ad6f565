"""Update rules on oneDNN against NumPy, and the rules that it leaves to others."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.onednn import update
from osucaffe.backends.cpu.onednn.api import Unsupported
from osucaffe.backends.primitives import Program

from .programs import NEEDS_ONEDNN, Given, close, run

pytestmark = NEEDS_ONEDNN
SGD = "g = g / 2; g = g + weight_decay * decay * w; h = momentum * h + lr * rate * g; w = w - h"


@pytest.mark.parametrize("size", [1000, update.PIECE + 100])
def test_update(size: int) -> None:
    program = Program()
    w, g, h, lr = Given((size,)), Given((size,)), Given((size,)), Given((1,), np.array([0.5]))
    segments = [(0, 300, 1.0, 1.0), (300, 400, 2.0, 0.0), (400, size, 1.0, 1.0)]
    constants = {"momentum": 0.9, "weight_decay": 0.1}
    program.update(w, g, [h], lr, formula=SGD, names=["lr"], segments=segments, constants=constants)
    run(program)
    rate, decay = np.ones(size), np.ones(size)
    rate[300:400], decay[300:400] = 2, 0
    step = 0.9 * h.given + 0.5 * rate * (g.given / 2 + 0.1 * decay * w.given)
    close(h, step)
    close(w, w.given - step)
    close(g, g.given)


@pytest.mark.parametrize(
    "formula",
    [
        "w = w - lr * sign(g)",
        "w = w - lr * g * g",
        "w = w - lr",
        "w = lr * g",
        "w = lr * w",
        "v = momentum * h; h = v + lr * g; w = w - ((1 + momentum) * h - v)",
    ],
)
def test_other_update_rules_are_declined(formula: str) -> None:
    with pytest.raises(Unsupported):
        update.additions(formula, ["w", "g", "h"], ["lr"], {"momentum": 0.9})
