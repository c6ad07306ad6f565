"""Owns the pass that lets convolutions and inner products end with the activation behind them, in
nets that only run forward, where the backend's code can."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...backends.tensor import Call, Tensor
from .calls import Users, pairs, without

_MAKERS = {"convolution", "inner_product"}


def fuse_activations(calls: Sequence[Call], formulas: Collection[str]) -> list[Call]:
    """Let what makes the input of an activation of one of these formulas apply it: its setting
    `activation` is that call, which then works in place on what its maker writes."""
    users = Users([calls])
    dropped: set[int] = set()
    for maker, call in pairs(calls):
        tensors = _ends(call, formulas)
        if maker is None or tensors is None or maker.name not in _MAKERS:
            continue
        x, y = tensors
        if maker.writes["y"] is not x or maker.settings["relu"] is not None:
            continue
        if x is not y and (x.base or x.viewed or not users.only(x, maker, call)):
            continue
        call.reads["inputs"] = [y, *call.reads["inputs"][1:]]
        maker.writes["y"] = y
        maker.settings["activation"] = call
        maker.fuse(call)
        dropped.add(id(call))
    return without(calls, dropped)


def _ends(call: Call, formulas: Collection[str]) -> tuple[Tensor, Tensor] | None:
    """What it makes of what, if it is an activation."""
    if call.name not in ("elementwise", "broadcast") or call.settings["formula"] not in formulas:
        return None
    return call.reads["inputs"][0], call.writes["outputs"][0]
