"""The declarations of the primitives that run a cell over time."""

from __future__ import annotations

from .recording import Primitive, Read, Write


class Recurrent(Primitive):
    """Run a cell over time: for each t, gates[t] = x[t] + h_in[t] w^T, then the formula.

    x, gates: (T, N, K * D); keep: (T, N), what is left of the state before each step (0 begins
    a sequence); w: (K * D, D), or None as h_in then is; h, c: (T, N, D), what each step puts
    out and its inner state (None: it has none); h_in[t] = keep[t] * h[t - 1], or h_first
    (N, D) for t = 0. formula: from x0, x1, ... (the K parts of gates[t]), keep and c_in (that
    is c[t - 1], or c_first for t = 0) it computes h and c; what it assigns to x0, x1, ... is
    what gates holds then. x and gates may be one tensor.
    """

    x: Read
    keep: Read
    w: Read | None
    h_first: Read | None
    c_first: Read | None
    gates: Write
    h_in: Write | None
    h: Write
    c: Write | None
    formula: str


class RecurrentBackward(Primitive):
    """dgates (which is dx too), dh_first, dc_first = the gradients of `recurrent`.

    dh_last, dc_last: (N, D), what h and c get after the last step besides dh. formula: from
    x0 ..., keep, c_in, c, dh and dc it computes dx0 ..., and dc (where there is a c): what
    c[t - 1] gets.
    """

    keep: Read
    w: Read | None
    c_first: Read | None
    gates: Read
    c: Read | None
    dh: Read
    dh_last: Read | None
    dc_last: Read | None
    dgates: Write
    dh_first: Write | None
    dc_first: Write | None
    formula: str
