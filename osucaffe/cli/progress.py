"""Owns the progress bar of commands that work through many records."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from .. import log


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a bar on the terminal's error stream, none elsewhere; yields advance(n=1)."""
    if log.quiet or not sys.stderr.isatty():
        yield lambda count=1: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count=1: bar.advance(task, count)
