"""Owns the capture of steps as CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..tensor import Step, sequence

if TYPE_CHECKING:
    from .backend import Cuda


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
            backend.stream.begin_capture()
            try:
                run()
            finally:
                graph = backend.stream.end_capture()
            graph.launch(backend.stream)

    return step
