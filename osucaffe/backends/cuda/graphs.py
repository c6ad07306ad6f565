"""The order of steps on streams, and their capture as CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backend import Prepared
from ..tensor import Run, sequence
from .gpu import Gpu
from .runtime.launch import captured


def capture(backend: Gpu, steps: Sequence[Run]) -> Run:
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


def schedule(backend: Gpu, calls: Sequence[Prepared]) -> list[Run]:
    """The steps in their order; those that may overlap others go to the side stream.

    The main stream waits for such steps before the first call that one of them may not overlap.
    """
    steps: list[Run] = []
    held: list[tuple[int, Run]] = []  # before which call to wait for which step
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
        if call.overlap:
            held.append((index + call.overlap + 1, step))
            if not call.launch_with_next:
                begin()
        else:
            steps.append(step)
    begin()
    return steps + [_wait(backend, event) for _, event in waited[-1:]]


def _event(backend: Gpu) -> Any:
    return backend.cupy.cuda.Event(disable_timing=True)


def _wait(backend: Gpu, event: Any) -> Run:
    return lambda: backend.stream.wait_event(event)


def on_other_stream(backend: Gpu, stream: Any, step: Run, done: Any = None) -> Run:
    """A step that runs another on a stream, after what the current one has got so far. done: the
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
