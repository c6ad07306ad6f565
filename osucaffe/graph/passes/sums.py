"""Owns the pass that lets calls add other gradients of a shared blob to the one that they compute,
in place of a sum that reads what they wrote."""

from __future__ import annotations

from collections.abc import Collection

from ...backends.tensor import Call
from .editing import Programs, Users, fuse, writes


def add_gradients(programs: Programs, adds: Collection[str]) -> None:
    """Let calls that make a term of a sum run in its turn, and add another term themselves.

    adds: the backend's primitives that can (`Backend.adds_gradients`).
    """
    for calls in programs[1:]:
        for total in [call for call in calls if call.name == "sum"]:
            while len(total.reads["xs"]) > 1 and (maker := _maker(total, calls, adds)):
                _add(maker, total, calls)


def _maker(total: Call, calls: list[Call], adds: Collection[str]) -> Call | None:
    """A call that makes a term for this sum alone, and can do so in its turn."""
    if any(factor != 1 for factor in total.settings["coefficients"] or ()):
        return None
    users = Users([calls])
    for term in total.reads["xs"]:
        maker = users.other(term, total, adds)
        if maker is None or maker.reads.keys() & {"addend", "relu_output"} or term.persistent:
            continue
        between = calls[calls.index(maker) + 1 : calls.index(total)]
        if not any(writes(call, read) for call in between for read in maker.read_tensors()):
            return maker
    return None


def _add(maker: Call, total: Call, calls: list[Call]) -> None:
    """Let the maker of a term add another."""
    gradient = maker.writes["dx"]
    addend, *rest = [term for term in total.reads["xs"] if term is not gradient]
    maker.reads["addend"] = addend
    maker.position = total.position
    calls.remove(maker)
    calls.insert(calls.index(total), maker)
    if rest:
        total.reads["xs"] = [gradient, *rest]
        if total.settings["coefficients"]:
            total.settings["coefficients"] = [1.0] * (1 + len(rest))
        maker.trade(total)
        return
    maker.writes["dx"] = total.writes["y"]
    if "relu_output" in total.reads:
        maker.reads["relu_output"] = total.reads["relu_output"]
    fuse(calls, maker, total)
