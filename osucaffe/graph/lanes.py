"""Owns which calls may run beside those that come after them, and marks among calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ..backends.tensor import Call, Step, Tensor

MOST = 2
"""Calls that run beside the others at a time: their operands must stay in memory meanwhile."""


def run_beside(calls: list[Call], names: Collection[str]) -> None:
    """Let the calls of these names run beside as many later calls as do not depend on them.

    They are such as nothing waits for, as the gradients of parameters. They stay in order among
    themselves.
    """
    aside = [index for index, call in enumerate(calls) if call.name in names]
    for number, index in enumerate(aside):
        call = calls[index]
        read, written = set(_keys(call.read_tensors())), set(_keys(call.written_tensors()))
        end = aside[number + MOST] if number + MOST < len(aside) else len(calls)
        for later in range(index + 1, end):
            other = calls[later]
            if other.name in names:
                continue
            if any(
                key in written or (key in read and writes)
                for writes, tensors in (
                    (False, other.read_tensors()),
                    (True, other.written_tensors()),
                )
                for key in _keys(tensors)
            ):
                end = later
                break
        call.beside = end - index - 1


def _keys(tensors: Iterator[Tensor]) -> Iterator[int]:
    for tensor in tensors:
        yield id(tensor.base or tensor)


def mark_layers(
    calls: Sequence[tuple[Call, Step]], names: Sequence[str], after: Mapping[int, Step]
) -> list[tuple[Call, Step]]:
    """The calls of backward, with the steps of `after` (by index) behind their layers'."""
    marked = []
    for index in reversed(range(len(names))):
        marked += [(call, step) for call, step in calls if call.layer == names[index]]
        if index in after:
            marked.append(mark(after[index]))
    return marked


def mark(step: Step) -> tuple[Call, Step]:
    """A step among the calls, before which all that runs beside them is complete."""
    return Call("mark", {}, {}, {}), step
