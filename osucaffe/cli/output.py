"""The output of commands: tables, JSON for scripts, sizes, progress, verdicts."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from .. import log
from ..errors import UserError
from ..messages import one_line


def print_json(value: Any) -> None:
    """Print a document; the log goes to standard error. JSON knows no nan and no infinity: they
    become null."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    if not text.isprintable():  # escapes of JSON for what would steer a terminal
        text = "".join(
            each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text
        )
    print(text)


def csv_text(rows: Iterable[Iterable[object]], delimiter: str = ",") -> str:
    """Rows as comma-separated values. Text is in one line, and begins no spreadsheet's formula."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = one_line(value)
    if not text.startswith(("=", "+", "-", "@")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


class Jsonable(Protocol):
    """Options with --json."""

    @property
    def json(self) -> bool: ...


def tell(options: Jsonable, text: str) -> None:
    """Print a line for people, unless a document is requested (--json)."""
    if not options.json:
        print(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def short(text: str, most: int) -> str:
    """A text, shortened to at most this many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


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
    """Verify each item; the error of a bad one is printed before the next is checked.

    UserError, at the end, if any is bad; of a single item, its error.
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
    """Create an output folder, unless it exists. UserError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot make this folder: {error.strerror}") from None
