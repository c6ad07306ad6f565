"""The choice of calls that may run concurrently with those after them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor
from .editing import Kinds, operands, owners
from .memory import live_ranges

FORKS = 8
"""Places where the calls that overlap others begin, a group of them at each, if there are more
than a few. While a CUDA graph of many forks runs, other streams hardly get on: an H200's JPEG
engines decode 600 images per second during GoogLeNet with a fork for each of its 64 gradients, and
34,000 with 8 forks. In batches of 128 these make it 3 % faster, ResNet-50 4 % and EDSR 3 %, and
GoogLeNet 1 % slower in batches of 32."""
_FEW = 3 * FORKS
"""That begin each by itself: VGG-16, with 17, is 1 % faster so, and engines keep up with it."""
MAX_TOGETHER = 2
"""Groups that overlap the others at a time: their operands must stay in memory meanwhile."""
SPARE = 32 << 20
"""Bytes for each call of a group that this may cost beyond what is needed at some time anyway."""


def overlap_calls(calls: list[Primitive], kinds: Kinds, size_of: Callable[[Tensor], int]) -> None:
    """Let the calls of these kinds overlap as many later calls as do not depend on them, and
    as there is memory for.

    They are such as nothing waits for, as the gradients of parameters. They stay in order among
    themselves, and begin in groups. size_of gives a tensor's bytes.
    """
    overlapping = [index for index, call in enumerate(calls) if isinstance(call, kinds)]
    group = math.ceil(len(overlapping) / FORKS) if len(overlapping) > _FEW else 1
    most = MAX_TOGETHER * group
    ends = [*overlapping[most:], *[len(calls)] * most]
    _shorten(calls, dict(zip(overlapping, ends, strict=False)))
    overlapping = [index for index in overlapping if calls[index].overlap]
    _fit(calls, overlapping, size_of, SPARE * group)
    _shorten(calls, {index: index + 1 + calls[index].overlap for index in overlapping})
    _hold(calls, [index for index in overlapping if calls[index].overlap], group)


def _shorten(calls: list[Primitive], ends: dict[int, int]) -> None:
    """Let calls overlap those after them, to such an end, or to the first that depends on them
    and runs in its turn: those that overlap others come after them in any case."""
    for index, end in reversed(ends.items()):
        call = calls[index]
        read, written = owners(call.read_tensors()), owners(call.written_tensors())
        for later in range(index + 1, end):
            other = calls[later]
            depends = written & owners(other.read_tensors())
            changes = (read | written) & owners(other.written_tensors())
            if (depends or changes) and not other.overlap:
                end = later
                break
        call.overlap = end - index - 1


def _fit(
    calls: list[Primitive], overlapping: list[int], size_of: Callable[[Tensor], int], spare: int
) -> None:
    """Shorten the overlap until memory is alive for no more than if all ran in turn,
    and that many bytes."""
    allowed = {index: calls[index].overlap for index in overlapping}
    for index in overlapping:
        calls[index].overlap = 0
    ranges = {t: live for t, live in live_ranges(calls).items() if not t.persistent}
    sizes = {tensor: size_of(tensor) for tensor in ranges}
    alive = [0] * len(calls)
    for tensor, live in ranges.items():
        for time in range(live.first, live.last + 1):
            alive[time] += sizes[tensor]
    most = max(alive, default=0) + spare
    for index in overlapping:
        call = calls[index]
        used = [ranges[t] for t in owners(operands(call)).union(call.scratch) if t in ranges]
        for time in range(index + 1, index + 1 + allowed[index]):
            longer = [live for live in used if live.last < time]
            more = sum(sizes[live.tensor] for live in longer)
            if alive[time] + more > most:
                break
            alive[time] += more
            for live in longer:
                live.last = time
            call.overlap += 1


def _hold(calls: list[Primitive], overlapping: list[int], group: int) -> None:
    """Let up to that many begin together, if none of them has to end before the last begins."""
    ends: list[int] = []
    for index, following in pairwise([*overlapping, len(calls)]):
        ends.append(index + calls[index].overlap)
        calls[index].launch_with_next = len(ends) < group and following < min(ends)
        if not calls[index].launch_with_next:
            ends.clear()
