"""Owns the one exception for bad input: its text is all that a user sees of it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """Something outside the program is wrong: a file, a setting, the machine.

    The message names the file, line or layer and the remedy. The command line prints it
    without a traceback and exits with 1.
    """


def reason(error: BaseException) -> str:
    """What an error says, without the number and the name that an OSError puts around it."""
    return getattr(error, "strerror", None) or str(error)


@contextlib.contextmanager
def naming(place: str | Path) -> Iterator[None]:
    """Put a place, such as a file's name, before the message of a UserError that lacks it."""
    try:
        yield
    except UserError as error:
        raise (error if str(place) in str(error) else UserError(f"{place}: {error}")) from None
