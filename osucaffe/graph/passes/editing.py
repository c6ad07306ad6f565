"""Owns the editing of programs of calls: who uses a tensor, what a call computes, and the changes
that all passes are made of. Programs are changed in place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ...backends.tensor import Call, Tensor

Programs = list[list[Call]]
"""Forward, and the forms of backward."""


# -- who uses a tensor -----------------------------------------------------------------------------


def key(tensor: Tensor) -> int:
    """What a tensor and its views have in common."""
    return id(tensor.owner)


def operands(call: Call) -> Iterator[Tensor]:
    """All tensors that a call reads and writes."""
    yield from call.read_tensors()
    yield from call.written_tensors()


def reads(call: Call, tensor: Tensor) -> bool:
    """Whether a call reads the tensor, or a view of the same memory."""
    return any(key(each) == key(tensor) for each in call.read_tensors())


def writes(call: Call, tensor: Tensor) -> bool:
    """Whether a call writes the tensor, or a view of the same memory."""
    return any(key(each) == key(tensor) for each in call.written_tensors())


def reads_view(call: Call, tensor: Tensor) -> bool:
    """Whether a call reads the tensor's memory as another tensor: under another shape."""
    return any(each.base is tensor for each in call.read_tensors())


def timelines(programs: Programs) -> Programs:
    """What runs one after the other: both forms of backward take the same time, behind forward."""
    return [programs[0] + backward for backward in programs[1:]] or [programs[0]]


class Users:
    """The calls of some programs, as they are now, by the tensors that they touch."""

    def __init__(self, programs: Sequence[Sequence[Call]]) -> None:
        self._calls: dict[int, dict[int, Call]] = {}
        for call in (call for program in programs for call in program):
            for tensor in operands(call):
                self._calls.setdefault(key(tensor), {})[id(call)] = call

    def of(self, tensor: Tensor) -> list[Call]:
        """Those that touch the tensor (or a view of it)."""
        return list(self._calls.get(key(tensor), {}).values())

    def only(self, tensor: Tensor, *calls: Call) -> bool:
        """Whether nothing but these calls touches the tensor, and no user may look at it."""
        known = set(map(id, calls))
        return not tensor.persistent and all(id(call) in known for call in self.of(tensor))

    def other(self, tensor: Tensor, user: Call, names: Collection[str]) -> Call | None:
        """The only call but `user` that touches a tensor, if it is of one of these primitives: what
        makes it, where `user` reads it."""
        others = [call for call in self.of(tensor) if call is not user]
        return others[0] if len(others) == 1 and others[0].name in names else None


# -- what a call computes --------------------------------------------------------------------------


def pairs(calls: Sequence[Call]) -> Iterator[tuple[Call | None, Call]]:
    """Each call with the one before it, as the program is now."""
    now = list(calls)
    return zip([None, *now], now, strict=False)


def is_plain_sum(call: Call, terms: int) -> bool:
    """Whether it adds so many terms, and no more."""
    factors = call.settings.get("coefficients") or []
    return (
        call.name == "sum"
        and len(call.reads["xs"]) == terms
        and all(factor == 1 for factor in factors)
        and "relu_output" not in call.reads
    )


def is_call(call: Call | None, name: str, **arguments: Any) -> bool:
    """Whether it is a call of this primitive with these tensors (None: without) and settings."""
    if call is None or call.name != name:
        return False
    given = call.settings | call.reads | call.writes
    return all(given.get(argument) is value for argument, value in arguments.items())


# -- changes ---------------------------------------------------------------------------------------


def fuse(calls: list[Call], into: Call, *gone: Call) -> None:
    """Let a call do the work of others, which go."""
    for call in gone:
        into.fuse(call)
        calls.remove(call)


def give(side: dict[str, Any], call: Call, name: str, tensor: Tensor) -> None:
    """Let one side of a call (its reads or writes) have a tensor, which may have been None."""
    call.settings.pop(name, None)
    side[name] = tensor


def take(side: dict[str, Any], call: Call, *names: str) -> None:
    """Let one side of a call do without tensors: they become None."""
    for name in names:
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
            side[name] = [new if each is old else each for each in value]
        elif value is old:
            side[name] = new
