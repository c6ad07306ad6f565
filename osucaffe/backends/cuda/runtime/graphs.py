"""Owns the order of steps on streams, and their capture as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...tensor import Call, Step, sequence

if TYPE_CHECKING:
    from ..backend import Cuda

_captures: list[Any] = []
"""The streams that are being captured."""


def is_capturing() -> bool:
    """Whether what is launched now becomes a part of a graph."""
    return bool(_captures)


def captured(stream: Any, run: Callable[[], None]) -> Any:
    """The CUDA graph of what this runs on the stream, and on others that wait for it. It must have
    run before."""
    stream.begin_capture()
    _captures.append(stream)
    try:
        run()
    finally:
        _captures.pop()
        graph = stream.end_capture()
    return graph


def capture(backend: Cuda, steps: Sequence[Step]) -> Step:
    """A step that runs these steps: as they are the first time (libraries load what they need
    lazily, which a capture forbids), captured and replayed as one CUDA graph from then on."""
    run = sequence(steps)
    graph: Any = None
    warm = False

    def step() -> None:
        nonlocal graph, warm
        if graph is not None:
            graph.launch(backend.stream)
        elif not warm:
            run()
            warm = True
        else:
            graph = captured(backend.stream, run)
            graph.launch(backend.stream)

    return step


def arrange(backend: Cuda, calls: Sequence[tuple[Call, Step]]) -> list[Step]:
    """The steps in their order; those that may overlap others go to the side stream.

    The main stream waits for such steps before the first call that one of them may not overlap.
    """
    steps: list[Step] = []
    held: list[tuple[int, Step]] = []  # before which call to wait for which step
    waited: list[tuple[int, Any]] = []  # for which event

    def begin() -> None:
        if held:
            together, done = sequence([step for _, step in held]), _event(backend)
            steps.append(on_other_stream(backend, backend.overlap_stream, together, done))
            waited.append((min(place for place, _ in held), done))
            held.clear()

    for index, (call, step) in enumerate(calls):
        if any(place <= index for place, _ in held):
            begin()
        due = [event for place, event in waited if place <= index]
        waited = [(place, event) for place, event in waited if place > index]
        steps += [_wait(backend, event) for event in due[-1:]]
        overlap = len(calls) if call.settings.get("overlap") else call.overlap
        if overlap:
            held.append((index + overlap + 1, step))
            if not call.held:
                begin()
        else:
            steps.append(step)
    begin()
    return steps + [_wait(backend, event) for _, event in waited[-1:]]


def _event(backend: Cuda) -> Any:
    return backend.cupy.cuda.Event(disable_timing=True)


def _wait(backend: Cuda, event: Any) -> Step:
    return lambda: backend.stream.wait_event(event)


def on_other_stream(backend: Cuda, stream: Any, step: Step, done: Any = None) -> Step:
    """A step that runs another on a stream, behind what the current one has got so far. done: the
    event of its end."""
    begun = _event(backend)

    def run() -> None:
        begun.record(backend.current)
        stream.wait_event(begun)
        with backend.on(stream):
            step()
        if done is not None:
            done.record(stream)

    return run
