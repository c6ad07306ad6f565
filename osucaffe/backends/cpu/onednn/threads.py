"""Owns on how many threads calls run: what takes less time than threads need to meet runs on one,
and a small program runs as it has been faster of late."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby

from ...tensor import Call, Step, sequence

SetThreads = Callable[[int], object]

SMALL_WORK = 1 << 19
"""Work that one thread is through with in 20 microseconds: that is what it costs two to meet on a
machine that does other things, too."""
SMALL_PROGRAM = 16 * SMALL_WORK
"""Work of a forward pass to which threads may bring less than it costs to wake them. LeNet with one
image (two thirds of it) takes 60 microseconds on two threads that are awake, 115 on one; where
passes come 3 ms apart 700 to 2,000 and 430; beside two busy processes 450 to 2,000 and 130."""
_PER_ELEMENT = 8
"""As many multiplications take as long as to read or write an element."""
LONGEST_SUM = 1024
"""Inputs of an inner product up to which oneDNN does not spread sums over threads: the values stay
the same to the bit, on however many they are computed."""
PRODUCTS = {
    "convolution": "y",
    "convolution_backward_data": "dy",
    "inner_product": "y",
    "inner_product_backward_data": "dy",
}
"""By primitive, what has an element for each product of a row of weights."""

TRIED = 8
"""How often each step of `faster` is tried; the first half does not count: threads that have slept
may take that long to find a core each."""
KEPT, LOST = 1000, 0.02
"""How often at least what was faster runs before both are tried again, and the share of its time
that trials may take."""
WATCHED = 4
"""Of so many times one is watched. If so many of these are slow, both are tried again at once."""


def work(call: Call) -> int:
    """What a call takes, as a number of multiplications."""
    tensors = call.reads | call.writes
    moved = sum(each.count for each in (*call.read_tensors(), *call.written_tensors()))
    if call.name not in PRODUCTS:
        return _PER_ELEMENT * moved
    return max(_PER_ELEMENT * moved, tensors[PRODUCTS[call.name]].count * _inputs(call))


def _inputs(call: Call) -> int:
    """How many products a sum of a convolution or inner product has."""
    w = call.reads["w"]
    return int(w.count // w.shape[1 if call.settings.get("transpose") else 0])


def same_sums(call: Call) -> bool:
    """Whether a call of a forward pass gives the same bits on any number of threads."""
    return call.name != "inner_product" or _inputs(call) <= LONGEST_SUM


def on_one_thread(step: Step, set_threads: SetThreads, threads: int) -> Step:
    """The step, with one thread while it runs; alone, it is in the attribute `threadless`."""

    def run() -> None:
        set_threads(1)
        step()
        set_threads(threads)

    run.threadless = step  # type: ignore[attr-defined]
    run.implementation = getattr(step, "implementation", "")  # type: ignore[attr-defined]
    return run


def either(step: Step, alone: Step) -> Step:
    """A step on all threads that `joined` may run on one in its place, as `alone` does."""

    def run() -> None:
        step()

    run.alone = alone  # type: ignore[attr-defined]
    run.implementation = getattr(step, "implementation", "")  # type: ignore[attr-defined]
    return run


def joined(steps: Sequence[Step], set_threads: SetThreads, threads: int) -> list[Step]:
    """The steps; those on one thread that follow each other as one, which saves a microsecond for
    each. Where all can run on one thread, and some need not: a single step, as it is `faster`."""
    result: list[Step] = []
    for on_one, group in groupby(steps, lambda step: hasattr(step, "threadless")):
        if on_one:
            inner = sequence([vars(step)["threadless"] for step in group])
            result.append(on_one_thread(inner, set_threads, threads))
        else:
            result += group
    alone = [_alone(step) for step in steps]
    if None in alone or not any(hasattr(step, "alone") for step in steps):
        return result
    one = on_one_thread(sequence([step for step in alone if step]), set_threads, threads)
    return [faster([sequence(result), one])]


def _alone(step: Step) -> Step | None:
    """The step on one thread: itself, if it is not the library's. None: it runs on all."""
    for name in "threadless", "alone":
        if hasattr(step, name):
            found: Step = getattr(step, name)
            return found
    return None if hasattr(step, "implementation") else step


def faster(steps: Sequence[Step], clock: Callable[[], float] = time.perf_counter) -> Step:
    """A step that runs one of several that do the same: the one that was faster when all were
    tried last, which depends on how busy the machine is, and on how long nobody ran any."""
    taken = [0.0] * len(steps)
    turn = best = left = slow = 0
    spent = once = 0.0

    def run() -> None:
        nonlocal turn, best, left, slow, spent, once
        if left:
            left -= 1
            if left % WATCHED:
                steps[best]()
                return
            start = clock()
            steps[best]()
            slow = slow + 1 if clock() - start > 2 * once else 0
            if slow == WATCHED:
                left = 0
            return
        index, before = divmod(turn, TRIED)
        start = clock()
        steps[index]()
        passed = clock() - start
        spent += passed
        taken[index] = passed + (taken[index] if before > TRIED // 2 else 0.0)
        turn += 1
        if turn == TRIED * len(steps):
            least = min(taken)
            best, turn, slow = taken.index(least), 0, 0
            once = max(least / (TRIED - TRIED // 2), 1e-6)
            left, spent = max(KEPT, int(spent / (LOST * once))), 0.0

    return run
