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
        maker = users.other(term, total)
        if maker is None or not adds(maker) or term.persistent:
            continue
        between = calls[calls.index(maker) + 1 : calls.index(total)]
        written = total.writes.get("y", total.writes.get("dy", term))
        if (
            maker.writes["dx"] is term  # not another view of its memory
            and terms.count(term) == 1
            and not maker.reads.keys() & {"addend", "relu_output"}
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
    if rest:
        total.reads[name] = [gradient, *rest]
        if total.settings["coefficients"]:
            total.settings["coefficients"] = [1.0] * (1 + len(rest))
        maker.trade(total)
    elif total.name == "sum":
        _replace(maker, total, calls)
    else:
        _take_over(maker, total)


def _replace(maker: Call, total: Call, calls: list[Call]) -> None:
    """Let the maker of a sum write it, behind the ReLU that the sum was to apply."""
    maker.writes["dx"] = total.writes["y"]
    if "relu_output" in total.reads:
        maker.reads["relu_output"] = total.reads["relu_output"]
    fuse(calls, maker, total)


def _take_over(maker: Call, norm: Call) -> None:
    """Let the maker of what a batch normalization was to add apply the ReLU, too, if that does not
    follow from x, and write the gradient behind it, if others read that."""
    if "relu_output" in norm.reads:
        maker.reads["relu_output"] = norm.reads["relu_output"]
        set_operand(norm.reads, norm, "relu_output", None)
        norm.settings["relu"] = False
    if "dy" in norm.writes and not norm.settings["relu"] and not norm.settings.get("every"):
        maker.writes["dx"] = norm.writes["dy"]
        set_operand(norm.writes, norm, "dy", None)
    norm.reads["dys"] = [maker.writes["dx"]]
    maker.trade(norm)
