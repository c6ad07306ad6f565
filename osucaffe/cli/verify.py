"""Owns how commands verify several things: all of them, whatever is wrong with some."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import UserError


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
