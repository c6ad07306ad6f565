"""The number of threads that calls run on: what takes less time than threads need to meet runs on
one, and a forward pass runs on all or on one, as it has been faster of late."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby

from ... import primitives as ops
from ...cores import idle_seconds
from ...primitives.recording import Primitive
from ...tensor import Run, Step, sequence

SetThreads = Callable[[int], object]

SMALL_WORK = 1 << 19
"""Work that one thread is through with in 20 microseconds: that is what it costs two to meet on a
machine that does other things, too."""
SMALL_PROGRAM = 16 * SMALL_WORK
"""Work of a forward pass to which threads may bring less than it costs to wake them. LeNet with one
image (two thirds of it) takes 60 microseconds on two threads that are awake, 115 on one; where
passes come 3 ms apart 700 to 2,000 and 430; beside two busy processes 450 to 2,000 and 130."""
TINY_PROGRAM, SHORT_PROGRAM = SMALL_PROGRAM // 4, 4 * SMALL_PROGRAM
"""Work up to which a forward pass always runs on one thread, as it is over before others are awake
(20 microseconds), and from which on its time on one thread is not tried without need (250)."""
_PER_ELEMENT = 8
"""As many multiplications take as long as to read or write an element."""
LONGEST_SUM = 1024
"""Inputs of an inner product up to which oneDNN does not spread sums over threads: the values stay
the same to the bit, on however many they are computed."""
Products = (
    ops.Convolution | ops.ConvolutionBackwardData | ops.InnerProduct | ops.InnerProductBackwardData
)
"""Calls whose outputs, or gradients of them, have an element for each product with a row of
weights."""

TRIAL_RUNS, TRIAL_SECONDS = 8, 0.03
"""How many passes at least, and for how many seconds, each way to run a program is tried: where
other processes have the cores by turns, these are some milliseconds. As many passes ahead do not
count: threads that have slept may take that long to find a core each."""
GIVE_UP_RUNS = 3
"""If each of that many passes on one thread takes twice as long as on all, no more are tried."""
MIN_KEPT_RUNS, MAX_TRIAL_SHARE = 100, 0.01
"""How often at least what was faster runs before both are tried again, and the share of its time
that trials may take."""
WATCH_PERIOD = 4
"""One pass of this many is watched. If this many of those are slow, both are tried again."""
STARVATION_SECONDS, MIN_CPU_SHARE = 0.1, 0.75
"""Seconds of watched passes after which the processors' time that they had is looked at, and the
share of all threads' time that they have where no other process wants the cores: threads that wait
spin. On two cores it is 0.95 and more, beside one busy loop 0.7, beside four 0.4."""
IDLE_SECONDS, MIN_IDLE_CORES, MIN_SHARE = 0.4, 0.75, 0.02
"""Where a pass runs on one thread, all are tried again once the others' cores are idle that were
not before: for that many seconds, so much of them, and after so much of the passes before the next
trial."""


def work(call: Primitive) -> int:
    """What a call takes, as a number of multiplications."""
    moved = sum(each.count for each in (*call.read_tensors(), *call.written_tensors()))
    match call:
        case ops.Convolution(y=above) | ops.InnerProduct(y=above):
            pass
        case ops.ConvolutionBackwardData(dy=above) | ops.InnerProductBackwardData(dy=above):
            pass
        case _:
            return _PER_ELEMENT * moved
    return max(_PER_ELEMENT * moved, above.count * _inputs(call))


def _inputs(call: Products) -> int:
    """How many products a sum of a convolution or inner product has."""
    transposed = isinstance(call, ops.Flattening) and call.transpose
    return call.w.count // call.w.shape[1 if transposed else 0]


def same_sums(call: Primitive) -> bool:
    """Whether a call of a forward pass gives the same bits on any number of threads."""
    return not isinstance(call, ops.InnerProduct) or _inputs(call) <= LONGEST_SUM


def on_one_thread(step: Step, set_threads: SetThreads, threads: int) -> Step:
    """The step, with one thread while it runs."""
    work = step.run

    def run() -> None:
        set_threads(1)
        try:
            work()
        finally:
            set_threads(threads)

    return Step(run, step.implementation, alone=step)


def coalesce(
    runs: Sequence[Run],
    set_threads: SetThreads,
    threads: int,
    alone: Callable[[Step, Primitive], Step | None],
) -> list[Run]:
    """What runs steps on that many threads whichever thread begins them; those on one thread that
    follow each other as one, which saves a microsecond for each. Where some have a `call`, a single
    one, as it is `AdaptiveThreads`: these run on one thread in its other way.

    alone: makes the step on one thread that does what such a step does; None: there is none.
    """
    steps = [each if isinstance(each, Step) else Step(each) for each in runs]

    def begin() -> None:
        set_threads(threads)

    def merged(steps: Sequence[Step]) -> list[Run]:
        result: list[Run] = [begin]
        for is_alone, group in groupby(steps, lambda step: step.alone is not None):
            if is_alone:
                inner = Step(sequence([step.alone for step in group if step.alone]))
                result.append(on_one_thread(inner, set_threads, threads))
            else:
                result += group
        return result

    free = [step.call for step in steps if step.call is not None]

    def on_one() -> Run:
        return sequence(merged([moved(step) for step in steps]))

    def moved(step: Step) -> Step:
        if step.alone is not None:
            return step
        other: Step | None = step
        if step.call is not None:
            other = alone(step, step.call)
        elif step.implementation:  # it is not NumPy's
            other = None
        return step if other is None else on_one_thread(other, set_threads, threads)

    if not free:
        return merged(steps)
    short = sum(map(work, free)) <= SHORT_PROGRAM
    return [AdaptiveThreads(sequence(merged(steps)), on_one, threads, short=short).run]


class AdaptiveThreads:
    """Runs a forward pass on all threads or on one: as it was faster when both were tried last,
    which depends on how busy the machine is, and on how long nobody ran any.

    Both are tried where the threads did not get the cores; if the pass is short, at once and from
    time to time, too.
    on_one: makes the step on one thread, when it is first tried.
    """

    def __init__(
        self,
        on_all: Run,
        on_one: Callable[[], Run],
        threads: int,
        *,
        short: bool,
        clock: Callable[[], float] = time.perf_counter,
        processors: Callable[[], float] = time.process_time,
        idle: Callable[[], float] = idle_seconds,
    ) -> None:
        self._steps, self._on_one = [on_all], on_one
        self._threads, self._short = threads, short
        self._clock, self._processors, self._idle = clock, processors, idle
        self._looked = self._idled = 0.0  # when idle cores were last looked for, and their time
        self._were_taken = True
        self._kept = 0  # passes from the last trial to the next
        self._best = self._left = self._slow = 0
        self._once = 0.0  # seconds that the best takes
        self._watched = self._used = 0.0  # seconds, since they were last looked at
        self._trial = short
        self._tried: list[tuple[float, float, int]] = []  # a mean, all seconds, and the passes
        self._passes = 0
        self._spent = self._counted = self._least = 0.0  # of the way that is being tried

    def run(self) -> None:
        """Run the pass."""
        if self._trial:
            self._try()
            return
        self._left -= 1
        if self._left % WATCH_PERIOD:
            self._steps[self._best]()
            return
        start, used = self._clock(), self._processors()
        self._steps[self._best]()
        passed = self._clock() - start
        self._watched += passed
        self._used += self._processors() - used
        self._slow = self._slow + 1 if self._once and passed > 2 * self._once else 0
        due = self._left <= 0 and (self._short or self._best or self._starved())
        free = self._best == 1 and self._left < (1 - MIN_SHARE) * self._kept and self._are_free()
        self._trial = bool(due) or free or self._slow == WATCH_PERIOD

    def _starved(self) -> bool:
        """Whether the threads had less of the processors' time than they would have alone."""
        if self._watched < STARVATION_SECONDS:
            return False
        starved = self._used < MIN_CPU_SHARE * self._threads * self._watched
        self._watched = self._used = 0.0
        return starved

    def _are_free(self) -> bool:
        """Whether cores for all threads, which were taken before, have been idle."""
        now, begun, idled = self._clock(), self._looked, self._idled
        if begun and now - begun < IDLE_SECONDS:
            return False
        self._looked, self._idled = now, self._idle()
        if not begun:
            return False
        cores = (self._idled - idled) / (now - begun)
        free, before = cores >= self._threads - 2 + MIN_IDLE_CORES, self._were_taken
        self._were_taken = not free
        return free and before

    def _try(self) -> None:
        way = len(self._tried)
        if way == len(self._steps):
            self._steps.append(self._on_one())
        start = self._clock()
        self._steps[way]()
        passed = self._clock() - start
        self._passes += 1
        self._spent += passed
        self._least = min(self._least, passed) if self._passes > 1 else passed
        if self._passes > TRIAL_RUNS:
            self._counted += passed
        if self._passes >= 2 * TRIAL_RUNS and self._counted >= TRIAL_SECONDS:
            mean = self._counted / (self._passes - TRIAL_RUNS)
        elif way and self._passes >= GIVE_UP_RUNS and self._least > 2 * self._tried[0][0]:
            mean = self._least
        else:
            return
        self._tried.append((mean, self._spent, self._passes))
        self._passes, self._spent, self._counted = 0, 0.0, 0.0
        if way == 1:
            self._decide()

    def _decide(self) -> None:
        self._once, *_ = least = min(self._tried)
        self._best = self._tried.index(least)
        lost = sum(spent - passes * self._once for _, spent, passes in self._tried)
        self._left = self._kept = max(MIN_KEPT_RUNS, int(lost / (MAX_TRIAL_SHARE * self._once)))
        self._looked = 0.0
        self._tried, self._trial, self._slow = [], False, 0
        self._watched = self._used = 0.0
