"""Owns the pass that lets calls add other gradients of a shared blob to the one that they compute,
in place of the call behind them that would read both: a sum, or a batch normalization."""

from __future__ import annotations

from collections.abc import Callable

from ...backends.tensor import Call
from .editing import Programs, Users, fuse, reads, set_operand, writes

_TERMS = {"sum": "xs", "batch_norm_backward": "dys"}
"""What these calls add."""


def add_gradients(programs: Programs, adds: Callable[[Call], bool]) -> None:
    """Let calls that make a term of a sum run in its turn, and add another term themselves.

    adds: whether a call can (`Backend.adds_gradient`).
    """
    for calls in programs[1:]:
        for total in [call for call in calls if call.name in _TERMS]:
            while total in calls and (maker := _maker(total, calls, adds)):
                _add(maker, total, calls)


def _maker(total: Call, calls: list[Call], adds: Callable[[Call], bool]) -> Call | None:
    """A call that makes a term for this sum alone, and can do so in its turn: rather a pooling's
    gradient than a convolution's, which only some kernels add to."""
    terms = total.reads[_TERMS[total.name]]
    if len(terms) < 2 or any(factor != 1 for factor in total.settings.get("coefficients") or ()):
        return None
    users, makers = Users([calls]), []
    for term in terms:
        maker, *others = [call for call in users.of(term) if call is not total] or [total]
        if others or not adds(maker) or maker.writes["dx"] is not term or term.persistent:
            continue  # others read it, or it is seen under another shape
        between = calls[calls.index(maker) + 1 : calls.index(total)]
        written = total.writes.get("y", total.writes.get("dy", term))
        if (
            not maker.reads.keys() & {"addend", "relu_output"}
            and terms.count(term) == 1
            and (written is term or not (written in terms or reads(maker, written)))
            and not any(writes(call, read) for call in between for read in maker.read_tensors())
        ):
            makers.append(maker)
    return min(makers, key=lambda maker: maker.name == "convolution_backward_data", default=None)


def _add(maker: Call, total: Call, calls: list[Call]) -> None:
    """Let the maker of a term add another."""
    gradient, name = maker.writes["dx"], _TERMS[total.name]
    addend, *rest = [term for term in total.reads[name] if term is not gradient]
    maker.reads["addend"] = addend
    maker.position = total.position
    calls.remove(maker)
    calls.insert(calls.index(total), maker)
    if not rest:
        _finish(maker, total)
    if total.name == "sum" and not rest:
        fuse(calls, maker, total)
        return
    total.reads[name] = [maker.writes["dx"], *rest]
    if total.settings.get("coefficients"):
        total.settings["coefficients"] = [1.0] * (1 + len(rest))
    maker.trade(total)


def _finish(maker: Call, total: Call) -> None:
    """Let the maker of a sum apply the ReLU that the sum was to apply, and write it to where the
    sum was to be written."""
    if total.reads.get("relu_output") is not None:
        maker.reads["relu_output"] = total.reads["relu_output"]
        if total.name != "sum":
            set_operand(total.reads, total, "relu_output", None)
            total.settings["relu"] = False
    if total.name == "sum":
        maker.writes["dx"] = total.writes["y"]
    elif not total.settings["relu"] and "dy" in total.writes:
        maker.writes["dx"] = total.writes["dy"]
        set_operand(total.writes, total, "dy", None)
