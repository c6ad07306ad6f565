"""What becomes of inputs in children: which outcomes fail, and how one is made smaller."""

from __future__ import annotations

import contextlib
import resource
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from osucaffe.errors import UserError
from tests import children

from .targets import ASKS_FOR_MEMORY, TARGETS

MEMORY = 4 << 30
"""Bytes of addresses that a child may have."""
MAX_MEMORY = 3 << 30
"""Bytes that an input may take which has no reason to ask for many, whatever becomes of it."""
GOOD, REFUSED, BIG = "good", "refused", "big"


class Input(NamedTuple):
    """An input: its kind, what it is called, and what makes it."""

    kind: str
    name: str
    make: Callable[[], bytes]


class Outcome(NamedTuple):
    """What became of an input: GOOD, REFUSED, BIG (more memory than there is), or how it failed."""

    what: str
    where: str = ""
    """The line of ours that failed."""

    @property
    def failed(self) -> bool:
        return self.what not in (GOOD, REFUSED, BIG)


@contextlib.contextmanager
def begin() -> Iterator[Callable[[Input], Outcome]]:
    """What children do."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir=Path.cwd().parent) as folder:
        yield lambda given: run_here(given.kind, given.make(), Path(folder))


def run_here(kind: str, content: bytes, folder: Path) -> Outcome:
    """Run one input in this process."""
    before = _peak()
    outcome = _run_here(kind, content, folder)
    if kind not in ASKS_FOR_MEMORY and _peak() - before > MAX_MEMORY and not outcome.failed:
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
    return Outcome(*children.run_apart(begin, Input(kind, "", lambda: content)))


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
