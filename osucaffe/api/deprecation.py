"""Owns the warning about public names and arguments that will go: one release warns of it first."""

from __future__ import annotations

import warnings


def deprecated(what: str, instead: str, *, since: str) -> None:
    """Warn who called the function that calls this. since: the release that warns first; the one
    after it may do without `what`."""
    warnings.warn(
        f"{what} is deprecated since osucaffe {since}, and goes with the release after it: "
        f"{instead}",
        DeprecationWarning,
        stacklevel=3,
    )
