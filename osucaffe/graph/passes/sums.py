"""The pass that lets calls add other gradients of a shared blob to the one that they compute,
in place of the call after them that would read both: a sum, or a batch normalization."""

from __future__ import annotations

from collections.abc import Callable

from ...backends import primitives as ops
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor
from .editing import Users, fuse, reads, writes

Maker = ops.AveragePoolingBackward | ops.ConvolutionBackwardData | ops.MaxPoolingBackward
Total = ops.Sum | ops.BatchNormBackward
"""Calls that add gradients."""


def add_gradients(calls: list[Primitive], adds: Callable[[Primitive], bool]) -> None:
    """Let calls of backward that make a term of a sum run in its turn, and add another term
    themselves.

    adds: whether a call can (`Backend.adds_gradient`).
    """
    for total in [call for call in calls if isinstance(call, Total)]:
        while total in calls and (maker := _maker(total, calls, adds)):
            _add(maker, total, calls)


def _terms(total: Total) -> list[Tensor]:
    return total.xs if isinstance(total, ops.Sum) else total.dys


def _maker(total: Total, calls: list[Primitive], adds: Callable[[Primitive], bool]) -> Maker | None:
    """A call that makes a term for this sum alone, and can do so in its turn: rather a pooling's
    gradient than a convolution's, which only some kernels add to."""
    terms = _terms(total)
    if len(terms) < 2:
        return None
    if isinstance(total, ops.Sum):
        if any(factor != 1 for factor in total.coefficients or ()):
            return None
        target: Tensor | None = total.y
    else:
        target = total.dy
    users, makers = Users([calls]), list[Maker]()
    for term in terms:
        maker = users.other(term, total)
        if not isinstance(maker, Maker) or not adds(maker) or term.persistent:
            continue
        between = calls[calls.index(maker) + 1 : calls.index(total)]
        written = term if target is None else target
        if (
            maker.dx is term  # not another view of its memory
            and terms.count(term) == 1
            and maker.addend is None
            and maker.relu_output is None
            and (written is term or not (written in terms or reads(maker, written)))
            and not any(writes(call, read) for call in between for read in maker.read_tensors())
        ):
            makers.append(maker)
    return min(makers, key=lambda each: isinstance(each, ops.ConvolutionBackwardData), default=None)


def _add(maker: Maker, total: Total, calls: list[Primitive]) -> None:
    """Let the maker of a term add another."""
    gradient = maker.dx
    addend, *rest = [term for term in _terms(total) if term is not gradient]
    maker.addend = addend
    maker.position = total.position
    calls.remove(maker)
    calls.insert(calls.index(total), maker)
    if isinstance(total, ops.BatchNormBackward):
        if rest:
            total.dys = [gradient, *rest]
            maker.share_work(total)
        else:
            _take_over(maker, total)
    elif rest:
        total.xs = [gradient, *rest]
        total.coefficients = None
        maker.share_work(total)
    else:
        _replace(maker, total, calls)


def _replace(maker: Maker, total: ops.Sum, calls: list[Primitive]) -> None:
    """Let the maker of a sum write it, after the ReLU that the sum was to apply."""
    maker.dx = total.y
    maker.relu_output = total.relu_output
    fuse(calls, maker, total)


def _take_over(maker: Maker, norm: ops.BatchNormBackward) -> None:
    """Let the maker of what a batch normalization was to add apply the ReLU, too, if that does not
    follow from x, and write the gradient after it, if others read that."""
    if norm.relu_output is not None:
        maker.relu_output, norm.relu_output = norm.relu_output, None
        norm.relu = False
    if norm.dy is not None and not norm.relu and not norm.subsample:
        maker.dx, norm.dy = norm.dy, None
    norm.dys = [maker.dx]
    maker.share_work(norm)
