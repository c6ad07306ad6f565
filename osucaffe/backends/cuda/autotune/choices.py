"""Owns the file that remembers which candidate was chosen, for each kind of call."""

from __future__ import annotations

import contextlib
import json

from ..runtime.cache import cache_folder, keep


class Choices:
    """Which candidate was fastest, by a text that says what is computed.

    One file for each device and version of the libraries. What cannot be read or written is
    measured anew: the cache never stops a run.
    """

    def __init__(self, name: str) -> None:
        self.path = cache_folder() / f"{name}.json"
        self._chosen = self._read()
        self._new: dict[str, tuple[str, float]] = {}

    def _read(self) -> dict[str, tuple[str, float]]:
        try:
            return {
                key: (str(choice), float(taken))
                for key, (choice, taken) in json.loads(self.path.read_text()).items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def get(self, key: str) -> tuple[str, float] | None:
        """What was chosen and the milliseconds it took, if it was."""
        return self._chosen.get(key)

    def put(self, key: str, choice: str, taken: float) -> None:
        """Remember a choice; `save` writes it."""
        self._chosen[key] = self._new[key] = (choice, taken)

    def save(self) -> None:
        """Write what is new, beside what others have written meanwhile."""
        if not self._new:
            return
        content = self._read() | self._new
        self._new = {}
        with contextlib.suppress(OSError):
            keep(self.path, json.dumps(content, indent=0, sort_keys=True).encode())
