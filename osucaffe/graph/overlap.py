"""Owns the choice of calls that may run concurrently with those after them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ..backends.tensor import Call, Tensor
from .memory import lives

MOST = 2
"""Calls that run beside the others at a time: their operands must stay in memory meanwhile."""
SPARE = 32 << 20
"""Bytes that this may cost beyond what is needed at some time in any case."""


def overlap_calls(
    calls: list[Call], names: Collection[str], size_of: Callable[[Tensor], int]
) -> None:
    """Let the calls of these names run beside as many later calls as do not depend on them, and
    as there is memory for.

    They are such as nothing waits for, as the gradients of parameters. They stay in order among
    themselves. size_of gives a tensor's bytes.
    """
    overlapping = [index for index, call in enumerate(calls) if call.name in names]
    for number, index in enumerate(overlapping):
        call = calls[index]
        read, written = set(_keys(call.read_tensors())), set(_keys(call.written_tensors()))
        end = overlapping[number + MOST] if number + MOST < len(overlapping) else len(calls)
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
        call.overlap = end - index - 1
    _fit(calls, [index for index in overlapping if calls[index].overlap], size_of)


def _fit(calls: list[Call], overlapping: list[int], size_of: Callable[[Tensor], int]) -> None:
    """Shorten what runs beside others until memory is alive for no more than if all ran in turn,
    and SPARE."""
    wanted = {index: calls[index].overlap for index in overlapping}
    for index in overlapping:
        calls[index].overlap = 0
    life = {key: each for key, each in lives([calls]).items() if not each.tensor.persistent}
    sizes = {key: size_of(each.tensor) for key, each in life.items()}
    alive = [0] * len(calls)
    for key, each in life.items():
        for time in range(each.first, each.last + 1):
            alive[time] += sizes[key]
    most = max(alive, default=0) + SPARE
    for index in overlapping:
        call = calls[index]
        operands = {*_keys(call.read_tensors()), *_keys(call.written_tensors())}
        operands |= {id(tensor) for tensor in call.scratch}
        for time in range(index + 1, index + 1 + wanted[index]):
            longer = [key for key in operands if key in life and life[key].last < time]
            more = sum(sizes[key] for key in longer)
            if alive[time] + more > most:
                break
            alive[time] += more
            for key in longer:
                life[key].last = time
            call.overlap += 1


def _keys(tensors: Iterator[Tensor]) -> Iterator[int]:
    for tensor in tensors:
        yield id(tensor.base or tensor)
