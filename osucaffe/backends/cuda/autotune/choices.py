"""The file that remembers which candidate was chosen, for each kind of call."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator

from ....parsing import from_json
from ..runtime.cache import cache_folder, cached, keep


class Choices:
    """Which candidate was fastest, by a text that says what is computed.

    One file for each device and version of the libraries. What cannot be read or written is
    measured again: the cache never stops a run.
    """

    def __init__(self, name: str) -> None:
        self.path = cache_folder() / f"{name}.json"
        self._chosen = self._read()

    def _read(self) -> dict[str, tuple[str, float]]:
        if (file := cached(self.path.name)) is None:
            return {}
        try:
            return {
                key: (str(choice), float(taken))
                for key, (choice, taken) in from_json(file.read_text()).items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def get(self, key: str) -> tuple[str, float] | None:
        """What was chosen and the milliseconds it took, if it was."""
        return self._chosen.get(key)

    def put(self, key: str, choice: str, taken: float, known: Collection[str]) -> str:
        """Remember a choice, or what another process has chosen meanwhile, if that is known:
        processes that train the same net, at once or one after another, compute the same bits.
        Returns it."""
        chosen = choice, taken
        with contextlib.suppress(OSError), self._locked():
            written = self._read()
            if key in written and written[key][0] in known:
                chosen = written[key]
            else:
                content = json.dumps(written | {key: chosen}, indent=0, sort_keys=True)
                keep(self.path, content.encode())
        self._chosen[key] = chosen
        return chosen[0]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else writes meanwhile, where the file system can do that."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
