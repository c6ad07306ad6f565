"""The order of steps on streams, and where graphs end."""

from __future__ import annotations

from typing import Any

import pytest

from osucaffe.backends.cuda.runtime import graphs
from osucaffe.backends.cuda.runtime.graphs import arrange, end_of_graph
from osucaffe.backends.tensor import Call, Step


class Recorded:
    """A backend whose streams write down what they are given."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.stream = self.current = Stream(self, "main")
        self.overlap_stream = Stream(self, "side")
        self.cupy = self.cuda = self

    def Event(self, **_: Any) -> Event:
        return Event()

    def on(self, stream: Stream) -> Stream:
        self.current = stream
        return stream


class Event:
    last: Any = None

    def record(self, stream: Stream) -> None:
        self.last = [each for each in stream.backend.log if each[0] == stream.name][-1:]


class Stream:
    def __init__(self, backend: Recorded, name: str) -> None:
        self.backend, self.name = backend, name

    def wait_event(self, event: Event) -> None:
        self.backend.log.append((self.name, "waits for", event.last))

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.backend.current = self.backend.stream


def calls(backend: Recorded, overlaps: list[int], **settings: Any) -> list[tuple[Call, Step]]:
    """Calls that write down their number and stream, each beside so many that follow it."""

    def step(number: int) -> Step:
        return lambda: backend.log.append((backend.current.name, number))

    made = [Call(str(number), {}, {}, dict(settings)) for number in range(len(overlaps))]
    for call, overlap in zip(made, overlaps, strict=True):
        call.overlap = overlap
    return [(call, step(number)) for number, call in enumerate(made)]


def pieces(steps: list[Step]) -> list[list[Step]]:
    found: list[list[Step]] = [[]]
    for step in steps:
        if step is end_of_graph:
            found.append([])
        else:
            found[-1].append(step)
    return found


@pytest.mark.parametrize("forks", [1, 2, 3])
def test_graphs_end_behind_what_runs_beside_others(
    monkeypatch: pytest.MonkeyPatch, forks: int
) -> None:
    monkeypatch.setattr(graphs, "FORKS", forks)
    backend, overlaps = Recorded(), [0, 3, 0, 2, 0, 1, 0, 0, 1, 0]
    steps = arrange(backend, calls(backend, overlaps), gives_way=True)  # type: ignore[arg-type]
    divided = pieces(steps)
    assert len(divided) == 1 + 4 // forks
    for piece in divided:
        start = len(backend.log)
        for step in piece:
            step()
        log = backend.log[start:]
        side = [each for each in log if each[0] == "side" and each[1] != "waits for"]
        # What a graph has on the side stream, its main stream waits for.
        assert not side or ("main", "waits for", side[-1:]) in log
        assert len(side) <= forks
    order = [each[1] for each in backend.log if each[1] != "waits for"]
    assert order == list(range(10))


def test_a_graph_does_not_end_while_ranks_exchange() -> None:
    backend, overlaps = Recorded(), [1] * 20
    made = calls(backend, overlaps)
    assert end_of_graph in arrange(backend, made, gives_way=True)  # type: ignore[arg-type]
    assert end_of_graph not in arrange(backend, made)  # type: ignore[arg-type]
    made = calls(backend, overlaps, overlap=True)
    assert end_of_graph not in arrange(backend, made, gives_way=True)  # type: ignore[arg-type]
