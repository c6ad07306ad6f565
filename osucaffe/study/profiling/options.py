"""The options of `osucaffe profile`."""

from __future__ import annotations

from dataclasses import dataclass

from ...options.flags import argument, flag


@dataclass(frozen=True, kw_only=True)
class Profile:
    """
      osucaffe profile ring.json
      osucaffe profile ring.json tree.json --plot both.png

    Of two: the parts of an iteration, and what travelled by operation, algorithm, level and size,
    with the second's time over the first's."""

    profile: str = argument("a profile (JSON)", "FILE")
    other: str | None = argument("another one, to be compared", "FILE", nargs="?")
    plot: str | None = flag("draw it: .png, .svg or .pdf", "FILE")
