"""The watchdog: it ends the job when an operation waits too long for other ranks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

Report = Callable[[], str]

GRACE = 1.0
"""Seconds between a report and the end of the job, in which the other ranks report, too."""


class Watchdog:
    """Watches operations; expire(message) is called when one takes longer than `timeout` seconds.

    timeout 0: nothing is watched. The thread that watches starts with the first operation.
    """

    def __init__(self, timeout: float, expire: Callable[[str], None]) -> None:
        self.timeout = timeout
        self._expire = expire
        self._watched: dict[int, tuple[float, Report]] = {}
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watch(self, report: Report) -> Iterator[None]:
        """Watch the body of the `with`. report: called for a description of what it waits for.

        Within a watch of the same thread, only the inner one counts until it ends.
        """
        if not self.timeout:
            yield
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="osucaffe-watchdog", daemon=True)
            self._thread.start()
        key = threading.get_ident()
        outer = self._watched.get(key)
        self._watched[key] = (time.monotonic() + self.timeout, report)
        try:
            yield
        finally:
            if outer is None:
                del self._watched[key]
            else:
                self._watched[key] = outer

    def _run(self) -> None:
        while True:
            time.sleep(min(self.timeout / 4, 1.0))
            now = time.monotonic()
            for due, report in list(self._watched.values()):
                if now > due:
                    self._expire(report())
                    return
