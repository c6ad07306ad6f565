"""The editing of programs of calls: who uses a tensor, what a call computes, and the changes
that all passes are made of. Programs are changed in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from ...backends import primitives as ops
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor, map_tensors

Kinds = tuple[type[Primitive], ...]
"""Some primitives."""
Programs = list[list[Primitive]]
"""Forward and backward, which is empty where nothing needs a gradient."""


# -- who uses a tensor: views count as the tensor that has the memory ------------------------------


def owners(tensors: Iterable[Tensor]) -> set[Tensor]:
    """The tensors whose memory these are, or view."""
    return {owner for tensor in tensors for owner in tensor.owners}


def operands(call: Primitive) -> Iterator[Tensor]:
    """All tensors that a call reads and writes."""
    yield from call.read_tensors()
    yield from call.written_tensors()


def reads(call: Primitive, tensor: Tensor) -> bool:
    """Whether a call reads the tensor, or a view of the same memory."""
    return not owners([tensor]).isdisjoint(owners(call.read_tensors()))


def writes(call: Primitive, tensor: Tensor) -> bool:
    """Whether a call writes the tensor, or a view of the same memory."""
    return not owners([tensor]).isdisjoint(owners(call.written_tensors()))


def is_exposed(tensor: Tensor) -> bool:
    """Whether its memory is seen by others than the calls that use it: by a user, or as a view."""
    return bool(tensor.persistent or tensor.base or tensor.viewed)


def reads_view(call: Primitive, tensor: Tensor) -> bool:
    """Whether a call reads the tensor's memory as another tensor: under another shape."""
    return any(read.base is tensor for read in call.read_tensors())


class Users:
    """The calls of some programs, as they are now, in their order, by the tensors that they use."""

    def __init__(self, programs: Sequence[Sequence[Primitive]]) -> None:
        self._calls: dict[Tensor, dict[Primitive, None]] = {}
        for call in (call for program in programs for call in program):
            for tensor in owners(operands(call)):
                self._calls.setdefault(tensor, {})[call] = None

    def of(self, tensor: Tensor) -> list[Primitive]:
        """Those that use the tensor (or a view of it)."""
        return list(self._calls.get(tensor.owner, ()))

    def only(self, tensor: Tensor, *calls: Primitive) -> bool:
        """Whether nothing but these calls uses the tensor, and no user may look at it."""
        return not tensor.persistent and set(self.of(tensor)) <= set(calls)

    def other(self, tensor: Tensor, user: Primitive) -> Primitive | None:
        """The only call but `user` that uses a tensor: what makes it, where `user` reads it."""
        others = [call for call in self.of(tensor) if call is not user]
        return others[0] if len(others) == 1 else None


# -- what a call computes --------------------------------------------------------------------------


def is_plain_sum(call: Primitive, terms: int) -> TypeGuard[ops.Sum]:
    """Whether it adds that many terms, and no more."""
    return (
        isinstance(call, ops.Sum)
        and len(call.xs) == terms
        and all(factor == 1 for factor in call.coefficients or ())
        and call.relu_output is None
    )


def follows(call: Primitive, before: Primitive) -> bool:
    """Whether the gradients of two calls can be one: both state their own, and no other layer comes
    between theirs."""
    return bool(call.diffs and before.diffs) and call.layers.start == before.layers.stop


# -- changes ---------------------------------------------------------------------------------------


def fuse(calls: list[Primitive], into: Primitive, *gone: Primitive) -> None:
    """Let a call do the work of others, which go."""
    for call in gone:
        into.fuse(call)
        calls.remove(call)


def join(calls: list[Primitive], call: Primitive, gone: Primitive, **taken: str) -> None:
    """Let a call do the work of one that follows it, or that it follows, and so its gradient.
    taken: what fields of it, by the call's own, whose tensors and gradients it has from now on."""
    for name, of in taken.items():
        setattr(call, name, getattr(gone, of))
        call.diffs[name] = gone.diffs.get(of)
    ends = call.layers, gone.layers
    call.layers = range(min(each.start for each in ends), max(each.stop for each in ends))
    fuse(calls, call, gone)


def insert(calls: list[Primitive], at: int, call: Primitive, like: Primitive) -> None:
    """Insert a call of the same layer as another."""
    call.layer, call.position = like.layer, like.position
    calls.insert(at, call)


def replace_call(calls: list[Primitive], old: Primitive, new: Primitive) -> None:
    """Let another call do a call's work, in its place."""
    new.layer, new.position, new.accumulates = old.layer, old.position, old.accumulates
    new.layers = old.layers
    new.fuse(old)
    calls[calls.index(old)] = new


def replace_read(call: Primitive, old: Tensor, new: Tensor) -> None:
    """Let a call read another tensor. ValueError where it also reads a view of the old one, which
    would be read for ever: ask `reads_view` first."""
    if reads_view(call, old):
        raise ValueError(f"{call} reads a view of {old}")
    _replace(call, call.read_fields, old, new)


def replace_written(call: Primitive, old: Tensor, new: Tensor) -> None:
    """Let a call write another tensor."""
    _replace(call, call.written_fields, old, new)


def _replace(call: Primitive, fields: Iterable[str], old: Tensor, new: Tensor) -> None:
    for name in fields:
        value = getattr(call, name)
        setattr(call, name, map_tensors(lambda tensor: new if tensor is old else tensor, value))
