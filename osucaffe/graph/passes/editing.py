"""Owns the editing of programs of calls: who uses a tensor, what a call computes, and the changes
that all passes are made of. Programs are changed in place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from ...backends.tensor import Call, Tensor

Programs = list[list[Call]]
"""Forward, and the forms of backward."""


# -- who uses a tensor: views count as the tensor that has the memory ------------------------------


def owners(tensors: Iterable[Tensor]) -> set[Tensor]:
    """The tensors whose memory these are, or view."""
    return {owner for tensor in tensors for owner in tensor.owners}


def operands(call: Call) -> Iterator[Tensor]:
    """All tensors that a call reads and writes."""
    yield from call.read_tensors()
    yield from call.written_tensors()


def reads(call: Call, tensor: Tensor) -> bool:
    """Whether a call reads the tensor, or a view of the same memory."""
    return not owners([tensor]).isdisjoint(owners(call.read_tensors()))


def writes(call: Call, tensor: Tensor) -> bool:
    """Whether a call writes the tensor, or a view of the same memory."""
    return not owners([tensor]).isdisjoint(owners(call.written_tensors()))


def is_exposed(tensor: Tensor) -> bool:
    """Whether its memory is seen by others than the calls that use it: by a user, or as a view."""
    return bool(tensor.persistent or tensor.base or tensor.viewed)


def reads_view(call: Call, tensor: Tensor) -> bool:
    """Whether a call reads the tensor's memory as another tensor: under another shape."""
    return any(read.base is tensor for read in call.read_tensors())


def timelines(programs: Programs) -> Programs:
    """What runs one after the other: both forms of backward take the same time, behind forward."""
    return [programs[0] + backward for backward in programs[1:]] or [programs[0]]


class Users:
    """The calls of some programs, as they are now, by the tensors that they use."""

    def __init__(self, programs: Sequence[Sequence[Call]]) -> None:
        self._calls: dict[Tensor, dict[Call, None]] = {}
        for call in (call for program in programs for call in program):
            for tensor in owners(operands(call)):
                self._calls.setdefault(tensor, {})[call] = None

    def of(self, tensor: Tensor) -> list[Call]:
        """Those that use the tensor (or a view of it)."""
        return list(self._calls.get(tensor.owner, ()))

    def only(self, tensor: Tensor, *calls: Call) -> bool:
        """Whether nothing but these calls uses the tensor, and no user may look at it."""
        return not tensor.persistent and set(self.of(tensor)) <= set(calls)

    def other(
        self, tensor: Tensor, user: Call, names: Collection[str] | None = None
    ) -> Call | None:
        """The only call but `user` that uses a tensor, if it is of one of these primitives, or of
        any: what makes it, where `user` reads it."""
        others = [call for call in self.of(tensor) if call is not user]
        found = others[0] if len(others) == 1 else None
        return found if found and (names is None or found.name in names) else None


def is_handed_over(
    calls: Sequence[Call], users: Users, term: Tensor, maker: Call, to: Call
) -> bool:
    """Whether only one call reads what another makes: others have the memory when the reader has
    written there itself. users: of these calls."""
    others = [call for call in users.of(term) if call not in (maker, to)]
    later = all(calls.index(call) > calls.index(to) for call in others)
    return not is_exposed(term) and (not others or (later and term in to.written_tensors()))


def normalization_gradient(calls: Sequence[Call], norm: Call) -> Call | None:
    """The call that makes the gradient of a batch normalization, if there is one of its x alone."""
    x = norm.reads["x"]
    found = [call for call in calls if call.name == "batch_norm_backward" and call.reads["x"] is x]
    return found[0] if len(found) == 1 else None


# -- what a call computes --------------------------------------------------------------------------


def neighbours(calls: Sequence[Call], first: Collection[str]) -> Iterator[tuple[Call, Call]]:
    """The calls of some primitives, each with the next call, as the program is now."""
    return ((call, following) for call, following in pairwise(list(calls)) if call.name in first)


def is_plain_sum(call: Call, terms: int) -> bool:
    """Whether it adds so many terms, and no more."""
    factors = call.settings.get("coefficients") or []
    return (
        call.name == "sum"
        and len(call.reads["xs"]) == terms
        and all(factor == 1 for factor in factors)
        and "relu_output" not in call.reads
    )


def is_call(call: Call, name: str, **arguments: Any) -> bool:
    """Whether it is a call of this primitive with these tensors (None: without) and settings."""
    given = call.settings | call.reads | call.writes
    return call.name == name and all(given.get(n) is value for n, value in arguments.items())


# -- changes ---------------------------------------------------------------------------------------


def fuse(calls: list[Call], into: Call, *gone: Call) -> None:
    """Let a call do the work of others, which go."""
    for call in gone:
        into.fuse(call)
        calls.remove(call)


def set_operand(side: dict[str, Any], call: Call, name: str, tensor: Tensor | None) -> None:
    """Set an operand of one side of a call (its reads or writes); None: it goes without."""
    if tensor is not None:
        call.settings.pop(name, None)
        side[name] = tensor
    else:
        side.pop(name, None)
        call.settings[name] = None


def replace_read(call: Call, old: Tensor, new: Tensor) -> None:
    """Let a call read another tensor. ValueError where it also reads a view of the old one, which
    would be read for ever: ask `reads_view` first."""
    if reads_view(call, old):
        raise ValueError(f"{call.name} of {call.layer} reads a view of {old}")
    _replace(call.reads, old, new)


def replace_written(call: Call, old: Tensor, new: Tensor) -> None:
    """Let a call write another tensor."""
    _replace(call.writes, old, new)


def _replace(side: dict[str, Any], old: Tensor, new: Tensor) -> None:
    for name, value in side.items():
        if isinstance(value, list):
            side[name] = [new if tensor is old else tensor for tensor in value]
        elif value is old:
            side[name] = new
