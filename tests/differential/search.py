"""The search of the differential tests: random cases by number; what fails is made smaller.

A case is a dict of settings; one that it lacks has the kind's default. Case N of a seed is always
the same, so a seed and a number are all that it takes to see a failure again.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Case = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """What is searched: its module's name, what draws a case, what raises if one is computed
    wrongly (its text up to a colon names the sort of failure), and what prints one as a user
    would write it. The last two are given all settings."""

    module: str
    draw: Callable[[np.random.Generator], Case]
    check: Callable[[Case], None]
    show: Callable[[Case], str]
    defaults: Case = field(default_factory=dict)

    def case(self, seed: int, number: int) -> Case:
        """Case `number` of a seed."""
        return self.draw(np.random.default_rng([seed, number]))

    def run(self, case: Case) -> None:
        """Raises if the case is computed wrongly."""
        self.check(self.defaults | case)


def today() -> int:
    """A seed that changes daily."""
    return int(datetime.date.today().strftime("%Y%m%d"))


def failure(kind: Kind, case: Case) -> tuple[str, str]:
    """What sort of failure a case is, and all that is known of it; empty if it is none."""
    try:
        kind.run(case)
    except Exception as error:
        sort = f"{type(error).__name__}: {str(error).partition(':')[0]}"
        return sort, "".join(traceback.format_exception(error))
    return "", ""


def fewest(items: Iterable[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    """Those of the items that it takes to fail: runs of them are left out, long ones first, as
    items that need each other lie together."""
    given = list(items)
    left = list(range(len(given)))
    size = len(left)
    while size:
        before = left
        for first in range(0, len(before), size):
            fewer = [each for each in left if each not in before[first : first + size]]
            if fails([given[each] for each in fewer]):
                left = fewer
        if size > 1 or left == before:
            size //= 2
    return [given[each] for each in left]


def minimize(kind: Kind, case: Case) -> Case:
    """The case with every setting at its default that need not be otherwise for the same sort of
    failure."""
    wanted, _ = failure(kind, case)
    names = fewest(case, lambda some: failure(kind, {n: case[n] for n in some})[0] == wanted)
    return {name: case[name] for name in names}


def report(kind: Kind, seed: int, number: int) -> str:
    """Empty if the case is computed rightly; else all there is to say about it, made smaller."""
    case = kind.case(seed, number)
    sort, _ = failure(kind, case)
    if not sort:
        return ""
    smaller = minimize(kind, case)
    return (
        f"{failure(kind, smaller)[1]}\nMade smaller: {smaller}\n"
        f"{kind.show(kind.defaults | smaller)}\n"
        f"Again: python -m {kind.module} --seed {seed} --first {number} --cases 1\n"
    )


def check_cases(kind: Kind, seed: int, numbers: Iterable[int]) -> None:
    """AssertionError with a report of the first of these cases that fails."""
    for number in numbers:
        text = report(kind, seed, number)
        assert not text, text


def main(kind: Kind) -> int:
    """Read the command line and search. Returns the exit code: 1 if a case fails."""
    parser = argparse.ArgumentParser(prog=f"python -m {kind.module}")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="at most")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=today())
    args = parser.parse_args()
    end, failed, number = time.monotonic() + args.seconds, 0, args.first
    while number < args.first + args.cases and time.monotonic() < end:
        if text := report(kind, args.seed, number):
            failed += 1
            print(f"Case {number} fails.\n{text}", flush=True)
        number += 1
    print(f"{kind.module}: seed {args.seed}, {number - args.first} cases, {failed} failed")
    return failed > 0
