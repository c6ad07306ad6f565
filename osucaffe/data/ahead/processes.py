"""The parent's side of reader processes, which make batches where threads would wait for the
GIL.

A single-threaded process (`reader_process.py`) opens the data and forks the readers, so that
neither CUDA nor MPI is ever forked and all share its memory. Tasks go to them through one pipe,
from which any free reader takes the next, and short replies come back through another; the
batches are written to shared memory. The pipes close when either side ends: so no reader is left
over, however this process ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError, reason
from .pipeline import Arrays, Fill
from .reader_process import BAD_INPUT, ENDED, LOGGED, MADE, REPLY, SKIPPED, TASK, Ring

MAX_READER_THREADS = 4
"""Readers up to which threads are as fast: where 4 decode 3,800 JPEGs/s either way, 8 threads
decode 7,300 and 8 processes 9,100; 16 threads 11,700 and 16 processes 16,300."""
_START = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"importlib.import_module('{__package__}.reader_process').main(*sys.argv[2:])"
)
_FOR_THE_TRAINER = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Terminals and batch systems send them to all processes; a new one inherits the blocked set."""
_ENVIRONMENT = {
    # Threads of a library, which readers do not need, must not be forked.
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # Memory for an image stays with the reader: glibc would give it back to the system each time,
    # and to get its pages again takes as long as to decode it.
    **dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 28)),
}
_PATIENCE = 5
"""Seconds for readers to end on request."""
_log = logging.getLogger("osucaffe")


def worth_processes(readers: int, depth: int) -> bool:
    """Whether this many readers of a source that runs Python per record should be processes."""
    return can_be_processes() and readers > MAX_READER_THREADS and depth > 0


def can_be_processes() -> bool:
    """Whether readers can be processes on this system."""
    return sys.platform == "linux" and bool(sys.executable)


class Part:
    """A part of a batch that a reader makes."""

    __slots__ = ("__weakref__", "_owner", "error", "made")

    def __init__(self, owner: Processes) -> None:
        self._owner, self.made = owner, False
        self.error: Exception | None = None

    def result(self) -> None:
        self._owner.check()
        while not self.made:
            self._owner.receive()
        if self.error:
            raise self.error


class Processes:
    """Reader processes, as the workers of a Pipeline.

    fill: a method of a source that can be pickled; what readers report to its `bad` (BadRecords)
    is passed on here. They start with the first batch; their parent process starts at once, to be
    ready then. UserError if it cannot be started.
    """

    tasks = 2
    """Finished batches wait to be taken: with one part each, readers would idle meanwhile."""

    def __init__(self, fill: Fill, arrays: Arrays, slots: int, readers: int) -> None:
        self._fill, self._arrays, self._readers = fill, list(arrays), readers
        self._ring = Ring(arrays, slots)
        weakref.finalize(self, os.close, self._ring.file)
        self.slots = self._ring.slots
        self._running: _Running | None = self._start()
        # Weak: else a pipeline would never be garbage-collected.
        self._parts: weakref.WeakValueDictionary[int, Part] = weakref.WeakValueDictionary()
        self._number = 0

    def make(self, slot: int, position: int, part: int) -> list[Part]:
        if self._running is None:
            self._running = self._start()
        if not self._running.begun:
            content = (self._fill, self._arrays, len(self.slots), self._readers)
            self._running.begin(pickle.dumps(content))
        records, parts, tasks = len(self.slots[slot][0].array), [], []
        for at in range(0, records, part):
            self._number = number = (self._number + 1) & 0xFFFFFFFF
            end = min(at + part, records)
            tasks.append(TASK.pack(number, self._ring.turn, slot, at, end, position + at))
            self._parts[number] = made = Part(self)
            parts.append(made)
        self._running.send(b"".join(tasks))
        return parts

    def _start(self) -> _Running:
        source = self._fill.__self__  # type: ignore[attr-defined]
        return _Running(self._ring.file, type(source).__module__)

    def drop(self, jobs: Sequence[Part]) -> None:
        self._ring.turn += 1  # what no reader has begun, none begins
        try:
            self.check()
            for part in jobs:
                while not part.made:
                    self.receive()
        except UserError:
            self.close()  # a reader has died: none writes any more

    def check(self) -> None:
        """UserError if a reader is known to have died."""
        if self._running and self._running.dead:
            raise self._running.dead

    def receive(self) -> None:
        """Wait for replies, and process them. UserError when a reader has died."""
        assert self._running, "parts are dropped before the readers are stopped"
        for number, kind, text in self._running.replies():
            if kind == LOGGED:
                level, _, message = text.partition(" ")
                _log.log(int(level), "%s", message)
            elif kind == SKIPPED:
                self._fill.__self__.bad.report(UserError(text), number)  # type: ignore[attr-defined]
            elif kind == ENDED:
                raise self._running.ended(text)
            elif part := self._parts.pop(number, None):
                part.error = {MADE: None, BAD_INPUT: UserError(text)}.get(kind, RuntimeError(text))
                part.made = True

    def close(self) -> None:
        if self._running:
            self._running.close()
            self._running = None
            self._parts.clear()


class _Running:
    """The running readers, and the pipes to them.

    ring: the file of the batches' memory. module: the one that defines the source.
    """

    def __init__(self, ring: int, module: str) -> None:
        tasks, self._tasks = os.pipe()
        self._replies, replies = os.pipe()
        self._given = open(os.memfd_create("osucaffe-readers"), "wb")  # noqa: SIM115 (until begin)
        given = self._given.fileno()
        # A signal at the death of the thread that starts it: so only where that is the last one.
        die = threading.current_thread() is threading.main_thread()
        path = [*sys.path, str(Path(__file__).parents[3])]
        what = [module, *map(str, (given, ring, tasks, replies, int(die)))]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_TRAINER)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, json.dumps(path), *what],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(given, ring, tasks, replies),
                env=os.environ | _ENVIRONMENT,
            )
        except OSError as error:
            for end in (self._tasks, self._replies):
                os.close(end)
            raise UserError(f"cannot start a process that reads data: {reason(error)}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for end in (tasks, replies):
                os.close(end)
        self.begun: list[bool] = []
        """Not empty if there are readers, or will soon be."""
        self._rest = b""
        self.dead: UserError | None = None
        self.close = weakref.finalize(
            self, _close, self._process, self.begun, self._tasks, self._replies
        )
        """Ends the readers, and waits for it."""

    def begin(self, content: bytes) -> None:
        """Start the readers. content: the pickled source."""
        with self._given:
            self._given.write(content)
        self.begun.append(True)
        self.send(TASK.pack(*[0] * 6))

    def send(self, tasks: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the replies tell why
            # A signal may end a longer write early; this much is written whole.
            for at in range(0, len(tasks), select.PIPE_BUF):
                os.write(self._tasks, tasks[at : at + select.PIPE_BUF])

    def replies(self) -> list[tuple[int, int, str]]:
        """The replies since the last call; at least one. UserError when readers have died."""
        if self.dead:
            raise self.dead
        messages: list[tuple[int, int, str]] = []
        while not messages:
            if not (content := os.read(self._replies, 1 << 16)):
                code = self._process.wait()
                raise self.ended(f"the processes that read data have ended (exit code {code})")
            content = self._rest + content
            at = 0
            while len(content) - at >= REPLY.size:
                number, kind, length = REPLY.unpack_from(content, at)
                end = at + REPLY.size + length
                if end > len(content):
                    break
                messages.append(
                    (number, kind, content[at + REPLY.size : end].decode(errors="replace"))
                )
                at = end
            self._rest = content[at:]
        return messages

    def ended(self, why: str) -> UserError:
        """The error that is raised from now on."""
        self.dead = UserError(why)
        return self.dead


def _close(process: subprocess.Popen[bytes], begun: list[bool], *pipes: int) -> None:
    for file in pipes:
        os.close(file)
    if not begun:
        process.kill()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()  # and with it the readers
        process.wait()
