"""Processes that work through items which may end them: one that dies, hangs or wants memory
without end is known by its item, and others go on with the rest.

A child is a fork of this process, which has all that it needs imported and made. It runs many
items, one after the other, and writes a result for each to a pipe.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

Begin = Callable[[], AbstractContextManager[Callable[[Any], Any]]]
"""What a child does first: it makes the function that runs an item. Its results go as JSON."""
_GLANCE = 0.5
"""Seconds after which a child's times are read: most items are long through by then."""
_TICK = os.sysconf("SC_CLK_TCK")


class Ended(NamedTuple):
    """In place of a result: what ended the child ("hang", or a signal), at which line of ours."""

    what: str
    where: str = ""


class Limits(NamedTuple):
    """Seconds of computing, and of time (but for that in which it has no core), after which an item
    hangs."""

    computing: float = 10.0
    time: float = 60.0


class Child:
    """A process that runs items. done: how many it has ended with; pid: 0 when it is gone."""

    def __init__(self, begin: Begin, items: Sequence[Any], limits: Limits) -> None:
        self.items, self.limits, self.done = items, limits, 0
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the child)
        self._rest = b""
        self.started = time.monotonic()
        self.pipe, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            self._run(write, begin)
        os.close(write)
        self._restart_clock()

    def _run(self, write: int, begin: Begin) -> None:
        try:
            _silence()
            faulthandler.enable(self._trace)
            faulthandler.register(signal.SIGUSR1, self._trace)
            with begin() as run:
                for item in self.items:
                    os.write(write, (json.dumps(run(item)) + "\n").encode())
        finally:
            os._exit(0)

    def results(self, patience: float = 0.0) -> Iterator[tuple[Any, Any]]:
        """Each item that it has ended with since, and its result; it waits so long for one."""
        if not select.select([self.pipe], [], [], patience)[0]:
            if self._hangs():
                os.kill(self.pid, signal.SIGUSR1)  # which lets it tell where it is
                time.sleep(0.5)
                self.end(signal.SIGKILL)
                yield self._next(), Ended("hang", self._place())
            return
        content = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            yield self._next(), json.loads(line)
        self._restart_clock()
        if not content:
            code = self.end()
            if self.done < len(self.items):
                name = signal.Signals(-code).name if code < 0 else f"exit {code}"
                yield self._next(), Ended(name, self._place())

    def end(self, number: int = 0) -> int:
        """Wait for its end, which this signal may bring; its exit code, or less a signal."""
        os.kill(self.pid, number)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def _next(self) -> Any:
        self.done += 1
        return self.items[self.done - 1]

    def _restart_clock(self) -> None:
        self._since = time.monotonic()
        self._before: tuple[float, float] | None = None

    def _hangs(self) -> bool:
        """Whether its item takes too long."""
        elapsed = time.monotonic() - self._since
        if elapsed < _GLANCE:
            return False
        if self._before is None:
            self._before = self._computed(), self._waited()
        computed, waited = self._before
        took = elapsed - (self._waited() - waited)
        return self._computed() - computed >= self.limits.computing or took >= self.limits.time

    def _waited(self) -> float:
        """Seconds in which its main thread had no core, though it could have used one."""
        schedule = Path(f"/proc/{self.pid}/schedstat")
        return int(schedule.read_text().split()[1]) / 1e9 if schedule.exists() else 0.0

    def _computed(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def _place(self) -> str:
        """The innermost line of ours in the trace that the child left."""
        self._trace.seek(0)
        trace = self._trace.read().decode(errors="replace")
        found = re.search(r'File ".*?/(osucaffe/\S+\.py)", line (\d+)', trace)
        return f"{found[1]}:{found[2]}" if found else ""


def run_apart(begin: Begin, item: Any, limits: Limits = Limits()) -> Any:  # noqa: B008 (frozen)
    """The result of one item, in a child of its own."""
    child = Child(begin, [item], limits)
    while True:
        for _, result in child.results(1.0):
            if child.pid:
                child.end()
            return result


def run_all(
    begin: Begin,
    work: dict[str, Iterator[Sequence[Any]]],
    tell: Callable[[Any, Any], None],
    *,
    processes: int,
    seconds: float,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
) -> Counter[str]:
    """Tell of each item and its result, until so many seconds are over: what children then work at
    is left. A sequence of items is for one child. Each part of the work gets as much time as the
    others, as long as it has more to do; the seconds of each are returned."""
    end, spent = time.monotonic() + seconds, Counter[str]()
    running: dict[Child, str] = {}

    def taken(part: str) -> float:
        now = time.monotonic()
        return spent[part] + sum(now - c.started for c, name in running.items() if name == part)

    while True:
        while len(running) < processes and work and time.monotonic() < end:
            least = min(work, key=taken)
            if (items := next(work[least], None)) is None:
                del work[least]
            else:
                running[Child(begin, items, limits)] = least
        if not running or time.monotonic() >= end:
            for child, part in running.items():
                child.end(signal.SIGKILL)
                spent[part] += time.monotonic() - child.started
            return spent
        select.select([child.pipe for child in running], [], [], 1.0)
        for child, part in list(running.items()):
            for item, result in child.results():
                tell(item, result)
            if not child.pid:
                del running[child]
                spent[part] += time.monotonic() - child.started
                if rest := child.items[child.done :]:
                    work[part] = itertools.chain([rest], work.get(part, ()))


def _silence() -> None:
    """Let what the program tells go nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    for number in 1, 2:
        os.dup2(null, number)
