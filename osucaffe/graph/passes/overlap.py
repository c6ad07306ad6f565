"""Owns the choice of calls that may run concurrently with those after them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import pairwise

from ...backends.tensor import Call, Tensor
from .editing import key, operands
from .memory import lives

FORKS = 8
"""Places where the calls that overlap others begin, a group of them at each, if there are more
than a few. While a CUDA graph of many forks runs, other streams hardly get on: an H200's JPEG
engines decode 600 images a second beside GoogLeNet with a fork for each of its 64 gradients, and
34,000 with 8 forks. In batches of 128 these make it 3 % faster, ResNet-50 4 % and EDSR 3 %, and
GoogLeNet 1 % slower in batches of 32."""
_FEW = 3 * FORKS
"""That begin each by itself: VGG-16, with 17, is 1 % faster so, and engines keep up with it."""
MOST = 2
"""Groups that overlap the others at a time: their operands must stay in memory meanwhile."""
SPARE = 32 << 20
"""Bytes for each call of a group that this may cost beyond what is needed at some time anyway."""


def overlap_calls(
    calls: list[Call], names: Collection[str], size_of: Callable[[Tensor], int]
) -> None:
    """Let the calls of these names overlap as many later calls as do not depend on them, and
    as there is memory for.

    They are such as nothing waits for, as the gradients of parameters. They stay in order among
    themselves, and begin in groups. size_of gives a tensor's bytes.
    """
    overlapping = [index for index, call in enumerate(calls) if call.name in names]
    group = math.ceil(len(overlapping) / FORKS) if len(overlapping) > _FEW else 1
    most = MOST * group
    ends = [*overlapping[most:], *[len(calls)] * most]
    _shorten(calls, dict(zip(overlapping, ends, strict=False)))
    overlapping = [index for index in overlapping if calls[index].overlap]
    _fit(calls, overlapping, size_of, SPARE * group)
    _shorten(calls, {index: index + 1 + calls[index].overlap for index in overlapping})
    _hold(calls, [index for index in overlapping if calls[index].overlap], group)


def _shorten(calls: list[Call], ends: dict[int, int]) -> None:
    """Let calls overlap those behind them, to such an end, or to the first that depends on them
    and runs in its turn: those that overlap others come behind them in any case."""
    for index, end in reversed(ends.items()):
        call = calls[index]
        read, written = set(map(key, call.read_tensors())), set(map(key, call.written_tensors()))
        for later in range(index + 1, end):
            other = calls[later]
            needs = not written.isdisjoint(map(key, other.read_tensors()))
            changes = not (read | written).isdisjoint(map(key, other.written_tensors()))
            if (needs or changes) and not other.overlap:
                end = later
                break
        call.overlap = end - index - 1


def _fit(
    calls: list[Call], overlapping: list[int], size_of: Callable[[Tensor], int], spare: int
) -> None:
    """Shorten the overlap until memory is alive for no more than if all ran in turn,
    and so many bytes."""
    allowed = {index: calls[index].overlap for index in overlapping}
    for index in overlapping:
        calls[index].overlap = 0
    life = {which: each for which, each in lives([calls]).items() if not each.tensor.persistent}
    sizes = {which: size_of(each.tensor) for which, each in life.items()}
    alive = [0] * len(calls)
    for which, each in life.items():
        for time in range(each.first, each.last + 1):
            alive[time] += sizes[which]
    most = max(alive, default=0) + spare
    for index in overlapping:
        call = calls[index]
        used = {*map(key, operands(call)), *map(id, call.scratch)}
        for time in range(index + 1, index + 1 + allowed[index]):
            longer = [which for which in used if which in life and life[which].last < time]
            more = sum(sizes[which] for which in longer)
            if alive[time] + more > most:
                break
            alive[time] += more
            for which in longer:
                life[which].last = time
            call.overlap += 1


def _hold(calls: list[Call], overlapping: list[int], group: int) -> None:
    """Let up to so many begin together, if none of them has to end before the last begins."""
    ends: list[int] = []
    for index, following in pairwise([*overlapping, len(calls)]):
        ends.append(index + calls[index].overlap)
        calls[index].held = len(ends) < group and following < min(ends)
        if not calls[index].held:
            ends.clear()
