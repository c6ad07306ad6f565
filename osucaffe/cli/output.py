"""Owns how commands show what they found: tables, JSON for scripts, sizes, progress, verdicts."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import log
from ..errors import UserError


def print_json(value: Any) -> None:
    """Print a document; the log goes to standard error. JSON knows no nan and no infinity: they
    become null."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def tell(args: argparse.Namespace, text: str) -> None:
    """Print a line for people, where no document is asked for (--json)."""
    if not args.json:
        print(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(align: str, *rows: Sequence[object]) -> list[str]:
    """The lines of a table, whose columns are as wide as what is in them. align: "<" or ">", flush
    left or right, for each column."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in texts
    ]


def short(text: str, most: int) -> str:
    """A text of at most so many letters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def scaled(count: float, unit: str, prefixes: str = "MGT") -> str:
    """A large number: 1.23 GFLOP, 45.6 MB. prefixes: those to choose from."""
    powers = {prefix: 1e3 ** ("KMGT".index(prefix) + 1) for prefix in prefixes}
    prefix = next((prefix for prefix in reversed(prefixes) if powers[prefix] <= count), prefixes[0])
    return f"{count / powers[prefix]:.3g} {prefix}{unit}"


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a bar on the terminal's error stream, none elsewhere; yields advance(n=1)."""
    if log.quiet or not sys.stderr.isatty():
        yield lambda count=1: None
        return
    from rich import progress as rich
    from rich.console import Console

    with rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count=1: bar.advance(task, count)


def verify_all(paths: Sequence[str], what: str, verify: Callable[[str], None]) -> None:
    """Verify each; the message of one that is bad is printed before the next is looked at.

    UserError, at the end, if any is; of one thing alone, its own.
    """
    bad = 0
    for path in paths:
        try:
            verify(path)
        except UserError as error:
            if len(paths) == 1:
                raise
            print(error)
            bad += 1
    if bad:
        raise UserError(f"{bad:,} of {len(paths):,} {what} are bad")


def make_folder(path: Path) -> None:
    """Make a folder to write to, unless it is there. UserError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot make this folder: {error.strerror}") from None
