"""Owns queries about recorded calls: which calls use a tensor, and what a call computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...backends.tensor import Call, Tensor

Programs = list[list[Call]]
"""Forward, and the forms of backward."""


def key(tensor: Tensor) -> int:
    """What a tensor and its views have in common."""
    return id(tensor.base or tensor)


def reads(call: Call, tensor: Tensor) -> bool:
    """Whether a call reads the tensor, or a view of the same memory."""
    return any(key(each) == key(tensor) for each in call.read_tensors())


def writes(call: Call, tensor: Tensor) -> bool:
    """Whether a call writes the tensor, or a view of the same memory."""
    return any(key(each) == key(tensor) for each in call.written_tensors())


def timelines(programs: Programs) -> Programs:
    """What runs one after the other: both forms of backward take the same time, behind forward."""
    return [programs[0] + backward for backward in programs[1:]] or [programs[0]]


class Users:
    """The calls of some programs by the tensors that they touch."""

    def __init__(self, programs: Sequence[Sequence[Call]]) -> None:
        self._calls: dict[int, dict[int, Call]] = {}
        for call in (call for program in programs for call in program):
            for tensor in (*call.read_tensors(), *call.written_tensors()):
                self._calls.setdefault(key(tensor), {})[id(call)] = call

    def of(self, tensor: Tensor) -> list[Call]:
        """Those that touch the tensor (or a view of it)."""
        return list(self._calls.get(key(tensor), {}).values())

    def only(self, tensor: Tensor, *calls: Call) -> bool:
        """Whether nothing but these calls touches the tensor, and no user may look at it."""
        known = set(map(id, calls))
        return not tensor.persistent and all(id(call) in known for call in self.of(tensor))


def pairs(calls: Sequence[Call]) -> Iterator[tuple[Call | None, Call]]:
    """Each call with the one before it."""
    return zip([None, *calls], calls, strict=False)


def without(calls: Sequence[Call], dropped: set[int]) -> list[Call]:
    """The calls but those with these ids."""
    return [call for call in calls if id(call) not in dropped]


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


def give(side: dict[str, Any], call: Call, name: str, tensor: Tensor) -> None:
    """Let one side of a call (its reads or writes) have a tensor, which may have been None."""
    call.settings.pop(name, None)
    side[name] = tensor


def reads_view(call: Call, tensor: Tensor) -> bool:
    """Whether a call reads the tensor's memory as another tensor: under another shape."""
    return any(each.base is tensor for each in call.read_tensors())


def replace_read(call: Call, old: Tensor, new: Tensor) -> None:
    """Let a call read another tensor. ValueError where it also reads a view of the old one, which
    would be read for ever: ask `reads_view` first."""
    if reads_view(call, old):
        raise ValueError(f"{call.name} of {call.layer} reads a view of {old}")
    for name, value in call.reads.items():
        if isinstance(value, list):
            call.reads[name] = [new if each is old else each for each in value]
        elif value is old:
            call.reads[name] = new
