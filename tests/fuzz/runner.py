"""Owns the processes that run inputs: children that may die, hang or ask for memory without end.

A child is a fork of this process, which has all that it needs imported and made. It runs many
inputs, one after the other, and writes an outcome for each to a pipe; so whoever watches knows
which input it was that ended it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from osucaffe.errors import UserError

from .targets import ASKS_FOR_MEMORY, TARGETS, silence

MEMORY = 4 << 30
"""Bytes of addresses that a child may have."""
MOST_CPU, LONGEST = 10.0, 60.0
"""Seconds of computing, and of time (but for that in which it has no core), after which an input
hangs."""
MOST_MEMORY = 3 << 30
"""Bytes that an input may take which has no reason to ask for many, whatever becomes of it."""
_GLANCE = 0.5
"""Seconds after which a child's times are read: most inputs are long through by then."""
GOOD, REFUSED, BIG = "good", "refused", "big"
_TICK = os.sysconf("SC_CLK_TCK")


class Outcome(NamedTuple):
    """What became of an input: GOOD, REFUSED, BIG (more memory than there is), or how it failed."""

    what: str
    where: str = ""
    """The line of ours that failed."""

    @property
    def failed(self) -> bool:
        return self.what not in (GOOD, REFUSED, BIG)


class Child:
    """A process that runs inputs of a kind. done: how many it has ended with."""

    def __init__(self, kind: str, inputs: Sequence[Callable[[], bytes]]) -> None:
        self.kind = kind
        self.done, self._count = 0, len(inputs)
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the child)
        self._rest = b""
        self.started = time.monotonic()
        self.pipe, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            self._run(write, inputs)
        os.close(write)
        self._restart_clock()

    def _run(self, write: int, inputs: Sequence[Callable[[], bytes]]) -> None:
        try:
            silence()
            faulthandler.enable(self._trace)
            faulthandler.register(signal.SIGUSR1, self._trace)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with tempfile.TemporaryDirectory(dir=Path.cwd().parent) as folder:
                for make in inputs:
                    outcome = run_here(self.kind, make(), Path(folder))
                    os.write(write, (json.dumps(outcome) + "\n").encode())
        finally:
            os._exit(0)

    def _restart_clock(self) -> None:
        self._since = time.monotonic()
        self._before: tuple[float, float] | None = None

    def _waited(self) -> float:
        """Seconds in which its main thread had no core, though it could have used one."""
        schedule = Path(f"/proc/{self.pid}/schedstat")
        return int(schedule.read_text().split()[1]) / 1e9 if schedule.exists() else 0.0

    def _computed(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """What has come since the last call; to be called when the pipe is readable."""
        content = os.read(self.pipe, 1 << 16)
        lines = (self._rest + content).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self.done += 1
            yield self.done - 1, Outcome(*json.loads(line))
        self._restart_clock()
        if not content:
            yield from self._ended()

    def _ended(self) -> Iterator[tuple[int, Outcome]]:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        self.pid = 0
        if self.done < self._count:
            code = os.waitstatus_to_exitcode(status)
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            self.done += 1
            yield self.done - 1, Outcome(name, self._place())

    def hangs(self) -> bool:
        """Whether its input takes too long; then it is ended."""
        elapsed = time.monotonic() - self._since
        if elapsed < _GLANCE:
            return False
        if self._before is None:
            self._before = self._computed(), self._waited()
        computed, waited = self._before
        took = elapsed - (self._waited() - waited)
        if self._computed() - computed < MOST_CPU and took < LONGEST:
            return False
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.5)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)
        self.pid = 0
        return True

    def hang(self) -> Outcome:
        """What became of the input that was running when it was ended for taking too long."""
        self.done += 1
        return Outcome("hang", self._place())

    def _place(self) -> str:
        """The innermost line of ours in the trace that the child left."""
        self._trace.seek(0)
        told = self._trace.read().decode(errors="replace")
        found = re.search(r'File ".*?/(osucaffe/\S+\.py)", line (\d+)', told)
        return f"{found[1]}:{found[2]}" if found else ""


def run_here(kind: str, content: bytes, folder: Path) -> Outcome:
    """Run one input in this process."""
    before = _peak()
    outcome = _run_here(kind, content, folder)
    if kind not in ASKS_FOR_MEMORY and _peak() - before > MOST_MEMORY and not outcome.failed:
        return Outcome("memory")
    return outcome


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _run_here(kind: str, content: bytes, folder: Path) -> Outcome:
    try:
        TARGETS[kind](content, folder)
    except UserError:
        return Outcome(REFUSED)
    except MemoryError as error:
        return Outcome(BIG) if kind in ASKS_FOR_MEMORY else _outcome(error)
    except OSError as error:
        return Outcome(REFUSED) if error.filename is not None else _outcome(error)
    except Exception as error:
        return _outcome(error)
    return Outcome(GOOD)


def _outcome(error: Exception) -> Outcome:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/osucaffe/" in frame.filename
    ]
    where = ""
    if frames:
        where = f"osucaffe/{frames[-1].filename.rpartition('/osucaffe/')[2]}:{frames[-1].lineno}"
    return Outcome(type(error).__name__, where)


def run_apart(kind: str, content: bytes) -> Outcome:
    """Run one input in a child of its own."""
    child = Child(kind, [lambda: content])
    while child.pid:
        if select.select([child.pipe], [], [], 1.0)[0]:
            for _, outcome in child.outcomes():
                result = outcome
        elif child.hangs():
            return child.hang()
    return result


def minimize(kind: str, content: bytes, outcome: Outcome, tries: int = 150) -> bytes:
    """A smaller input that fails alike: parts of it are left out, ever smaller ones."""
    if outcome.what == "hang":
        return content
    size = max(len(content) // 2, 1)
    while tries and size:
        at = 0
        while at < len(content) and tries:
            tries -= 1
            less = content[:at] + content[at + size :]
            if run_apart(kind, less) == outcome:
                content = less
            else:
                at += size
        size //= 2
    return content
