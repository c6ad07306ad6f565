"""The one exception for bad input, whose text is all that a user sees of it, and what it may
say of a slip of the fingers, or of many things; and the warning of what will go."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

_LONGEST_NAME = 200
"""Characters of what may be a slip of the fingers: to find one takes time with their square."""


class UserError(Exception):
    """Something outside the program is wrong: a file, a setting, the machine.

    The message names the file, line or layer and the remedy. The command line prints it
    without a traceback and exits with 1.
    """


class Fault(UserError):
    """What goes wrong by a fault of a machine: another try may go well (`train --max_restarts`)."""


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


def listed(items: Iterable[object], most: int = 20) -> str:
    """Items for a message, with commas; where there are more than `most`, how many more."""
    texts = [str(each) for each in items]
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that the word is a slip of the fingers away from, if any.

    One wrong, missing, surplus or swapped letter is allowed for every five, and one in a word of
    three or four. Case says nothing, and neither does the `_param` that many names end in: so
    "bn_param" is not taken for "mvn_param".
    """
    length = len(word.removesuffix("_param"))
    if length > _LONGEST_NAME:
        return None
    most = max(length // 5, length > 2)
    alike = [name for name in known if abs(len(name) - len(word)) <= most + len("_param")]
    edits = {name: _edits(*_stems(word, name)) for name in alike}
    near = [name for name in edits if edits[name] <= most]
    return min(near, key=lambda name: edits[name], default=None)


def _stems(word: str, other: str) -> tuple[str, str]:
    word, other = word.lower(), other.lower()
    if word.endswith("_param") and other.endswith("_param"):
        return word.removesuffix("_param"), other.removesuffix("_param")
    return word, other


def _edits(word: str, other: str) -> int:
    """How many letters to put in, take out, change or swap with the next make one of the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word):
        above, row = row, [i + 1]
        for j, wanted in enumerate(other):
            cost = min(above[j + 1] + 1, row[j] + 1, above[j] + (letter != wanted))
            if i and j and letter == other[j - 1] and wanted == word[i - 1]:
                cost = min(cost, before[j - 1] + 1)
            row.append(cost)
        before = above
    return row[-1]


def deprecated(what: str, instead: str, *, since: str) -> None:
    """Warn who called the function that calls this. since: the release that warns first; the one
    after it may do without `what`."""
    warnings.warn(
        f"{what} is deprecated since osucaffe {since}, and goes with the release after it: "
        f"{instead}",
        DeprecationWarning,
        stacklevel=3,
    )
