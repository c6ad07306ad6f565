"""What `arrange` gives to which stream, in which order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from osucaffe.backends.cuda.graphs import schedule
from osucaffe.graph.capture import Mark


class Stream:
    def __init__(self, name: str, done: list[str]) -> None:
        self.name, self._done = name, done

    def wait_event(self, event: Any) -> None:
        self._done.append(f"{self.name} waits for {event.after}")


class Backend:
    """Notes what its streams get."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.stream, self.overlap_stream = (Stream(name, self.done) for name in ("main", "side"))
        self.current = self.stream
        self.cupy = SimpleNamespace(cuda=SimpleNamespace(Event=self._event))

    def _event(self, disable_timing: bool) -> Any:
        event = SimpleNamespace(after="")

        def record(stream: Stream) -> None:
            last = [each for each in self.done if each.startswith(f"{stream.name}: ")]
            event.after = last[-1] if last else "nothing"

        event.record = record
        return event

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def run(self, *calls: tuple[str, int, bool]) -> list[str]:
        """What becomes of calls, each with its overlap, and whether it is held."""
        prepared = []
        for name, overlap, held in calls:
            call = Mark()
            call.overlap, call.launch_with_next = sys.maxsize if name == "mark" else overlap, held
            step = lambda name=name: self.done.append(f"{self.current.name}: {name}")  # noqa: E731
            prepared.append((call, step))
        for step in schedule(self, prepared):  # type: ignore[arg-type]
            step()
        return self.done


def test_a_held_call_begins_with_the_next_that_is_not() -> None:
    assert Backend().run(
        ("a", 5, True), ("x", 0, False), ("b", 3, False), ("y", 0, False), ("z", 0, False),
        ("u", 0, False), ("v", 0, False),
    ) == [
        "main: x", "side waits for main: x", "side: a", "side: b", "main: y", "main: z", "main: u",
        "main waits for side: b", "main: v",
    ]  # fmt: skip


def test_it_begins_in_time_whatever_was_put_between() -> None:
    done = Backend().run(("a", 1, True), ("x", 0, False), ("y", 0, False), ("b", 1, False))
    assert done == [
        "main: x", "side waits for main: x", "side: a", "main waits for side: a", "main: y",
        "side waits for main: y", "side: b", "main waits for side: b",
    ]  # fmt: skip


def test_a_mark_comes_behind_held_calls() -> None:
    done = Backend().run(("a", 9, True), ("x", 0, False), ("mark", 0, False), ("y", 0, False))
    assert done[:4] == ["main: x", "side waits for main: x", "side: a", "side: mark"]
    assert done[-1] == "main waits for side: mark"


def test_all_have_begun_and_ended_at_the_end() -> None:
    done = Backend().run(("x", 0, False), ("a", 1, True), ("y", 0, False))
    assert done[-2:] == ["side: a", "main waits for side: a"]
