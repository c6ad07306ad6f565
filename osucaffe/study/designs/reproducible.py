"""Sums of gradients that have the same bits, however the addends are grouped and ordered.

Demmel & Nguyen, IEEE Transactions on Computers 64 (2015), doi 10.1109/TC.2014.2345391; Ahrens,
Demmel & Nguyen, ACM TOMS 46 (2020): numbers are cut into digits at places that are the same for
all, and sums of digits are exact. Of each parameter, the two highest digits of its largest addend
are summed. A larger addend that comes later only drops digits that then nobody has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...comm.algorithms import Operation
from ...comm.communicator import Communicator
from ...errors import UserError
from ...parallel.buckets import Bucket, Layout, NetLayout
from ...parallel.hook import GradientHook
from ...proto import caffe_pb2

WIDTH = 22
"""Bits of a digit, whose place p stands for 2^(WIDTH p). It is rounded to the nearest: at most
2^(WIDTH - 1)."""
ADDENDS = 2 ** (32 - WIDTH) - 1
"""The most digits whose sum int32 holds for sure."""
LOWEST, INFINITE = -5, 1 << 20
"""The least place, whose lower digits are of 2^-132, and what stands for that of an infinity or
NaN."""


def place(largest: float) -> int:
    """The highest place of the digits of numbers up to this magnitude."""
    if not math.isfinite(largest):
        return INFINITE
    return max(LOWEST, -((-1 - math.frexp(largest)[1]) // WIDTH) - 1) if largest else LOWEST


class ReproducibleSum(GradientHook):
    """Sums digits as int32: twice the bytes of float32. Each addend is rounded to 2^-22 of the
    largest of its parameter, or finer."""

    takes = True
    touched = 30.0, 0.0

    def __init__(self, comm: Communicator, net: NetLayout, iteration: Callable[[], int]) -> None:
        super().__init__(comm, net, iteration)
        learned = net.arena.learned
        self._spans = [(start, stop) for start, stop, _ in net.arena.segments if start < learned]
        self._digits = self.xp.zeros(2 * learned, np.int32)
        """Of each parameter all higher ones, then all lower ones."""
        self._places = {start: LOWEST for start, _ in self._spans}

    @classmethod
    def check(cls, param: caffe_pb2.SolverParameter, ranks: int) -> None:
        """Where sums would not be what is promised."""
        if ranks * param.iter_size > ADDENDS:
            raise UserError(
                f"--reproducible sums up to {ADDENDS} gradients of a parameter: not ranks times "
                f"iter_size of {ranks} x {param.iter_size}"
            )
        if param.debug_info and param.iter_size > 1:
            raise UserError(
                "--reproducible: debug_info adds up the gradients of iter_size passes itself: "
                "leave it out"
            )

    @classmethod
    def messages(
        cls, net: Layout, bucket: Bucket, ranks: int, *given: Any
    ) -> list[tuple[Operation, int]]:
        """The places of all ranks' parameters, then two digits for each element."""
        inside = sum(bucket.start <= start < bucket.stop for start, _, _ in net.arena.segments)
        return [
            (Operation.ALL_GATHER, ranks * inside),
            (Operation.ALL_REDUCE, 2 * (bucket.stop - bucket.start)),
        ]

    def take(self, gradients: Any) -> None:
        with self.computing():
            inside = self._spans
            self._add(inside, gradients, 0, self._find_places(inside, gradients, 0))

    def reduce(self, bucket: Bucket, gradients: Any) -> None:
        xp, offset = self.xp, bucket.start
        with self.computing():
            inside = [span for span in self._spans if offset <= span[0] < bucket.stop]
            places = xp.asarray(self._find_places(inside, gradients, offset), np.int32)
            found = xp.stack([*self.gather(places)]).max(axis=0).tolist()
            self._add(inside, gradients, offset, found)
            self.sum(self._digits[2 * offset : 2 * bucket.stop])
            for (start, stop), at in zip(inside, found, strict=True):
                high, low = self._digits[2 * start : 2 * stop].reshape(2, -1)
                unit = 2.0 ** (WIDTH * (at - 1)) if at < INFINITE else math.nan
                mean = (high * 2.0**WIDTH + low) * (unit / self.comm.size)
                gradients[start - offset : stop - offset] = mean
                self._places[start] = LOWEST
            self._digits[2 * offset : 2 * bucket.stop] = 0

    def _find_places(self, spans: Sequence[tuple[int, int]], values: Any, offset: int) -> list[int]:
        """For each parameter, with these values."""
        xp = self.xp
        largest = [xp.abs(values[start - offset : stop - offset]).max() for start, stop in spans]
        found = map(place, xp.stack(largest).tolist())
        return [max(at, self._places[start]) for at, (start, _) in zip(found, spans, strict=True)]

    def _add(
        self, spans: Sequence[tuple[int, int]], values: Any, offset: int, places: Sequence[int]
    ) -> None:
        """Add the values' digits from these places on, which are at least as high as before."""
        xp = self.xp
        for (start, stop), at in zip(spans, places, strict=True):
            digits = self._digits[2 * start : 2 * stop].reshape(2, -1)
            if raised := at - self._places[start]:
                digits[1] = digits[0] if raised == 1 else 0
                digits[0] = 0
                self._places[start] = at
            if at < INFINITE:
                # Exact in float32 but for what is too small for a digit.
                rest = values[start - offset : stop - offset] * np.float32(2.0 ** (-WIDTH * at))
                high = xp.rint(rest)
                digits[0] += high.astype(np.int32)
                rest -= high
                rest *= np.float32(2**WIDTH)
                digits[1] += xp.rint(rest, out=rest).astype(np.int32)
